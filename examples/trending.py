"""Trending events: the events with more posts than usual, by topic.

    headrace bus append dimensions dimensions.jsonl --infer
    headrace bus append events events.jsonl --infer --time at
    headrace run trending.py
    headrace bus tail trending --follow

The Filterer passes posts, the Joiner adds the data of the dimension and the topic of the text, the
Scorer compares the last minute with the long-term trend, and the Ranker keeps the top three of each
topic in five minutes. The first two are stateless, the others have state by key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import headrace as hr

MINUTE = 60_000
DIMENSIONS = hr.broadcast("dimensions", stream="dimensions", key="dimension")
TOPICS = {"goal": "sports", "vote": "politics", "song": "music"}
POST = {"event": str, "dimension": str, "text": str}
SCORE = {"event": str, "topic": str, "score": float}


@dataclass
class Counts:
    """The count of an event in each open minute, and its average in earlier minutes."""

    minutes: dict[int, int]
    trend: float = 0.0


class Filterer(hr.StatelessProcessor):
    def process(self, event: Any) -> Iterator[dict[str, Any]]:
        if event.type == "post":
            yield {name: getattr(event, name) for name in POST}


class Joiner(hr.StatelessProcessor):
    def process(self, post: Any) -> Iterator[dict[str, str]]:
        known = self.context.store("dimensions").get(post.dimension)
        for word, topic in TOPICS.items():
            if known is not None and word in post.text:
                yield {"event": post.event, "topic": f"{topic} in {known.language}"}


class Scorer(hr.StatefulProcessor[Counts]):
    def begin(self) -> Counts:
        return Counts({})

    def process(self, talk: Any, counts: Counts) -> tuple[None, Counts]:
        minute = self.context.time // MINUTE
        counts.minutes[minute] = counts.minutes.get(minute, 0) + 1
        self.context.set_timer((minute + 1) * MINUTE)  # once, however often it is set
        return None, counts

    def on_timer(self, timer: hr.Timer, counts: Counts) -> tuple[list[Any], Counts | None]:
        now = counts.minutes.pop(timer.at // MINUTE - 1, 0)
        event, topic = timer.key
        score = {"event": event, "topic": topic, "score": now / (1 + counts.trend)}
        counts.trend = 0.9 * counts.trend + 0.1 * now
        if counts.trend >= 0.05:
            self.context.set_timer(timer.at + MINUTE)
        lives = counts.minutes or counts.trend >= 0.05
        return [score] if now else [], counts if lives else None


@hr.job("trending")
def trending(g: hr.Graph) -> None:
    posts = g.input("events", time="at", out_of_orderness="5s").process(Filterer, returns=POST)
    talks = posts.partition_by("dimension").process(
        Joiner, [DIMENSIONS], returns={"event": str, "topic": str}
    )
    scores = talks.partition_by("event", "topic").process(Scorer, returns=SCORE)
    top = hr.agg.top_k("score", 3, keep=["event"])
    ranked = scores.partition_by("topic").window(hr.tumbling("5m"), top=top)
    ranked.send_to(g.output("trending"))
