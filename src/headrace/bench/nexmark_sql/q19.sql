-- Auction top ten: the highest bids of each auction, those that changed every ten seconds.
CREATE APPLICATION q19;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE TABLE top_bids AS
SELECT *
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number
    FROM bid
)
WHERE rank_number <= 10
EMIT EVERY '10 seconds';
