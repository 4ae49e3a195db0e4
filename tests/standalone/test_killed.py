"""kill -9 of a driver between two steps, for jobs of several kinds; the next driver ends them."""

from __future__ import annotations

import fcntl
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.jobs import counting, filing, model
from tests.support.runs import Driver, World, run_driver, until
from tests.support.soak import more

import headrace as hr

BOUNDED = ("job.bounded=true", "control.enabled=false")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def killed(job: str, world: World, *sets: str, at: tuple[str, int]) -> None:
    """Run a job in a process of its own until it dies at a fault point."""
    said = run_driver(job, world, *sets, die_at=at, way="standalone")
    assert said["code"] == -signal.SIGKILL, said["story"]


PARTS_DIE = [("feed.mark_published", 5), ("epoch.level_done", 5)]


@pytest.mark.parametrize(("point", "nth"), more(PARTS_DIE[:1], PARTS_DIE))
def test_both_parts_of_a_job_die_with_their_process(world: World, point: str, nth: int) -> None:
    """One of them between two steps of an epoch; nothing is lost or doubled."""
    world.feed(300)
    sets = (*BOUNDED, "epoch.max_rows=200")
    killed("parts", world, *sets, at=(point, nth))
    assert 0 < world.state("counting").counts["in"] < 600
    result = hr.run(counting(via="bus"), world.settings(*sets))
    assert result.state.ended
    assert result.state.counts["in"] == 600
    assert model(world.log) == world.found()


def test_a_side_that_stands_still_does_not_hold_up_the_other(world: World) -> None:
    """While an epoch of one part waits, the other goes on, and it catches up later."""

    def has_read(rows: int) -> bool:
        return world.read_so_far("counting") >= rows

    world.feed(100)
    with Driver("gated-parts", world, BOUNDED[1], way="standalone") as driver:
        until(lambda: world.at_gate("count"), "a message at the gate", driver)
        before = world.read_so_far("counting")
        for _ in range(2):
            world.feed(100)
            until(partial(has_read, sum(map(len, world.log))), "all to be read", driver)
        assert before < world.read_so_far("counting")
        assert world.rows("totals")
        assert world.rows("windows") == []
        world.open_gate("count")
        until(lambda: world.rows("windows"), "windows", driver)
        driver.terminate()
        assert driver.wait()["interrupted"]
    assert hr.run(counting(via="bus"), world.settings(*BOUNDED)).state.ended
    assert model(world.log) == world.found()


@pytest.mark.parametrize("point", more(["sink.sent"], ["sink.sent", "sink.listed"]))
def test_a_killed_driver_files_no_row_twice_and_none_not(world: World, point: str) -> None:
    """It dies between its commit and that of the sink, or just after that."""
    world.feed(300)
    sets = (*BOUNDED, "epoch.max_rows=150")
    killed("filing", world, *sets, at=(point, 1))
    folder = world.gates / "filed"
    before = hr.sinks.committed_files(folder)
    assert hr.run(filing(world.gates), world.settings(*sets)).state.ended
    files = hr.sinks.committed_files(folder)
    assert files != before
    found = pl.concat([pl.read_parquet(path) for path in files])
    fed = pl.DataFrame([row for rows in world.log for row in rows])
    assert sorted(found.rows()) == sorted(fed.select(found.columns).rows())
    assert world.leftovers("filing") == []


def test_a_sink_that_is_away_at_the_start_is_waited_for(world: World) -> None:
    """For so long, then it is an error; else until it is back, with a word that says so."""
    world.feed(60)
    folder = world.gates / "filed"
    control = folder.with_name(f".{folder.name}.headrace")
    control.mkdir(parents=True)
    told: list[str] = []
    with (control / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patient = world.settings(*BOUNDED, "state.disk_wait_s=1")
        with pytest.raises(hr.sinks.ReceiverAwayError, match="another process is writing to"):
            hr.run(filing(world.gates), patient, on_notice=told.append)

        def come_back(line: str) -> None:
            told.append(line)
            fcntl.flock(lock, fcntl.LOCK_UN)

        result = hr.run(filing(world.gates), world.settings(*BOUNDED), on_notice=come_back)
    assert result.state.ended
    found = sum(pl.read_parquet(path).height for path in hr.sinks.committed_files(folder))
    assert found == sum(map(len, world.log))
    assert told[0].endswith("the job waits for an answer, for 1 s at most")
    assert told[1].endswith("the job waits for an answer")
    assert told[2].startswith("there is an answer again after")


def test_results_that_are_seen_before_their_epoch_is_committed_come_twice(world: World) -> None:
    """At least once: it dies in its second epoch, whose rows are out and whose manifest is not."""
    world.feed(300)
    sets = (*BOUNDED, "epoch.max_rows=200", "job.output_semantics=at_least_once")
    killed("counting", world, *sets, at=("commit.step_done", 3))
    before = world.state("counting")
    assert before.counts["in"] == 200
    assert len(world.rows("counts")) == 400, "the rows of the second epoch are seen"
    assert not before.outputs
    result = hr.run(counting(), world.settings(*sets))
    assert (result.state.ended, 200 + result.rows) == (True, 600)
    expected, found = model(world.log), world.found()
    assert found["store"] == expected["store"]
    assert sum(len(n) - len(set(n)) for n in found["counts"].values()) == 200
    assert {id_: sorted(set(n)) for id_, n in found["counts"].items()} == expected["counts"]
    assert set(found["windows"]) == set(expected["windows"])
    assert set(found["totals"]) == set(expected["totals"])
    assert world.leftovers("counting") == []


BACKED_UP = (*BOUNDED, "epoch.max_rows=100", "state.durability=backup(10ms)")


def killed_with_a_copy(world: World) -> int:
    """Let a driver die after a few commits to its own disk; returns the epoch of the copy."""
    world.feed(300)
    killed("counting", world, *BACKED_UP, at=("commit.published", 5))
    copied = world.state("counting")
    assert copied.copy_of
    assert copied.durability == "backup(10ms)"
    return copied.epoch


def at_least(expected: Iterable[Any], found: Iterable[Any]) -> bool:
    """Nothing is missing, and nothing is there that should not be."""
    held, wanted = Counter(found), Counter(expected)
    return held.keys() == wanted.keys() and all(held[key] >= n for key, n in wanted.items())


def test_a_lost_disk_steps_back_to_the_copy(world: World) -> None:
    """State is as without a loss; outputs appear at least once; the end is in the copy."""
    epoch = killed_with_a_copy(world)
    before, settings = world.state("counting"), world.settings(*BACKED_UP)
    shutil.rmtree(settings.state_dir)
    told: list[str] = []
    result = hr.run(counting(), settings, on_notice=told.append)
    assert result.state.ended
    assert result.state.lineage != before.lineage
    assert before.counts.get("in", 0) + result.rows == 600
    assert any(f"continues from the copy of epoch {epoch}" in line for line in told)
    expected, found = model(world.log), world.found()
    assert expected["store"] == found["store"]
    for stream in ("windows", "totals"):
        assert at_least(expected[stream], found[stream])
    for key, numbers in expected["counts"].items():
        assert at_least(numbers, found["counts"][key])
    assert result.state.digest == world.state("counting").copy_of


def test_a_disk_that_is_still_there_loses_and_doubles_nothing(world: World) -> None:
    """However far the copy was, and also without it."""
    killed_with_a_copy(world)
    settings = world.settings(*BACKED_UP)
    away = world.job_dir("counting").rename(world.home / "away")
    told: list[str] = []
    assert hr.run(counting(), settings, on_notice=told.append).state.ended
    assert "the job continues" in told[0]
    away.rename(world.job_dir("counting"))
    hr.run(counting(), world.settings(*BACKED_UP[1:]))  # only to copy
    assert model(world.log) == world.found()
    assert world.storage("counting", *BACKED_UP).is_relative_to(settings.state_dir)


def test_of_two_drivers_started_at_once_one_is_refused(world: World) -> None:
    """Whichever comes first drives; the other says who does, and nothing is doubled."""
    world.feed(100)
    way: Any = {"way": "standalone"}
    with (
        Driver("gated", world, *BOUNDED, **way) as one,
        Driver("gated", world, *BOUNDED, **way) as two,
    ):
        until(lambda: not (one.running() and two.running()), "one to be refused")
        refused, driving = (two, one) if one.running() else (one, two)
        assert driving.running()
        answer = refused.wait()
        assert answer["error"] == "NotOwnerError"
        assert f"process {driving.process.pid} on this host" in answer["message"]
        until(lambda: world.at_gate("count"), "a message at the gate", driving)
        world.open_gate("count")
        said = driving.wait()
    assert said["ended"], driving.story
    assert model(world.log) == world.found()
