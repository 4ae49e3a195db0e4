"""Totals of monoids in a real PostgreSQL: each row is added once, whatever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.conftest import ask

import headrace as hr
from headrace import Job
from headrace.testing import TestDriver

COLUMNS = {"page": pa.string(), "n": pa.int64()}
POINTS = ["epoch.planned", "slot.ran", "epoch.before_commit", "commit.published", "sink.sent"]


class Clicks(hr.MonoidProcessor[tuple[str | None, int], int]):
    def process(self, event: Any) -> Iterator[tuple[tuple[str | None, int], int]]:
        yield (event.page, event.n % 3), event.n
        yield (None, 0), event.n

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


def job(url: str) -> Job:
    @hr.job("clicks")
    def clicks(g: hr.Graph) -> None:
        state = hr.sinks.postgres_partials(url, "clicks")
        g.input("in").monoid(Clicks, {"page": str, "third": int}, state)

    return clicks


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_adds_each_row_once(url: str, point: str) -> None:
    dice, wanted = random.Random(1), Counter[tuple[str | None, int]]()
    with TestDriver(job(url), tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=3)
        for nth in (1, 2, 1):
            rows: list[dict[str, Any]] = [
                {"page": f"p{dice.randrange(5)}", "n": dice.randrange(1, 50)} for _ in range(40)
            ]
            for row in rows:
                wanted[row["page"], row["n"] % 3] += row["n"]
                wanted[None, 0] += row["n"]
            driver.feed("in", rows)
            assert driver.advance_with_crash(point, nth) or nth > 1
            driver.run()
            with hr.sinks.postgres_partials(url, "clicks").totals(Clicks) as view:
                assert dict(view.items()) == wanted
                assert view.get_many([("p1", 0), ("none", 0)]) == [wanted["p1", 0], 0]
                some = dict(view.items({"page": ["p1"]}))
            assert some == {key: n for key, n in wanted.items() if key[0] == "p1"}
    assert len(ask(url, "SELECT page, third FROM clicks")) == len(wanted)
