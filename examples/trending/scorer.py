"""The Scorer: how much more an event is talked about than usual, minute by minute.

    headrace run scorer.py

It keeps the counts of the last five minutes of each event and topic, and as the long-term trend an
average of the minutes before, in which each counts a tenth less than the next. The score is the
ratio of both.
"""

from dataclasses import dataclass, field
from typing import Any

import headrace as hr

MINUTE, WINDOW = 60_000, 5
LEAST_TREND = 0.05
SCORE = {"event_time": int, "event": str, "category": str, "score": float}


@dataclass
class Counts:
    """Counts of the minutes in the sliding window and after it, and the trend of those before."""

    minutes: dict[int, int] = field(default_factory=dict)
    trend: float = 0.0


def step(counts: Counts, minute: int) -> float | None:
    """Let a minute end: return its score, if there is one, and move the sliding window."""
    recent = sum(counts.minutes.get(minute - ago, 0) for ago in range(WINDOW))
    score = recent / (1 + WINDOW * counts.trend) if recent else None
    left = counts.minutes.pop(minute - WINDOW + 1, 0)
    trend = 0.9 * counts.trend + 0.1 * left
    counts.trend = trend if trend >= LEAST_TREND else 0.0
    return score


class Scorer(hr.StatefulProcessor[Counts]):
    def begin(self) -> Counts:
        return Counts()

    def process(self, talk: Any, counts: Counts) -> tuple[None, Counts]:
        minute = talk.at // MINUTE
        counts.minutes[minute] = counts.minutes.get(minute, 0) + 1
        self.context.set_timer((minute + 1) * MINUTE)  # once, however often it is set
        return None, counts

    def on_timer(self, timer: hr.Timer, counts: Counts) -> tuple[list[Any], Counts | None]:
        event, topic = timer.key
        minute = timer.at // MINUTE - 1
        score = step(counts, minute)
        if counts.trend or any(one <= minute for one in counts.minutes):
            self.context.set_timer(timer.at + MINUTE)
        lives = counts.trend or counts.minutes
        scored = {"event_time": timer.at - 1, "event": event, "category": topic, "score": score}
        return [scored] if score is not None else [], counts if lives else None


@hr.job("scorer")
def scorer(g: hr.Graph) -> None:
    talks = g.input("talks", time="at", out_of_orderness="2m").partition_by("event", "topic")
    scores = talks.process(Scorer, returns=SCORE)
    scores.partition_by("category").send_to(g.output("events_stream"))
