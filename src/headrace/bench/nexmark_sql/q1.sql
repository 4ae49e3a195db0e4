-- Currency: prices in another one.
CREATE APPLICATION q1;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE STREAM converted AS
SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid;
