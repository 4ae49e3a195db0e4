with highest as (
    select max(price) as maxprice, epoch_ms(dateTime) // 10000 * 10000 as start from bid
    group by start
)
select b.auction, b.price, b.bidder, b.dateTime, b.extra from bid b join highest h
on b.price = h.maxprice and epoch_ms(b.dateTime) between h.start and h.start + 10000
