with gaps as (
    select *, dateTime - lag(dateTime) over w >= interval 10 seconds as is_first
    from bid window w as (partition by bidder order by dateTime)
), numbered as (
    select *, sum(coalesce(is_first, true)::int) over (
        partition by bidder order by dateTime) as session
    from gaps
)
select bidder, count(*) as bid_count, min(dateTime) as window_start,
    max(dateTime) + interval 10 seconds as window_end
from numbered group by bidder, session
