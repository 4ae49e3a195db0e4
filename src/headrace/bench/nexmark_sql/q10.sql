-- Log to files: bids go to the warehouse, a folder of Parquet files for each day.
CREATE APPLICATION q10;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE SINK bid_log WITH (connector = 'warehouse');

INSERT INTO bid_log
SELECT auction, bidder, price, dateTime, extra,
       strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm
FROM bid;
