"""Windows of so many messages and of all of them, keyed or not, with and without event time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"k": pa.string(), "v": pa.int64(), "at": pa.int64()}
Row = tuple[str | None, int]


def make_job(size: int, store: str, *, timed: bool, keyed: bool) -> Any:
    @hr.job("untimed")
    def untimed(g: hr.Graph) -> None:
        source = g.input("in", time="at" if timed else None)
        stream = source.partition_by("k") if keyed else source
        order = hr.agg.monoid(
            [], lambda v: [v], lambda a, b: [*a, *b], returns=list[int], columns="v"
        )
        counted = stream.window(
            hr.count_window(size), store=store, name="counted", n=hr.agg.count(), order=order
        )
        counted.send_to(g.output("counted"))
        whole = stream.window(
            hr.global_window(), store=store, name="whole", n=hr.agg.count(), order=order
        )
        whole.send_to(g.output("whole"))
        if timed:
            counted.window(hr.tumbling("10ms"), s=hr.agg.sum("n"), m=hr.agg.count()).send_to(
                g.output("later")
            )

    return untimed


def expect(log: list[Row], size: int, *, keyed: bool) -> tuple[Any, Any]:
    """What each key has: windows in order, and the whole."""
    by_key: dict[Any, list[int]] = defaultdict(list)
    for key, value in log:
        by_key[key if keyed else ""].append(value)
    counted = {
        key: [values[at : at + size] for at in range(0, len(values), size)]
        for key, values in by_key.items()
    }
    return counted, dict(by_key)


def create(driver: TestDriver) -> None:
    driver.create("in", COLUMNS, time="at")


@given(data=st.data())
@settings(max_examples=examples(8))
def test_windows_of_messages_equal_slices_of_the_log(data: Any) -> None:
    """Every n in the order of arrival, the rest at the end, over any epochs and crashes."""
    log = data.draw(
        st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 99)), max_size=40)
    )
    size, store = (
        data.draw(st.sampled_from([1, 3, 7])),
        data.draw(st.sampled_from(["columnar", "memory"])),
    )
    timed, keyed = data.draw(st.booleans()), data.draw(st.booleans())
    job = make_job(size, store, timed=timed, keyed=keyed)

    def feed(driver: TestDriver, begin: int, end: int) -> None:
        rows = [
            {"k": key, "v": value, "at": number - 20}
            for number, (key, value) in enumerate(log[begin:end], begin)
        ]
        driver.feed("in", rows)

    with played(job, len(log), data, create, feed) as driver:
        counted, whole = expect(log, size, keyed=keyed)
        found: dict[Any, list[list[int]]] = defaultdict(list)
        for row in driver.output("counted"):
            assert row["n"] == len(row["order"])
            found[row.get("k", "")].append(row["order"])
        assert {key: sorted(lists) for key, lists in counted.items()} == {
            key: sorted(lists) for key, lists in found.items()
        }
        rows = driver.output("whole")
        assert whole == {row.get("k", ""): row["order"] for row in rows}
        assert len(whole) == len(rows)
        if timed:
            later = driver.output("later")
            assert len(log) == sum(row["s"] for row in later)
            heads = [(row.get("k", ""), row["window_start"]) for row in later]
            assert len(heads) == len(set(heads)), "a window that was out came again"
        for name in ("counted", "whole"):
            kept = driver.table(name) if store == "columnar" else driver.raw_store(name)
            assert not kept


@pytest.mark.parametrize("store", ["columnar", "memory"])
def test_an_epoch_may_fill_the_open_window_and_whole_ones(store: str) -> None:
    """What was open counts in the first of them only, and a full one leaves nothing behind."""
    with TestDriver(make_job(3, store, timed=False, keyed=True)) as driver:
        create(driver)
        for begin, end in ((0, 1), (1, 8), (8, 9), (9, 11)):
            driver.feed("in", [{"k": "a", "v": v, "at": 0} for v in range(begin, end)])
            driver.run()
        driver.finish()
        found = [row["order"] for row in driver.output("counted")]
        assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
