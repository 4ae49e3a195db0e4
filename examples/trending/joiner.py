"""The Joiner: adds the language of the dimension and the topic of the text; it has no state.

    headrace run joiner.py

Dimensions are looked up at HOST:PORT of DIMENSIONS, where `headrace serve` is: the ids of a batch
in one round trip. Posts are sharded by dimension, so each task finds most of its ids in its cache.
"""

from dataclasses import dataclass
from typing import Any

import headrace as hr

WORDS = {
    "movies": ("film", "actor", "scene", "premiere", "cinema"),
    "babies": ("nap", "diaper", "crib", "toddler", "bottle"),
    "sports": ("goal", "match", "team", "coach", "final"),
    "music": ("song", "band", "album", "concert", "chorus"),
}


@dataclass
class Dimension:
    """What is known of a dimension id."""

    language: str


DIMENSIONS = hr.store(
    "dimensions",
    Dimension,
    kind="remote",
    url="redis://${DIMENSIONS}/0",
    remote=hr.Remote(namespace="dimensions:", load=("dimension",), cache="10m"),
)


def topic_of(text: str) -> str:
    """Classify a text: the topic that most of its words are of, the first by name of several."""
    words = text.split()
    counts = {topic: sum(word in known for word in words) for topic, known in WORDS.items()}
    best = min(counts, key=lambda topic: (-counts[topic], topic))
    return best if counts[best] else "other"


class Joiner:
    def process(self, post: Any, context: hr.Context) -> None:
        found = context.store("dimensions").get(post.dimension)
        language = "unknown" if found is None else found.language
        topic = f"{topic_of(post.text)} in {language}"
        context.emit({"at": post.at, "event": post.event, "topic": topic})


@hr.job("joiner")
def joiner(g: hr.Graph) -> None:
    posts = g.input("posts").partition_by("dimension")
    talks = posts.process(Joiner, [DIMENSIONS], returns={"at": int, "event": str, "topic": str})
    talks.partition_by("event", "topic").send_to(g.output("talks"))
