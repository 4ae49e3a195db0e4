"""Early results of tumbling windows are a function of the log, whichever way they follow on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played_log, records
from tests.sim.window_model import COLUMNS, Case, Record, make_job, marked
from tests.support.soak import examples
from tests.support.windows import Tumbling

import headrace as hr
from headrace.testing import TestDriver

Row = tuple[Any, ...]


def expect(log: Sequence[Record], case: Case) -> tuple[Counter[Row], int]:
    """Each result that a step of a window makes, and how many records are late."""
    window = case.window
    assert isinstance(window, Tumbling)
    assert window.early_ms is not None
    size, step = window.size_ms, window.early_ms
    steps: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    late = 0
    for record, watermark in marked(log, case.lateness):
        start = record.at // size * size
        end = start + size
        if end + window.grace_ms <= watermark:
            late += 1
            continue
        ends = [*range(start + step, end, step), end]
        own = next(at for at in ends if at > record.at and (at > watermark or at == end))
        steps[record.key, start][own].append(record.value)
    found: Counter[Row] = Counter()
    for (key, start), results in steps.items():
        so_far: list[int] = []
        for at in sorted(results):
            if window.updates == "retract" and so_far:
                found[key, start, start + size, *stats(so_far), True] += 1
            so_far = [*so_far, *results[at]] if window.updates != "add" else results[at]
            found[key, start, start + size, *stats(so_far), False] += 1
    return found, late


def stats(values: list[int]) -> Row:
    return (len(values), sum(values), max(values), tuple(sorted(values)))


@pytest.mark.parametrize("updates", ["replace", "retract", "add"])
@given(data=st.data())
@settings(max_examples=examples(8))
def test_early_results_equal_the_model(updates: str, data: Any) -> None:
    """Any order of arrival, any epochs, crashes and lost disks, in batches of a few rows."""
    log = data.draw(st.lists(records, max_size=40))
    grace = data.draw(st.sampled_from(["0ms", "13ms"]))
    early = data.draw(st.sampled_from(["5ms", "8ms"]))
    window = hr.tumbling("20ms", grace, updates=updates, early=early)
    store = data.draw(st.sampled_from(["columnar", "memory"]))
    case = Case(window, store, data.draw(st.sampled_from([0, 6])))
    with played_log(make_job(case), log, data) as driver:
        rows = [
            (
                row["k"],
                round(row["window_start"].timestamp() * 1000),
                round(row["window_end"].timestamp() * 1000),
                *(row["n"], row["s"], row["hi"], tuple(row["bag"])),
                row.get("is_retraction", False),
            )
            for row in driver.output("out")
        ]
        expected, late = expect(log, case)
        assert expected == Counter(rows)
        assert late == driver.coordinator.state.counts.get("late", 0)
        if updates == "retract":
            _check_order(rows)
        kept = driver.table("w") if store == "columnar" else driver.raw_store("w")
        assert not kept


def _check_order(rows: Sequence[Row]) -> None:
    """What is taken back was the newest result of its window, and the next row replaces it."""
    newest: dict[Row, Row | None] = {}
    for *row, is_retraction in rows:
        window = tuple(row[:3])
        assert newest.get(window) == (tuple(row) if is_retraction else None)
        newest[window] = None if is_retraction else tuple(row)


def test_early_results_come_with_the_watermark() -> None:
    """A step that the watermark has not passed sends nothing; a quiet key sends no more."""
    window = hr.tumbling("20ms", early="5ms")
    with TestDriver(make_job(Case(window)), tasks=1) as driver:
        driver.create("in", COLUMNS, time="at")
        seen = []
        for at in (1, 4, 5, 12, 21, 26):
            driver.feed("in", [{"k": "a", "v": at, "at": at}])
            driver.run()
            seen.append([row["s"] for row in driver.output("out")])
        assert seen == [[], [], [5], [5, 10], [5, 10, 22], [5, 10, 22, 21]]


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (hr.tumbling("1h", early="1h"), "early is '1h'; expected less than the size"),
        (hr.tumbling("1h", early="soon"), "early is 'soon'; expected a duration"),
        (hr.tumbling("1h", updates="add"), "updates='add' is for late=\"update\" or early results"),
        (hr.tumbling("1h", "5m", "update", "add"), 'updates="add" is for early results'),
        (hr.tumbling("1h", updates="both", early="1m"), "updates is 'both'; expected one of"),
    ],
)
def test_mistakes_are_told(window: Tumbling, message: str) -> None:
    assert message in "; ".join(window.mistakes)
