"""What a timer finds depends on the log: a key whose rows come in one order sees one history."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

GAP = 40
LATENESS = 5
VIA = ["exchange"]
Told = dict[int, list[tuple[str, int, int]]]


class Teller:
    """Counts rows; each sets a timer ``after`` its time, and a timer may set another."""

    def process(self, row: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        seen.put(row.k, seen.get(row.k, 0) + 1)
        context.emit({"k": row.k, "what": "row", "due": row.at, "seen": seen.get(row.k)})
        if row.after == 0:
            context.cancel_timer(row.at, "again")
        else:
            context.set_timer(row.at + row.after, "first")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        seen = context.store("seen").get(timer.key)
        context.emit({"k": timer.key, "what": timer.name, "due": timer.at, "seen": seen})
        if timer.name == "first":
            context.set_timer(timer.at + GAP, "again")


@hr.job("told")
def told(g: hr.Graph) -> None:
    """Timers, and windows of what they send."""
    rows = g.input("in", time="at", out_of_orderness=f"{LATENESS}ms").partition_by("k", via=VIA[0])
    made = rows.process(
        Teller, stores={"seen": int}, returns={"k": int, "what": str, "due": int, "seen": int}
    )
    made.send_to(g.output("out"))
    by_kind = made.partition_by("k", "what", via=VIA[0])
    by_kind.window(hr.tumbling(f"{GAP}ms"), n=hr.agg.count()).send_to(g.output("windows"))


Row = tuple[int, int, int]


def run(rows: list[Row], cuts: list[int], crash_at: int = -1) -> tuple[Told, dict[Any, int]]:
    """What each key was told, and the windows; epochs end at the cuts."""
    with TestDriver(told, tasks=2, key_groups=4) as driver:
        columns = {"k": pa.int64(), "at": pa.int64(), "after": pa.int64()}
        driver.create("in", columns, time="at")
        for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            fed = [{"k": k, "at": at, "after": after} for k, at, after in rows[begin:end]]
            if fed:
                driver.feed("in", fed)
            if number == crash_at:
                driver.advance_with_crash("slot.ran")
                driver.advance_with_crash("commit.published")
            driver.run()
        driver.finish()
        found: Told = defaultdict(list)
        for row in driver.output("out"):
            found[row["k"]].append((row["what"], row["due"], row["seen"]))
        windows = {
            (row["k"], row["what"], row["window_start"]): row["n"]
            for row in driver.output("windows")
        }
        return dict(found), windows


def model(rows: list[Row]) -> Told:
    """Row by row: what has passed for a row fires before it."""
    told: Told = defaultdict(list)
    timers: dict[int, set[tuple[int, str]]] = defaultdict(set)
    seen: dict[int, int] = defaultdict(int)
    highest: int | None = None

    def fire(k: int, upto: int) -> None:
        while due := sorted(
            ((at, name) for at, name in timers[k] if at <= upto), key=lambda one: (one[0], one[1])
        ):
            at, name = due[0]
            timers[k].discard((at, name))
            told[k].append((name, at, seen[k]))
            if name == "first":
                timers[k].add((at + GAP, "again"))

    for k, at, after in rows:
        fire(k, at if highest is None else highest - LATENESS)
        highest = at if highest is None else max(highest, at)
        seen[k] += 1
        told[k].append(("row", at, seen[k]))
        if after == 0:
            timers[k].discard((at, "again"))
        else:
            timers[k].add((at + after, "first"))
    assert highest is not None
    for k, count in seen.items():
        fire(k, highest - LATENESS)
        told[k] += [(name, at, count) for at, name in sorted(timers[k])]
    return dict(told)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(-150, 150), st.sampled_from([-60, -10, 0, 1, 10, 35, 90])
    ),
    min_size=1,
    max_size=14,
)


@given(rows=ROWS, data=st.data())
@settings(max_examples=examples(6))
def test_a_key_sees_one_history_however_epochs_are_cut(rows: list[Row], data: Any) -> None:
    VIA[0] = data.draw(st.sampled_from(["exchange", "bus"]))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=4)))
    expected = model(rows)
    whole, windows = run(rows, [])
    assert expected == whole
    found, found_windows = run(rows, cuts, crash_at=data.draw(st.integers(-1, len(cuts))))
    assert expected == found
    assert windows == found_windows


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2], [1, 2, 3]])
def test_a_timer_fires_before_the_first_row_that_is_past_it(cuts: list[int]) -> None:
    """The second row brings the watermark past the timer; the third is past it; others are not."""
    rows = [(1, 100, 10), (1, 200, 500), (1, 210, 500), (2, 300, 500)]
    found, _ = run(rows, cuts)
    assert found[1][:4] == [("row", 100, 1), ("row", 200, 2), ("first", 110, 2), ("again", 150, 2)]
    assert found[1][4] == ("row", 210, 3)


@pytest.mark.parametrize("cuts", [[], [3], [3, 4]])
def test_a_timer_that_a_row_cancels_before_its_turn_does_not_fire(cuts: list[int]) -> None:
    rows = [(1, at, after) for at, after in ((100, 10), (120, 500), (130, 500), (150, 0))]
    rows += [(1, 170, 500), (1, 180, 500)]
    found, _ = run(rows, cuts)
    assert ("first", 110, 2) in found[1]
    assert 150 not in [due for what, due, _ in found[1] if what == "again"]


@given(
    logs=st.tuples(ROWS, ROWS),
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), max_size=5),
)
@settings(max_examples=examples(6))
def test_a_timer_comes_after_all_rows_before_its_time(
    logs: tuple[list[Row], list[Row]], steps: list[tuple[int, int]]
) -> None:
    """Also those of another partition, however far each was read; but not late ones."""
    VIA[0] = "exchange"
    with TestDriver(told, tasks=2, key_groups=4) as driver:
        columns = {"k": pa.int64(), "at": pa.int64(), "after": pa.int64()}
        driver.create("in", columns, partitions=2, time="at")
        fed = [0, 0]
        for partition, count in [*steps, (0, 99), (1, 99)]:
            begin = fed[partition]
            rows = logs[partition][begin : begin + count]
            fed[partition] += len(rows)
            if rows:
                names = ("k", "at", "after")
                fed_rows = [dict(zip(names, row, strict=True)) for row in rows]
                driver.feed("in", fed_rows, partition)
            if (partition, count) != (0, 99):
                driver.run()
        driver.finish()
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for row in driver.output("out"):
            found[row["k"]].append((row["what"], row["due"]))
    late = {(k, at) for log in logs for k, at in late_rows(log)}
    assert sum(what == "row" for told in found.values() for what, _ in told) == sum(map(len, logs))
    for k, history in found.items():
        for place, (what, due) in enumerate(history):
            after = [at for kind, at in history[place + 1 :] if kind == "row"]
            if what == "first":
                assert [at for at in after if at < due and (k, at) not in late] == []


def late_rows(log: list[Row]) -> list[tuple[int, int]]:
    found, highest = [], None
    for k, at, _ in log:
        if highest is not None and at < highest - LATENESS:
            found.append((k, at))
        highest = at if highest is None else max(highest, at)
    return found
