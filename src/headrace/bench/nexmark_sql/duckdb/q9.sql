select a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires,
    a.seller, a.category, a.extra, b.auction, b.bidder, b.price,
    b.dateTime as bid_dateTime, b.extra as bid_extra
from auction a, bid b
where a.id = b.auction and b.dateTime between a.dateTime and a.expires
qualify row_number() over (partition by a.id order by b.price desc, b.dateTime) <= 1
