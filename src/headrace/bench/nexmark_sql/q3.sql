-- Local item suggestion: who sells in some states and one category. Rows wait a day for partners.
CREATE APPLICATION q3;

CREATE INPUT TABLE auction(
    id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra
) FROM SCRIBE("auction") TIME dateTime;

CREATE INPUT TABLE person(id, name, emailAddress, creditCard, city, state, dateTime, extra)
FROM SCRIBE("person") TIME dateTime;

CREATE VIEW sold AS SELECT id, seller, dateTime FROM auction WHERE category = 10;

CREATE VIEW local AS
SELECT id, name, city, state, dateTime FROM person WHERE state IN ('OR', 'ID', 'CA');

CREATE STREAM suggestions AS
SELECT p.name, p.city, p.state, a.id
FROM sold AS a JOIN local AS p
    ON a.seller = p.id
    AND a.dateTime BETWEEN p.dateTime - INTERVAL 1 DAY AND p.dateTime + INTERVAL 1 DAY;
