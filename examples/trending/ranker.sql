-- The Ranker: Figure 2 of the paper, and how far out of order the Scorer's tasks may send.
CREATE APPLICATION top_events;

CREATE INPUT TABLE events_score(event_time, event, category, score)
FROM SCRIBE("events_stream") TIME event_time LATENESS '10 minutes';

CREATE TABLE top_events_5min AS
SELECT category, event, topk(score) AS score
FROM events_score [5 minutes]
