-- The Filterer: the posts of all events.
CREATE APPLICATION filterer;

CREATE INPUT TABLE incoming(at, type, event, dimension, text)
FROM SCRIBE("incoming") TIME at LATENESS '2 minutes';

CREATE STREAM posts AS
SELECT at, event, dimension, text FROM incoming WHERE type = 'post'
