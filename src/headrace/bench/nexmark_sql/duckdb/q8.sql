select distinct p.id, p.name, time_bucket(interval 10 seconds, p.dateTime) as window_start
from person p join auction a on p.id = a.seller
and time_bucket(interval 10 seconds, p.dateTime)
    = time_bucket(interval 10 seconds, a.dateTime)
