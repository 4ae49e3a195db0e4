"""Results of count and global windows with each so many messages, or as event time goes on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import rough_step
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"k": pa.string(), "v": pa.int64(), "at": pa.int64()}
UPDATES = ["replace", "retract", "add"]
Row = tuple[str | None, int, int]
Change = tuple[tuple[int, ...], bool]


def make_job(window: Any, store: str) -> Any:
    @hr.job("changes")
    def changes(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        order = hr.agg.monoid(
            [], lambda v: [v], lambda a, b: [*a, *b], returns=list[int], columns="v"
        )
        made = keyed.window(window, store=store, name="w", n=hr.agg.count(), order=order)
        made.send_to(g.output("out"))

    return changes


def run(data: Any, window: Any, log: list[Row]) -> dict[Any, list[Change]]:
    """Return what was sent for each key, in order."""
    store = data.draw(st.sampled_from(["columnar", "memory"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=4)))
    max_rows = data.draw(st.sampled_from([1, 5, 1000]))
    with TestDriver(make_job(window, store), tasks=2, key_groups=8, max_rows=max_rows) as driver:
        driver.create("in", COLUMNS, time="at")
        for begin, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
            driver.feed("in", [{"k": k, "v": v, "at": at} for k, v, at in log[begin:end]])
            if end < len(log):
                rough_step(driver, data)
        driver.finish()
        found: dict[Any, list[Change]] = defaultdict(list)
        for row in driver.output("out"):
            assert row["n"] == len(row["order"])
            found[row["k"]].append((tuple(row["order"]), row.get("is_retraction", False)))
    return dict(found)


def changes(steps: list[list[int]], updates: str) -> list[Change]:
    """What a window sends that gets so many values at a time."""
    sent: list[Change] = []
    so_far: tuple[int, ...] = ()
    for step in steps:
        if updates == "retract" and so_far:
            sent.append((so_far, True))
        so_far = (*so_far, *step)
        sent.append((tuple(step) if updates == "add" else so_far, False))
    return sent


def cut(values: list[int], size: int) -> list[list[int]]:
    """Cut values in pieces of a size, the last one smaller."""
    return [values[at : at + size] for at in range(0, len(values), size)]


rows = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 99)), max_size=50)


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize(("size", "step"), [(7, 3), (6, 2), (None, 4)])
@given(data=st.data())
@settings(max_examples=examples(3))
def test_results_come_with_each_so_many_messages(
    size: int | None, step: int, updates: str, data: Any
) -> None:
    log = [(k, v, at) for at, (k, v) in enumerate(data.draw(rows), -25)]
    if size is None:
        window: Any = hr.global_window(rows=step, updates=updates)
    else:
        window = hr.count_window(size, updates=updates, early_rows=step)
    expected = {}
    for key in {k for k, _, _ in log}:
        values = [v for k, v, _ in log if k == key]
        windows = cut(values, size or 1000)
        expected[key] = [one for own in windows for one in changes(cut(own, step), updates)]
    assert run(data, window, log) == expected


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("when", ["every", "idle"])
@given(data=st.data())
@settings(max_examples=examples(3))
def test_totals_change_as_event_time_goes_on(when: str, updates: str, data: Any) -> None:
    """The log of one partition decides; a record behind the watermark counts from that on."""
    step = 5
    drawn = data.draw(st.lists(st.integers(-30, 30), max_size=30))
    log: list[Row] = [
        (data.draw(st.sampled_from(["a", "b"])), value, at) for value, at in enumerate(drawn)
    ]
    window = hr.global_window(**{when: f"{step}ms"}, updates=updates)  # type: ignore[arg-type]
    steps: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    highest, last = -30, dict[Any, tuple[int, int]]()
    for key, value, at in log:
        seen, highest = max(at, highest), max(at, highest)
        group = seen // step
        if when == "idle":
            before, group = last.get(key, (-100, -1))
            group += seen - before >= step
            last[key] = (seen, group)
        steps[key][group].append(value)
    expected = {key: changes(list(own.values()), updates) for key, own in steps.items()}
    assert run(data, window, log) == expected
