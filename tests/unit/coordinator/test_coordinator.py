"""The driver's shell: starting over, two of them, bounded runs, and state that no longer fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.hosts import copies_of_positions, stop_in_mid_epoch
from tests.support.limits import limit
from tests.support.runs import Epochs, drive

import headrace as hr
from headrace.bus import Fence, OffsetGoneError
from headrace.errors import (
    CorruptDataError,
    GraphError,
    InternalError,
    InvalidInputError,
    NotOwnerError,
)
from headrace.testing import DriverCrash, TestDriver, call_at

COLUMNS = {"k": pa.int64(), "v": pa.int64()}


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    source = g.input("in").partition_by("k")
    source.aggregate(name="totals", s=hr.agg.sum("v")).send_to(g.output("out"))


def driver_of(job: Any = sums, **options: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 2, "key_groups": 8, **options})
    driver.create("in", COLUMNS, partitions=2)
    return driver


def feed(driver: TestDriver, count: int = 10) -> None:
    for partition in range(2):
        driver.feed("in", [{"k": n % 4, "v": n} for n in range(count)], partition=partition)


def test_nothing_to_do_is_no_epoch() -> None:
    with driver_of() as driver:
        assert driver.advance() is None
        assert driver.coordinator.state.epoch == 0
        feed(driver)
        found = driver.advance()
        assert found is not None
        assert (found.epoch, found.rows, found.output_rows, found.lag) == (1, 20, 20, 0)
        assert driver.advance() is None
        assert driver.advance(force=True) is not None


def test_rows_of_a_key_come_in_the_order_of_their_partitions() -> None:
    """Whichever tasks and slots they were read by."""
    with TestDriver(sums, tasks=2, key_groups=8, slots=2) as driver:
        driver.create("in", COLUMNS, partitions=3)
        for partition, value in ((2, 100), (0, 1), (1, 10)):
            driver.feed("in", [{"k": 1, "v": value}], partition=partition)
        driver.advance()
        assert [row["s"] for row in driver.output("out")] == [1, 11, 111]


def test_a_task_that_has_one_key_group_is_run() -> None:
    with driver_of(tasks=8) as driver:
        for times in (1, 2):
            feed(driver)
            driver.advance()
            assert len(driver.output("out")) == 20 * times


def test_the_bus_refuses_an_older_driver_as_soon_as_a_newer_one_has_started() -> None:
    """Also where the newer one sends nothing, so that it asks the bus for nothing."""

    @hr.job("kept")
    def kept(g: hr.Graph) -> None:
        g.input("in").partition_by("k").aggregate(name="totals", s=hr.agg.sum("v"))

    with driver_of(kept) as driver:
        feed(driver)
        driver.run()
        older = Fence("kept", driver.start().generation)
        driver.start()
        with pytest.raises(NotOwnerError, match="was taken over by a newer driver"):
            driver.bus.stream("in").trim(0, 1, fence=older)


def test_an_older_driver_stops_at_its_next_commit() -> None:
    with driver_of() as driver:
        old = driver.start()
        new = driver.start()
        assert (old.generation, new.generation) == (1, 2)
        feed(driver)
        with pytest.raises(NotOwnerError, match=r"was taken over by a newer driver \(generation 2"):
            old.advance()
        assert new.advance() is not None
        assert new.state.epoch == 1


def test_a_bounded_run_ends_where_its_inputs_ended_when_it_began() -> None:
    """Also when it is started again, and never goes on after its end."""
    with driver_of(max_rows=6) as driver:
        bounded = replace(driver.settings.job, bounded=True)
        driver.settings = replace(driver.settings, job=bounded)
        feed(driver)
        driver.advance()
        feed(driver)
        driver.crash()
        driver.run()
        assert driver.coordinator.state.ended
        assert driver.coordinator.state.counts["in"] == 20
        assert len(driver.output("out")) == 20
        assert driver.advance(force=True) is None


def test_a_stream_and_a_bounded_run_send_the_same() -> None:
    found = []
    for bounded in (True, False):
        with driver_of(max_rows=1000 if bounded else 3) as driver:
            for _ in range(3):
                feed(driver)
                if not bounded:
                    driver.run()
            driver.finish()
            found.append(
                [[r for r in driver.output("out") if r["k"] == key][-1]["s"] for key in range(4)]
            )
    assert found[0] == found[1]


def test_another_number_of_tasks_is_refused_over_old_state(tmp_path: Path) -> None:
    """State is kept by task: with fewer of them, a part would silently be gone."""
    with driver_of(home=tmp_path, memory_bus=False) as driver:
        feed(driver)
        driver.run()
    other = TestDriver(sums, tasks=1, key_groups=8, home=tmp_path, memory_bus=False)
    with other, pytest.raises(InvalidInputError, match=r"tasks were 2, are now 1; .*set job.tasks"):
        other.start()
    same = TestDriver(sums, tasks=2, key_groups=8, home=tmp_path, memory_bus=False)
    with same:
        feed(same)
        same.run()
        assert sum(r["s"] for r in same.output("out")[-4:]) > 0


def test_the_number_of_key_groups_stays_that_of_creation(tmp_path: Path) -> None:
    with driver_of(home=tmp_path, memory_bus=False) as driver:
        feed(driver)
        driver.run()
    with TestDriver(sums, tasks=2, key_groups=64, home=tmp_path, memory_bus=False) as driver:
        assert driver.start().state.key_groups == 8


def test_a_changed_graph_over_old_state_is_refused(tmp_path: Path) -> None:
    @hr.job("sums")
    def other(g: hr.Graph) -> None:
        source = g.input("in").partition_by("k")
        source.aggregate(name="totals", s=hr.agg.max("v")).send_to(g.output("out"))

    with driver_of(home=tmp_path, memory_bus=False) as driver:
        feed(driver)
        driver.run()
    changed = TestDriver(other, tasks=2, key_groups=8, home=tmp_path, memory_bus=False)
    with (
        changed,
        pytest.raises(InvalidInputError, match=r"aggregates was s = sum\(v\), is now s ="),
    ):
        changed.start()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (Path.unlink, r"file segment/.* is missing before the commit"),
        (lambda path: path.write_bytes(b"ab"), r"file segment/.* has 2 bytes, expected \d{3,} bef"),
    ],
)
def test_files_that_vanish_before_the_commit_are_a_fault(
    spoil: Callable[[Path], object], text: str
) -> None:
    """What a manifest names is there and whole: the check comes before anything is visible."""
    with driver_of() as driver:
        feed(driver)
        driver.start()

        def spoil_all() -> None:
            for path in (driver.storage / "segment").iterdir():
                spoil(path)

        with call_at("epoch.before_commit", spoil_all), pytest.raises(InternalError, match=text):
            driver.advance()
        assert driver.coordinator.state.epoch == 0
        assert driver.output("out") == []
        assert driver.run() == 1


def test_a_crash_between_commit_and_publish_is_made_good_at_the_start() -> None:
    with driver_of() as driver:
        feed(driver)
        assert driver.advance_with_crash("commit.published")
        assert driver.output("out") == []
        driver.start()
        assert len(driver.output("out")) == 20


def test_only_named_crashes_are_caught() -> None:
    with driver_of() as driver, pytest.raises(InvalidInputError, match="unknown fault points"):
        driver.advance_with_crash("epoch.nowhere")
    assert not issubclass(DriverCrash, Exception)


def test_a_stop_leaves_what_was_not_reached_for_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit(monkeypatch, chunk_rows=3)
    with driver_of() as driver:
        for _ in range(5):
            feed(driver, 3)
        found = stop_in_mid_epoch(driver)
        assert found is not None
        assert found.rows == 6
        driver.run()
        assert driver.coordinator.state.counts["in"] == 30


def test_the_loop_runs_a_finished_job_to_its_end() -> None:
    with driver_of(max_rows=4) as driver:
        feed(driver)
        seen = Epochs()
        seen.finish()
        drive(driver, seen)
        assert driver.coordinator.state.ended
        assert [summary.epoch for summary in seen] == list(range(2, 2 + len(seen)))
        assert sum(summary.rows for summary in seen) == 20


def test_the_loop_stops_after_the_epoch_under_way() -> None:
    with driver_of(max_rows=2) as driver:
        feed(driver)
        seen = Epochs()
        drive(driver, seen, each=Epochs.stop, interval_ms=60_000)
        assert len(seen) == 1


def test_a_job_that_fell_behind_what_a_stream_keeps_says_so() -> None:
    """Nothing is skipped in silence; the error names what was wanted and what is kept."""
    with driver_of() as driver:
        feed(driver)
        driver.advance()
        feed(driver)
        stream = driver.bus.stream("in")
        assert stream.trim(1, 10) == 10
        assert driver.advance() is not None
        feed(driver)
        assert stream.trim(1, 30) == 30
        feed(driver)
        with pytest.raises(OffsetGoneError, match="offset 20 is gone, the oldest kept is 30"):
            driver.advance()


@pytest.mark.parametrize(
    ("own", "setting", "expected"),
    [
        (None, "earliest", [1, 2, 3, 4, 5]),
        (None, "latest", [5]),
        ("1970-01-01T00:00:00", "latest", [3, 4, 5]),
        (datetime(1970, 1, 1, 2, 0, 1, tzinfo=timezone(timedelta(hours=2))), "latest", [4, 5]),
        ("earliest", "1969-12-31T23:59:59", [1, 2, 3, 4, 5]),
        (None, "1969-12-31T23:59:59+00:00", [2, 3, 4, 5]),
    ],
)
def test_a_new_job_begins_where_it_is_told_to(own: Any, setting: str, expected: list[int]) -> None:
    """Its own word wins over the setting; later drivers go on where it is."""

    @hr.job("late")
    def late(g: hr.Graph) -> None:
        g.input("timed", start=own).send_to(g.output("out"))

    with TestDriver(late, start=setting) as driver:
        driver.create("timed", {"n": pa.int64(), "at": pa.int64()}, time="at")
        driver.feed("timed", [{"n": n, "at": 1000 * n - 3000} for n in (1, 2, 3, 4)])
        driver.start()
        driver.feed("timed", [{"n": 5, "at": 2000}])
        driver.crash()
        driver.run()
        assert expected == [row["n"] for row in driver.output("out")]


def test_a_start_that_cannot_be_is_refused() -> None:
    @hr.job("late")
    def late(g: hr.Graph) -> None:
        g.input("in", start="yesterday")

    with pytest.raises(GraphError, match="start is 'yesterday'; expected earliest, latest, or a"):
        late.build()
    with (
        driver_of(start="2013-01-31") as driver,
        pytest.raises(InvalidInputError, match="stream 'in' has no event-time column"),
    ):
        driver.start()


def test_a_new_job_begins_where_its_inputs_begin() -> None:
    with driver_of() as driver:
        feed(driver)
        driver.bus.stream("in").trim(1, 10)
        found = driver.advance()
        assert found is not None
        assert found.rows == 10


def test_a_stream_that_ends_before_what_was_read_is_found() -> None:
    """Rows that are lost never pass for nothing new."""
    with driver_of(memory_bus=False) as driver:
        feed(driver)
        driver.advance()
        driver.crash()
        for path in driver.home.glob("**/streams/in/p-00000/*-*"):
            path.unlink()
        with pytest.raises(CorruptDataError, match=r"'in' partition 0 ends at offset 0, .* to 10"):
            driver.advance()


@hr.job("minutes")
def minutes(g: hr.Graph) -> None:
    timed = g.input("timed", time="at").partition_by("k")
    timed.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("out"))


@pytest.mark.parametrize("memory_bus", [True, False])
def test_a_running_job_reads_partitions_that_are_added(memory_bus: bool) -> None:
    """At its next epoch, from their beginning; and so does its next driver."""
    with TestDriver(sums, tasks=2, key_groups=8, memory_bus=memory_bus) as driver:
        driver.create("in", COLUMNS, partitions=2)
        feed(driver)
        driver.advance()
        driver.bus.stream("in").configure(partitions=5)
        for partition in (2, 4):
            driver.feed("in", [{"k": 1, "v": 100}], partition=partition)
        found = driver.advance()
        assert found is not None
        assert (found.rows, found.lag) == (2, 0)
        driver.crash()
        driver.feed("in", [{"k": 1, "v": 1000}], partition=3)
        found = driver.advance()
        assert found is not None
        assert found.rows == 1
        totals = {row["k"]: row["s"] for row in driver.output("out")}
        assert totals[1] == 2 * (1 + 5 + 9) + 1200


def test_partitions_that_rest_hold_no_window_open() -> None:
    """They are read to their end, and from then on the others tell how far time has come."""
    with TestDriver(minutes, tasks=2, key_groups=8) as driver:
        driver.create("timed", {"k": pa.int64(), "at": pa.int64()}, partitions=2, time="at")
        for partition in range(2):
            driver.feed("timed", [{"k": 1, "at": 5}, {"k": 1, "at": 12}], partition=partition)
        driver.advance()
        assert [row["n"] for row in driver.output("out")] == [2]
        driver.feed("timed", [{"k": 1, "at": 13}], partition=1)
        driver.bus.stream("timed").configure(partitions=1)
        driver.feed("timed", [{"k": 1, "at": 40}], partition=0)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [2, 3]
        driver.bus.stream("timed").configure(partitions=2)
        driver.feed("timed", [{"k": 1, "at": 60}], partition=0)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [2, 3]
        driver.feed("timed", [{"k": 1, "at": 60}], partition=1)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [2, 3, 1]


def test_a_bounded_run_ends_although_partitions_are_added() -> None:
    """What they hold is not of the run."""
    with driver_of() as driver:
        feed(driver)
        driver.start()
        driver.coordinator.end_at_present()
        driver.bus.stream("in").configure(partitions=3)
        driver.feed("in", [{"k": 1, "v": 100}], partition=2)
        driver.run()
        assert driver.coordinator.has_ended
        assert driver.coordinator.state.counts["in"] == 20


def test_outputs_go_to_as_many_partitions_as_new_rows_should() -> None:
    """From the next start of the job on."""

    @hr.job("copies")
    def copies(g: hr.Graph) -> None:
        g.input("in").send_to(g.output("copied"))

    with driver_of(copies) as driver:
        driver.create("copied", COLUMNS, partitions=2)
        driver.bus.stream("copied").configure(partitions=1)
        feed(driver)
        driver.run()
        assert driver.bus.stream("copied").ends() == [20, 0]
        driver.bus.stream("copied").configure(partitions=2)
        driver.crash()
        feed(driver)
        driver.run()
        assert driver.bus.stream("copied").ends() == [30, 10]


def test_a_job_stays_with_the_stream_that_an_alias_stood_for() -> None:
    """While it runs; at its next start it is refused, for its offsets are of the other one."""

    @hr.job("copies")
    def copies(g: hr.Graph) -> None:
        g.input("now").send_to(g.output("then"))

    with TestDriver(copies) as driver:
        for name in ("v1", "v2", "old", "new"):
            driver.create(name, COLUMNS)
            driver.feed(name, [{"k": ord(name[0]), "v": 0}])
        driver.bus.alias("now", "v1")
        driver.bus.alias("then", "old")
        driver.run()
        driver.bus.alias("now", "v2")
        driver.bus.alias("then", "new")
        driver.feed("v1", [{"k": 7, "v": 0}])
        driver.run()
        assert [row["k"] for row in driver.output("old")] == [ord("o"), ord("v"), 7]
        driver.crash()
        with pytest.raises(InvalidInputError, match=r"stream was v1, is now v2; offsets are of"):
            driver.start()
        driver.bus.alias("now", "v1")
        driver.feed("v1", [{"k": 8, "v": 0}])
        driver.run()
        assert [row["k"] for row in driver.output("then")] == [ord("n"), 8]


def test_a_broadcast_store_names_no_alias() -> None:
    """It could be swapped in the middle of an epoch."""
    small = hr.broadcast("small", stream="now", key="k")

    @hr.job("joined")
    def joined(g: hr.Graph) -> None:
        g.input("in").join_table(small, on="k").send_to(g.output("out"))

    with driver_of(joined) as driver:
        driver.create("v1", COLUMNS)
        driver.bus.alias("now", "v1")
        with pytest.raises(InvalidInputError, match="'now', which is an alias; name its stream"):
            driver.start()


def test_positions_of_all_partitions_are_copied_once_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many levels it has, and not at all where nothing of an input is read."""

    @hr.job("chain")
    def chain(g: hr.Graph) -> None:
        first = g.input("in").partition_by("k").aggregate(name="a", s=hr.agg.sum("v"))
        second = first.partition_by("s").aggregate(name="b", n=hr.agg.count())
        second.partition_by("n").aggregate(name="c", m=hr.agg.count()).send_to(g.output("out"))

    with driver_of(chain) as driver, copies_of_positions() as copies:
        for _ in range(2):
            feed(driver)
            copies.clear()
            driver.advance()
            assert len(copies) == 1
