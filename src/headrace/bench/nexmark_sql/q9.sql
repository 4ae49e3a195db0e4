-- Winning bids: the highest bid of each auction, the first of equal ones, when it has ended.
CREATE APPLICATION q9;

CREATE INPUT TABLE auction(
    id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
) FROM SCRIBE("auction") TIME dateTime;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE VIEW bids AS
SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires, a.seller,
       a.category, a.extra, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime,
       b.extra AS bid_extra
FROM auction AS a JOIN bid AS b
    ON a.id = b.auction
    AND b.dateTime BETWEEN a.dateTime AND a.dateTime + INTERVAL 15 SECONDS
    AND b.dateTime <= a.expires;

CREATE TABLE winning AS
SELECT * FROM bids [session 15 seconds]
QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY price DESC, bid_dateTime) <= 1;
