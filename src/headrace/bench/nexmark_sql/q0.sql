-- Pass through: what reading and writing cost.
CREATE APPLICATION q0;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE STREAM passed AS
SELECT auction, bidder, price, dateTime, extra FROM bid;
