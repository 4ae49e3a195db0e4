with hops as (
    select auction, unnest(range(epoch_ms(dateTime) // 2000 * 2000 - 8000,
        epoch_ms(dateTime) // 2000 * 2000 + 1, 2000)) as window_start
    from bid
), counts as (
    select auction, window_start, count(*) as num from hops group by all
)
select auction, num, epoch_ms(window_start) as window_start,
    epoch_ms(window_start + 10000) as window_end
from counts qualify num >= max(num) over (partition by window_start)
