-- Log to files: the day and minute of each bid, by which they are filed.
CREATE APPLICATION q10;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE STREAM logged AS
SELECT auction, bidder, price, dateTime, extra,
       strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm
FROM bid;
