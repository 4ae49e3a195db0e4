-- Highest bid of each ten seconds.
CREATE APPLICATION q7;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE VIEW highest AS SELECT max(price) AS maxprice FROM bid [10 seconds];

CREATE STREAM highest_bids AS
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid AS b JOIN highest AS h
    ON b.price = h.maxprice
    AND b.dateTime BETWEEN h.window_end - INTERVAL 10 SECONDS AND h.window_end;
