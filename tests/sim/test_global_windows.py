"""Global windows that send results before the end: by messages, by event time, when idle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played_log, records
from tests.sim.window_model import COLUMNS, Record, marked
from tests.support.soak import examples
from tests.support.windows import GlobalWindow

import headrace as hr
from headrace.testing import TestDriver

Row = tuple[Any, ...]
LATENESS = 6


def make_job(window: GlobalWindow, store: str, *, keyed: bool) -> Any:
    @hr.job("whole")
    def whole(g: hr.Graph) -> None:
        source = g.input("in", time="at", out_of_orderness=f"{LATENESS}ms")
        stream = source.partition_by("k") if keyed else source
        bag = hr.agg.monoid(
            [], lambda v: [v], lambda a, b: sorted([*a, *b]), returns=list[int], columns="v"
        )
        stream.window(window, store=store, name="w", n=hr.agg.count(), bag=bag).send_to(
            g.output("out")
        )

    return whole


def by_time(log: Sequence[Record], moments: Callable[[list[int]], dict[int, int]]) -> Counter[Row]:
    """Totals of each key at the moments that its effective times lead to."""
    times: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for record, watermark in marked(log, LATENESS):
        times[record.key].append((max(record.at, watermark), record.value))
    found: Counter[Row] = Counter()
    for key, rows in times.items():
        sent_at = moments([at for at, _ in rows])
        for moment in sorted(set(sent_at.values())):
            bag = sorted(value for at, value in rows if sent_at[at] <= moment)
            found[key, moment, len(bag), tuple(bag)] += 1
    return found


def multiples(times: list[int]) -> dict[int, int]:
    return {at: at // 10 * 10 + 10 for at in times}


def quiet(times: list[int]) -> dict[int, int]:
    """When the key is next without a message for 5 ms."""
    found, ordered = {}, sorted(set(times), reverse=True)
    end, after = 0, None
    for at in ordered:
        if after is None or after - at >= 5:
            end = at + 5
        found[at], after = end, at
    return found


@pytest.mark.parametrize("kind", ["every", "idle"])
@given(data=st.data())
@settings(max_examples=examples(8))
def test_results_by_event_time_equal_the_model(kind: str, data: Any) -> None:
    """No record is late, whatever the order of arrival, the epochs and the crashes."""
    log = data.draw(st.lists(records, max_size=40))
    is_every = kind == "every"
    window = hr.global_window(every="10ms") if is_every else hr.global_window(idle="5ms")
    expected = by_time(log, multiples if is_every else quiet)
    assert expected == run(log, window, data, keyed=True)


def run(
    log: Sequence[Record], window: GlobalWindow, data: Any, *, keyed: bool
) -> Counter[Row] | list[Row]:
    """Return what is sent, in small steps with crashes between."""
    store = data.draw(st.sampled_from(["columnar", "memory"]))
    job = make_job(window, store, keyed=keyed)
    with played_log(job, log, data) as driver:
        assert not driver.coordinator.state.counts.get("late")
        rows = driver.output("out")
    if window.rows is not None:
        return [(row.get("k"), row["n"], row["bag"]) for row in rows]
    return Counter(
        (row["k"], round(row["at"].timestamp() * 1000), row["n"], tuple(row["bag"])) for row in rows
    )


@given(data=st.data())
@settings(max_examples=examples(8))
def test_results_by_messages_are_of_all_so_far(data: Any) -> None:
    """Each so many messages of a key, and the rest at the end, in the order of arrival."""
    drawn = data.draw(st.lists(records, max_size=40))
    log = [Record(0, record.key, record.value, record.at) for record in drawn]
    keyed, size = data.draw(st.booleans()), data.draw(st.sampled_from([1, 3, 7]))
    found: dict[Any, list[Row]] = defaultdict(list)
    for key, *row in run(log, hr.global_window(rows=size), data, keyed=keyed):
        found[key].append(tuple(row))
    values: dict[Any, list[int]] = defaultdict(list)
    for record in log:
        values[record.key if keyed else None].append(record.value)
    expected = {}
    for key, own in values.items():
        ends = [*range(size, len(own) + 1, size), *([len(own)] if len(own) % size else [])]
        expected[key] = [(end, sorted(own[:end])) for end in ends]
    # In which partition rows without a key are depends on the task, and so on rescales.
    assert expected == {key: sorted(rows) for key, rows in found.items()}


def test_a_key_that_is_quiet_is_sent_once_and_again_when_it_wakes() -> None:
    with TestDriver(make_job(hr.global_window(idle="10ms"), "columnar", keyed=True)) as driver:
        driver.create("in", COLUMNS, time="at")
        seen = []
        for key, at in (("a", 0), ("b", 15), ("b", 20), ("a", 40), ("b", 70)):
            driver.feed("in", [{"k": key, "v": 1, "at": at}])
            driver.run()
            seen.append([(row["k"], row["n"]) for row in driver.output("out")])
        assert seen[1:3] == [[], [("a", 1)]]
        assert sorted(seen[4]) == [("a", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (hr.global_window(rows=0), "rows is 0; expected a number above zero"),
        (hr.global_window(idle="long"), "idle is 'long'; expected a duration"),
        (hr.global_window(rows=2, idle="1s"), "takes one of rows, every and idle; found"),
    ],
)
def test_mistakes_are_told(window: GlobalWindow, message: str) -> None:
    assert message in "; ".join(window.mistakes)
