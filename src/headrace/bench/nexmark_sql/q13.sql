-- Bounded side input: what a table of other data says about each bid.
CREATE APPLICATION q13;

CREATE INPUT TABLE bid(auction, bidder, price, channel, url, dateTime, extra)
FROM SCRIBE("bid") TIME dateTime;

CREATE INPUT TABLE side_input(key, value, PRIMARY KEY (key)) FROM SCRIBE("side_input");

CREATE STREAM joined AS
SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
FROM bid AS b JOIN side_input AS s ON b.auction % 10000 = s.key;
