-- User sessions: how many bids a person makes in each time of activity.
CREATE APPLICATION q11;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE TABLE sessions AS
SELECT bidder, count(*) AS bid_count FROM bid [session 10 seconds] GROUP BY bidder;
