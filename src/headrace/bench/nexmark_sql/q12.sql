-- Processing time windows: how many bids of a person are read in each ten seconds of the clock.
CREATE APPLICATION q12;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME PROCTIME();

CREATE TABLE counts AS
SELECT bidder, count(*) AS bid_count FROM bid [10 seconds] GROUP BY bidder;
