-- Average price of a category: of the highest bids of its auctions, which last up to 15 seconds.
CREATE APPLICATION q4;

CREATE INPUT TABLE auction(
    id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
) FROM SCRIBE("auction") TIME dateTime;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE VIEW bids AS
SELECT a.id, a.category, b.price
FROM auction AS a JOIN bid AS b
    ON a.id = b.auction
    AND b.dateTime BETWEEN a.dateTime AND a.dateTime + INTERVAL 15 SECONDS
    AND b.dateTime <= a.expires;

CREATE VIEW closed AS
SELECT id, category, max(price) AS final FROM bids [session 15 seconds] GROUP BY id, category;

CREATE TABLE averages AS
SELECT category, avg(final) AS final FROM closed GROUP BY category;
