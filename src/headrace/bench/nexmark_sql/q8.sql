-- Monitor new users: who came and sold in the same ten seconds.
CREATE APPLICATION q8;

CREATE INPUT TABLE person(id, name, emailAddress, creditCard, city, state, dateTime, extra)
FROM SCRIBE("person") TIME dateTime;

CREATE INPUT TABLE auction(
    id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
) FROM SCRIBE("auction") TIME dateTime;

CREATE VIEW persons AS SELECT DISTINCT id, name FROM person [10 seconds];

CREATE VIEW sellers AS SELECT DISTINCT seller FROM auction [10 seconds];

CREATE STREAM new_users AS
SELECT p.id, p.name, p.window_start
FROM persons AS p JOIN sellers AS s ON p.id = s.seller AND p.window_end = s.window_end;
