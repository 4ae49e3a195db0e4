"""``headrace state`` over what processors with contracts keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver


class Letters(hr.MonoidProcessor[tuple[str, int], list[int]]):
    def process(self, event: Any) -> Iterator[tuple[tuple[str, int], list[int]]]:
        yield (event.word[0], len(event.word)), [event.n]

    def identity(self) -> list[int]:
        return []

    def combine(self, first: list[int], second: list[int]) -> list[int]:
        return first + second


class Last(hr.StatefulProcessor[dict[str, int]]):
    def begin(self) -> dict[str, int]:
        return {"times": 0, "last": 0}

    def process(self, event: Any, state: dict[str, int]) -> tuple[None, dict[str, int]]:
        return None, {"times": state["times"] + 1, "last": event.n}


@hr.job("kept")
def kept(g: hr.Graph) -> None:
    words = g.input("words")
    words.monoid(Letters, {"letter": str, "length": int}, name="letters")
    words.monoid(Letters, {"letter": str, "length": int}, store="memory", name="other")
    words.partition_by("word").process(Last, name="last")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(kept, tasks=3, home=tmp_path, key_groups=16) as made:
        made.create("words", {"word": pa.string(), "n": pa.int64()})
        made.feed("words", [{"word": "ab"[n % 2] * (1 + n % 3), "n": n} for n in range(9)])
        made.run()
        yield made


def state(driver: TestDriver, *words: object) -> list[dict[str, Any]]:
    text = done("state", *words, "--json", "--home", driver.home)
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("store", ["letters", "other"])
def test_totals_of_a_monoid_are_shown_as_they_are_kept(driver: TestDriver, store: str) -> None:
    (row,) = state(driver, "get", "kept", store, "a", "3")
    assert (row["letter"], row["length"]) == ("a", 3)
    assert json.loads(row["value.state"]) == [2, 8]
    assert len(state(driver, "scan", "kept", store)) == 6


def test_the_state_of_a_key_is_a_value(driver: TestDriver) -> None:
    (row,) = state(driver, "get", "kept", "last.state", "bb")
    assert row["value"] == {"times": 2, "last": 7}
