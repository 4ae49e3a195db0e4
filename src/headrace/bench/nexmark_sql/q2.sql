-- Selection: bids on some auctions.
CREATE APPLICATION q2;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE STREAM selected AS
SELECT auction, price FROM bid WHERE auction % 123 = 0;
