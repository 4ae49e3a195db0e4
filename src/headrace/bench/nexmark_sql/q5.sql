-- Hot items: the auctions with the most bids of the last ten seconds, every two seconds.
CREATE APPLICATION q5;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE VIEW counts AS
SELECT auction, count(*) AS num FROM bid [10 seconds every 2 seconds] GROUP BY auction;

CREATE VIEW most AS SELECT max(num) AS maxn FROM counts [2 seconds];

CREATE STREAM hot_items AS
SELECT c.auction, c.num, c.window_start, c.window_end
FROM counts AS c JOIN most AS m ON c.window_end = m.window_end AND c.num >= m.maxn;
