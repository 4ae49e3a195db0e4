select *, row_number() over (partition by auction order by price desc, dateTime)
    as rank_number
from bid qualify rank_number <= 10
