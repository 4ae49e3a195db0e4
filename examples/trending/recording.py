"""Recorded events: the same for the same size and seed. A few events are bursts."""

import random  # noqa: TID251 - of a seed that is given
from collections.abc import Iterator
from typing import Any

from joiner import WORDS

MINUTE = 60_000
BEGIN = 1_700_000_100_000  # a multiple of five minutes
LANGUAGES = ("English", "German", "Hindi")
DIMENSIONS = {f"d{number}": LANGUAGES[number % len(LANGUAGES)] for number in range(300)}
EVENTS = 40
NOISE = ("today", "new", "look", "again", "what")


def recorded(minutes: int, per_minute: int, seed: int = 1) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each minute, up to five seconds out of order."""
    dice = random.Random(seed)
    topics = [dice.choice(list(WORDS)) for _ in range(EVENTS)]
    usual = [1 / (1 + number % 13) for number in range(EVENTS)]
    dimensions = [*DIMENSIONS, "d-new"]
    for minute in range(minutes):
        burst = {(minute // 4 * 7 + number) % EVENTS for number in range(3)}
        weights = [w * (6 if n in burst else 1) for n, w in enumerate(usual)]
        rows = []
        for event in dice.choices(range(EVENTS), weights, k=per_minute):
            words = [*dice.choices(WORDS[topics[event]], k=2), *dice.choices(NOISE, k=3)]
            dice.shuffle(words)
            row = {
                "at": BEGIN + minute * MINUTE + dice.randrange(MINUTE),
                "type": dice.choice(("post", "post", "post", "like", "ad")),
                "event": f"event-{event}",
                "dimension": dice.choice(dimensions),
                "text": " ".join(words),
            }
            rows.append(row)
        rows.sort(key=lambda row: row["at"] + dice.randrange(5_000))
        yield rows
