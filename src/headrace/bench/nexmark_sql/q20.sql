-- Expand bids with auctions of one category. Rows wait a day for partners.
CREATE APPLICATION q20;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE INPUT TABLE auction(
    id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
) FROM SCRIBE("auction") TIME dateTime;

CREATE VIEW sold AS
SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
FROM auction WHERE category = 10;

CREATE STREAM expanded AS
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime,
       b.extra AS bid_extra, a.itemName, a.description, a.initialBid, a.reserve,
       a.dateTime AS auction_dateTime, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid AS b JOIN sold AS a
    ON b.auction = a.id
    AND b.dateTime BETWEEN a.dateTime - INTERVAL 1 DAY AND a.dateTime + INTERVAL 1 DAY;
