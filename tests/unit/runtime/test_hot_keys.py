"""Which keys are the heaviest: against exact counts, whatever the chunks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.keys import decode_key
from headrace.runtime.chunk import Chunk
from headrace.runtime.exchange import (
    COUNTERS,
    DRAWN_A_SECOND,
    HALF_LIFE_S,
    REPORT_EVERY_S,
    HotKeySketch,
)
from headrace.runtime.orders import REPORTED_KEYS, HotKeys, TaskReport, decode_report, encode
from headrace.runtime.orders import SlotReport as Report


def chunk(users: object) -> Chunk:
    return Chunk(pa.record_batch({"user": pa.array(users), "n": pa.nulls(len(users))}))  # type: ignore[arg-type]


def shares(told: HotKeys | None) -> dict[object, float]:
    assert told is not None
    return {decode_key(one.key)[0]: one.rows / told.rows for one in told.keys}


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=50), min_size=1, max_size=8)
)
def test_of_few_rows_every_one_counts(chunks: list[list[str]]) -> None:
    sketch = HotKeySketch("by", ("user",))
    for users in chunks:
        sketch.see(chunk(users))
    told = sketch.report(0.0)
    assert told is not None
    exact = Counter(user for users in chunks for user in users)
    assert {decode_key(one.key)[0]: one.rows for one in told.keys} == exact
    assert [one.rows for one in told.keys] == sorted(exact.values(), reverse=True)
    assert (told.rows, told.slack, told.operator, told.columns) == (
        *(sum(exact.values()), 0.0, "by"),
        ("user",),
    )


@pytest.mark.parametrize("size", [1_000, 65_536, 1_000_000])
def test_of_many_rows_shares_are_about_right(size: int) -> None:
    """A fifth of the rows are of one key, a tenth of another, the others of a million."""
    lots = np.random.default_rng(7)
    users = lots.integers(1000, 1_000_000, 1_000_000)
    users[lots.random(len(users)) < 0.2] = 1
    users[lots.random(len(users)) < 0.1] = 2
    exact = Counter(users.tolist())
    sketch = HotKeySketch("by", ("user",))
    for begin in range(0, len(users), size):
        sketch.see(chunk(users[begin : begin + size]))
    told = sketch.report(0.0)
    assert told is not None
    found = shares(told)
    assert list(found)[:2] == [1, 2]
    assert len(found) <= REPORTED_KEYS
    for key in (1, 2):
        off = told.slack / told.rows + 0.03  # three times the deviation of 2,048 rows
        assert found[key] == pytest.approx(exact[key] / len(users), abs=off)
    assert told.slack <= told.rows / (COUNTERS + 1)
    assert told.rows == pytest.approx(len(users), rel=0.05)


def test_keys_that_come_in_turn_have_equal_shares() -> None:
    """A draw at fixed distances would see one of them only."""
    sketch = HotKeySketch("by", ("user",))
    for _ in range(20):
        sketch.see(chunk(np.arange(65_536) % 64))
    told = sketch.report(0.0)
    assert told is not None
    assert max(shares(told).values()) < 3 / 64


def test_few_rows_a_second_are_drawn_however_many_go_through() -> None:
    sketch, drawn = HotKeySketch("by", ("user",)), 0
    rows = chunk(np.arange(65_536) % 10)
    for second in range(60):
        for _ in range(100):
            before = sketch._held
            sketch.see(rows)
            drawn += max(0, sketch._held - before) if second > 10 else 0
        sketch.report(float(second))
    assert 0 < drawn < 49 * 2 * DRAWN_A_SECOND
    told = sketch.report(100.0)
    assert told is None or max(shares(told).values()) < 0.2


def test_what_is_old_counts_less() -> None:
    sketch = HotKeySketch("by", ("user",))
    sketch.see(chunk(["old"] * 100))
    sketch.report(0.0)
    sketch.see(chunk(["new"]))
    told = sketch.report(HALF_LIFE_S)
    assert told is not None
    assert {decode_key(one.key)[0]: one.rows for one in told.keys} == {"old": 50, "new": 0.5}


def test_it_tells_at_once_then_now_and_then() -> None:
    sketch = HotKeySketch("by", ("user",))
    assert sketch.report(0.0) is None
    sketch.see(chunk(["a", "b"]))
    assert sketch.report(0.0) is not None
    sketch.see(chunk(["a"]))
    assert sketch.report(1.0) is None
    sketch.see(chunk(["a"] * 5))  # more than all so far
    assert sketch.report(2.0) is not None
    assert sketch.report(2.0 + 9 * REPORT_EVERY_S) is None  # nothing new


def test_keys_of_several_columns_and_nulls_have_names() -> None:
    sketch = HotKeySketch("by", ("user", "shop"))
    rows = pa.record_batch({"user": ["ann", None, "ann"], "shop": pa.array([1, 2, 1])})
    sketch.see(Chunk(rows))
    told = sketch.report(0.0)
    assert told is not None
    assert [decode_key(one.key) for one in told.keys] == [("ann", 1), (None, 2)]


def test_what_is_told_travels_as_json() -> None:
    sketch = HotKeySketch("by", ("user",))
    sketch.see(chunk(["a", "b", "a"]))
    told = sketch.report(0.0)
    assert told is not None
    report = Report(0, "a", "h", 1, [TaskReport("s", 0, stores={"t": 5}, hot_keys=[told])])
    assert decode_report(encode(report)) == report
