"""Inputs of a pattern: streams that come and go while a job runs, and between its runs."""

import gc
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.limits import limit
from tests.support.plans import JobPlan
from tests.support.watching import described

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver, call_at

COLUMNS = {"k": pa.int64(), "at": pa.int64()}


@hr.job("alarms")
def alarms(g: hr.Graph) -> None:
    errors = g.input("errors.*", time="at").partition_by("k")
    errors.aggregate(name="totals", n=hr.agg.count()).send_to(g.output("out"))


def driver_of(home: Path | None = None, *, memory_bus: bool = True) -> TestDriver:
    return TestDriver(alarms, tasks=2, key_groups=8, memory_bus=memory_bus, home=home)


def come(driver: TestDriver, name: str, *keys: int, partitions: int = 1) -> None:
    """Make a stream with a record of each key in its last partition."""
    driver.create(name, COLUMNS, partitions=partitions, time="at")
    driver.feed(name, [{"k": key, "at": 5} for key in keys], partition=partitions - 1)


def go(driver: TestDriver, name: str) -> None:
    shutil.rmtree(driver.settings.bus_dir / "streams" / name)


def counts_of(driver: TestDriver) -> dict[int, int]:
    return {row["k"]: row["n"] for row in driver.output("out")}


@pytest.mark.parametrize("memory_bus", [True, False])
def test_streams_that_come_are_read_from_the_next_epoch_on(memory_bus: bool) -> None:
    """From their beginning, however many partitions they have, and also by the next driver."""
    with driver_of(memory_bus=memory_bus) as driver:
        come(driver, "errors.a", 1)
        driver.run()
        come(driver, "errors.b", 1, 2, partitions=3)
        come(driver, "warnings.c", 1)
        come(driver, "errors.empty")
        driver.feed("errors.a", [{"k": 1, "at": 6}])
        driver.run()
        assert counts_of(driver) == {1: 3, 2: 1}
        assert set(driver.coordinator.input_streams().values()) == {
            "errors.a",
            "errors.b",
            "errors.empty",
        }
        driver.crash()
        driver.feed("errors.b", [{"k": 2, "at": 7}], partition=2)
        driver.feed("errors.empty", [{"k": 3, "at": 7}])
        driver.run()
        assert counts_of(driver) == {1: 3, 2: 2, 3: 1}


def test_a_process_keeps_no_plan_of_long_ago() -> None:
    """A job is planned again for each stream that comes; what it was before is let go of."""

    def kept() -> int:
        gc.collect()
        return sum(isinstance(found, JobPlan) for found in gc.get_objects())

    with driver_of() as driver:
        found = []
        for number in range(16):
            come(driver, f"errors.{number:02d}", 1)
            driver.run()
            if number in (7, 15):
                found.append(kept())
        assert found[1] <= found[0]


def test_each_stream_has_offsets_of_its_own() -> None:
    """The job begins where the stream does that comes between two runs."""
    with driver_of() as driver:
        come(driver, "errors.a", 1)
        come(driver, "errors.b", 1, partitions=3)
        driver.run()
        driver.crash()
        driver.create("errors.d", COLUMNS, partitions=2, time="at")
        for at in (1, 2):
            driver.feed("errors.d", [{"k": 1, "at": at}], partition=1)
        assert driver.bus.stream("errors.d").trim(1, 1) == 1
        driver.feed("errors.a", [{"k": 2, "at": 9}])
        driver.run()
        assert counts_of(driver) == {1: 3, 2: 1}


def test_a_pattern_that_no_stream_matches_is_refused() -> None:
    with driver_of() as driver, pytest.raises(InvalidInputError, match=r"no stream matches"):
        driver.start()


@pytest.mark.parametrize("point", ["streams.followed", "epoch.planned", "commit.published"])
def test_a_driver_that_died_when_a_stream_came_reads_it_once(point: str) -> None:
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        driver.run()
        come(driver, "errors.b", 1, 2)
        assert driver.advance_with_crash(point)
        driver.run()
        assert counts_of(driver) == {1: 2, 2: 1}


def test_where_a_stream_that_came_begins_is_kept() -> None:
    """What is trimmed of it before it is read is told, and not skipped in silence."""
    with driver_of() as driver:
        come(driver, "errors.a", 1)
        driver.run()
        driver.create("errors.b", COLUMNS, time="at")
        assert driver.advance() is None
        for _ in range(2):
            driver.feed("errors.b", [{"k": 2, "at": 5}])
        assert driver.bus.stream("errors.b").trim(0, 1) == 1
        with pytest.raises(InvalidInputError, match=r"'errors.b' partition 0: offset 0 is gone"):
            driver.advance()


def test_what_reads_the_job_knows_streams_that_came() -> None:
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        driver.run()
        come(driver, "errors.b", 1)
        driver.run()
        seen = described(driver)
        assert {one.stream for one in seen.inputs} == {"errors.a", "errors.b"}


@pytest.mark.parametrize("restarted", [False, True])
def test_streams_that_go_are_left(restarted: bool) -> None:
    """What was read of them counts; who comes with their name is another stream."""
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        come(driver, "errors.b", 1, 1)
        driver.run()
        go(driver, "errors.b")
        if restarted:
            driver.crash()
        driver.feed("errors.a", [{"k": 1, "at": 6}])
        driver.run()
        assert counts_of(driver) == {1: 4}
        assert list(driver.coordinator.state.inputs) == ["errors.all:errors.a"]
        if restarted:
            driver.crash()
        come(driver, "errors.b", 1, 2)
        driver.run()
        assert counts_of(driver) == {1: 5, 2: 1}


def test_a_stream_that_was_made_anew_between_two_looks_is_one_that_comes() -> None:
    """Its offsets are not those that the job has read up to."""
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        come(driver, "errors.b", 1, 1, 1)
        driver.run()
        go(driver, "errors.b")
        come(driver, "errors.b", 2)
        driver.run()
        assert counts_of(driver) == {1: 4, 2: 1}


def test_a_pattern_that_lost_its_last_stream_stops_the_job() -> None:
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        driver.run()
        go(driver, "errors.a")
        with pytest.raises(InvalidInputError, match=r"no stream matches 'errors\.\*'"):
            driver.run()
        come(driver, "errors.b", 1)
        driver.run()
        assert counts_of(driver) == {1: 2}


def test_a_narrower_pattern_keeps_the_positions_of_what_it_leaves_out(tmp_path: Path) -> None:
    """So a wider one goes on where the job was."""

    @hr.job("alarms")
    def fewer(g: hr.Graph) -> None:
        errors = g.input("errors.a*", time="at", name="errors.all").partition_by("k")
        errors.aggregate(name="totals", n=hr.agg.count()).send_to(g.output("out"))

    with driver_of(tmp_path, memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        come(driver, "errors.b", 1)
        driver.run()
    with TestDriver(fewer, tasks=2, key_groups=8, memory_bus=False, home=tmp_path) as driver:
        driver.feed("errors.a", [{"k": 1, "at": 6}])
        driver.feed("errors.b", [{"k": 1, "at": 6}])
        driver.run()
        assert counts_of(driver) == {1: 3}
    with driver_of(tmp_path, memory_bus=False) as driver:
        driver.run()
        assert counts_of(driver) == {1: 4}


def test_a_stream_that_does_not_fit_stops_the_job() -> None:
    """With the mistake; the job goes on once it is gone."""
    with driver_of(memory_bus=False) as driver:
        come(driver, "errors.a", 1)
        driver.run()
        driver.create("errors.b", {"other": pa.int64(), "at": pa.int64()}, time="at")
        with pytest.raises(InvalidInputError, match=r"errors\.b"):
            driver.run()
        go(driver, "errors.b")
        driver.feed("errors.a", [{"k": 1, "at": 6}])
        driver.run()
        assert counts_of(driver) == {1: 2}


@pytest.mark.parametrize(
    ("output", "dead", "told"),
    [
        ("errors.sums", False, "matches 'errors.sums', a stream .* name the output otherwise"),
        ("sums", True, "matches 'errors.dead', a stream .* set job.dead_letters to another"),
        ("sums", False, None),
    ],
)
def test_a_pattern_that_matches_what_the_job_sends_is_refused(
    output: str, dead: bool, told: str | None
) -> None:
    """It would read its own records again and again."""

    @hr.job("errors")
    def loops(g: hr.Graph) -> None:
        errors = g.input("errors.*", time="at", on_error="dead_letter" if dead else "fail")
        errors.filter(hr.col("k") > 0).send_to(g.output(output))

    with TestDriver(loops, memory_bus=True) as driver:
        come(driver, "errors.a", 1)
        if told is None:
            driver.run()
            assert driver.output(output) == [{"k": 1, "at": 5}]
        else:
            with pytest.raises(InvalidInputError, match=told):
                driver.start()
            assert driver.bus.names() == ["errors.a"]


def test_a_driver_keeps_the_plan_that_it_uses_though_many_are_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when streams came to a pattern, a plan for each, and went: the first one is used again."""
    limit(monkeypatch, kept_plans=2)
    with driver_of(tmp_path, memory_bus=False) as driver:
        come(driver, "errors.0", 1)
        driver.run()
        [first] = (driver.storage / "plans").iterdir()
        for number in range(1, 5):
            come(driver, f"errors.{number}", 1)
            driver.run()
        for number in range(1, 5):
            go(driver, f"errors.{number}")
        driver.crash(lose_hosts=[0])  # so slots have to read the plan
        for path in driver.storage.glob("catalog/*.json"):
            path.write_bytes(path.read_bytes() + b" ")
        with call_at("catalog.due", lambda: os.utime(first, (0, 0))) as passes:  # all are newer
            driver.start()
        assert passes
        assert first.exists()
        assert len(list((driver.storage / "plans").iterdir())) == 2
        driver.feed("errors.0", [{"k": 1, "at": 6}])
        driver.run()
        assert counts_of(driver) == {1: 6}
