select auction, bidder, 0.908 * price as price,
    case when hour(dateTime) between 8 and 18 then 'dayTime'
        when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime'
        else 'otherTime' end as bidTimeType,
    dateTime, extra,
    len(list_filter(string_split(extra, ''), lambda c: c = 'c')) as c_counts
from bid where 0.908 * price > 1000000 and 0.908 * price < 50000000
