"""Counts by many dimensions: one event adds to the totals of its country, its app and its error.

    headrace bus append calls calls.jsonl --infer --time at
    headrace run dimension_counts.py
    headrace bus tail totals --follow

A task combines the counts of an epoch in memory, so it sends one row for each dimension to the task
that keeps its total. With REDIS_URL set, totals are on that server, for any program to read:

    python -c "import dimension_counts as d; print(dict(d.ON_REDIS.totals(d.Dimensions).items()))"
"""

import os
from collections.abc import Iterator
from typing import Any

import headrace as hr

KEY = {"dimension": str, "of": str}
ON_REDIS = hr.sinks.redis_partials("${REDIS_URL}", "dimension-counts:")


class Dimensions(hr.MonoidProcessor[tuple[str, str], dict[str, int]]):
    """Calls, and the slowest of them, by each dimension of a call."""

    def process(self, call: Any) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
        for dimension in ("country", "app", "error"):
            value = getattr(call, dimension)
            if value is not None:
                yield (dimension, value), {"calls": 1, "slowest_ms": call.took_ms}

    def identity(self) -> dict[str, int]:
        return {"calls": 0, "slowest_ms": 0}

    def combine(self, first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
        return {
            "calls": first["calls"] + second["calls"],
            "slowest_ms": max(first["slowest_ms"], second["slowest_ms"]),
        }

    def result(self, total: dict[str, int]) -> list[int]:
        return [total["calls"], total["slowest_ms"]]


@hr.job("dimension-counts")
def dimension_counts(g: hr.Graph) -> None:
    calls = g.input("calls", time="at")
    if "REDIS_URL" in os.environ:
        calls.monoid(Dimensions, KEY, state=ON_REDIS)
    else:
        calls.monoid(Dimensions, KEY, every="1m").send_to(g.output("totals"))
