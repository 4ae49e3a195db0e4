"""Stores without a changelog: right while their process lives, empty when it is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import changes, explain, plan

import headrace as hr
from headrace.testing import TestDriver

KINDS = ["memory", "rocksdb"]


class Both:
    """Counts in two stores and sends what both say."""

    def process(self, message: Any, context: hr.Context) -> None:
        counts = {}
        for name in ("kept", "lost"):
            store = context.store(name)
            store.put(message.id, store.get(message.id, 0) + 1)
            counts[name] = store.get(message.id)
        context.emit({"id": message.id, **counts})


def counting(kind: str, *, changelog: bool = False) -> hr.Job:
    @hr.job("both")
    def both(g: hr.Graph) -> None:
        stores = [hr.store("kept", int, kind), hr.store("lost", int, kind, changelog=changelog)]
        returns = {"id": int, "kept": int, "lost": int}
        stream = g.input("in", schema={"id": int}).partition_by("id")
        stream.process(Both, stores, returns=returns, name="both").send_to(g.output("out"))

    return both


def opened(kind: str, **options: Any) -> TestDriver:
    driver = TestDriver(counting(kind), **options)
    driver.create("in", {"id": pa.int64()}, key=["id"])
    driver.start()
    return driver


def feed(driver: TestDriver, *ids: int) -> list[tuple[int, int]]:
    """Feed and run; returns (kept, lost) of each row that came out."""
    before = len(driver.output("out"))
    driver.feed("in", [{"id": one} for one in ids])
    driver.run()
    return [(row["kept"], row["lost"]) for row in driver.output("out")[before:]]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_kept_from_epoch_to_epoch_and_nothing_of_it_is_logged(kind: str) -> None:
    with opened(kind, tasks=1) as driver:
        for number in range(1, 4):
            assert feed(driver, 1) == [(number, number)]
        assert driver.store("kept") == {1: 3}
        assert driver.store("lost") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_empty_when_the_host_is_lost(kind: str) -> None:
    with opened(kind, tasks=1) as driver:
        feed(driver, 1, 1)
        driver.crash(lose_hosts=[0])
        assert feed(driver, 1) == [(3, 1)]
        assert feed(driver, 1) == [(4, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_empty_where_the_process_ended_before_it_held_the_last_epoch(kind: str) -> None:
    """What is on disk of earlier epochs must not pass for all."""
    with opened(kind, tasks=1) as driver:
        feed(driver, 1)
        feed(driver, 1)
        driver.crash()
        assert feed(driver, 1) == [(3, 1)]
        assert feed(driver, 1) == [(4, 2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["slot.segment_written", "epoch.before_commit"])
def test_what_was_not_committed_is_not_in_it(kind: str, point: str) -> None:
    """An epoch that is run again counts once, and never more than the logged store has."""
    with opened(kind, tasks=1, slots=1) as driver:
        feed(driver, 1)
        driver.feed("in", [{"id": 1}])
        assert driver.advance_with_crash(point)
        driver.run()
        last = driver.output("out")[-1]
        assert last["kept"] == 2
        assert last["lost"] in (1, 2)
        assert feed(driver, 1) == [(3, last["lost"] + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_lost_is_not_in_it(kind: str) -> None:
    """Two attempts of a slot answer: only the one that was committed counts."""
    with opened(kind, tasks=1, slots=1) as driver:
        driver.runner.doubled = "last"
        assert feed(driver, 1) == [(1, 1)]
        assert feed(driver, 1) == [(2, 2)]


def test_explain_says_so_and_a_change_of_it_is_refused() -> None:
    without, with_log = (
        plan(counting("memory", changelog=logged).build(), {}) for logged in (False, True)
    )
    text = " ".join(explain(without).split())
    assert "store lost (memory, no changelog): not durable; empty again when its process" in text
    assert "store kept (memory)" in text
    assert changes(without.fingerprint, with_log.fingerprint) != []
