select category, avg(final) as final from (
    select max(b.price) as final, a.category from auction a, bid b
    where a.id = b.auction and b.dateTime between a.dateTime and a.expires
    group by a.id, a.category)
group by category
