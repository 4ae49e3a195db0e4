"""``headrace backfill --tasks --executors``: more of a job for the time of a backfill only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import typer
from tests.support.cli import done, headrace

import headrace as hr
from headrace.cli.run.backfill import BlockingBackfill
from headrace.cli.run.commands import run_target
from headrace.cli.run.runner import JobRunner, Scaling, executor_sets
from headrace.config import Settings, load_settings
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.manifest import JobState
from headrace.coordinator.rescale import (
    TemporaryScaleOut,
    counts_before_scale_out,
    current_scale_out,
)
from headrace.errors import InvalidInputError
from headrace.faults import injected
from headrace.testing import TestDriver

USERS = "abcdefgh"
BEGIN = "1970-01-01"


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user", tasks=3)
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out", partitions=2), name="out")


@hr.job("sums")
def wider(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user", tasks=4)
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out", partitions=2), name="out")


class Died(BaseException):
    """The process ends here."""


class Live:
    """A job of three tasks that has read its input and is stopped."""

    target = f"{__name__}:sums"

    def __init__(self, driver: TestDriver) -> None:
        self.home, self.driver = driver.home, driver
        self.settings: Settings = driver.settings

    def state(self, job: str = "sums") -> JobState:
        (reader,) = part_readers(self.settings, job)
        return reader.state()

    def counts(self, job: str = "sums") -> dict[str, int]:
        return dict(self.state(job).task_counts)

    def sums(self, stream: str) -> dict[str, int]:
        return {row["user"]: row["n"] for row in self.driver.output(stream)}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with TestDriver(sums, home=tmp_path, memory_bus=False) as driver:
        driver.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        driver.feed("in", [{"user": user, "n": 1, "at": 0} for user in USERS])
        driver.run()
        driver.crash()
        yield Live(driver)


def test_a_backfill_beside_has_more_tasks_and_the_live_job_has_not(live: Live) -> None:
    asked = ("backfill", live.target, "--from", BEGIN, "--standalone", "--home", live.home)
    ran = headrace(*asked, "--tasks", 6)
    assert ran.code == 0
    assert ran.err == "sums-backfill: 6 tasks for each keyed stage (else in.by_user 3)\n"
    assert (live.counts("sums-backfill"), live.counts()) == ({"in.by_user": 6}, {"in.by_user": 3})
    assert live.sums("out.backfill") == dict.fromkeys(USERS, 1)
    assert headrace(*asked).code == 0  # the next run is cut as the job says
    assert live.counts("sums-backfill") == {"in.by_user": 3}


def die_at(point: str) -> AbstractContextManager[None]:
    def die(found: str) -> None:
        if found == point:
            raise Died

    return injected(die)


def test_a_backfill_that_was_killed_goes_on_with_other_tasks(live: Live) -> None:
    asked = ("backfill", live.target, "--from", BEGIN, "--standalone", "--home", live.home)
    some = ("--set", "epoch.max_rows=3")
    with die_at("epoch.published"), pytest.raises(Died):
        headrace(*asked, *some, "--tasks", 6)
    before = live.state("sums-backfill")
    assert 0 < before.counts["in"] < len(USERS)
    assert headrace(*asked, *some, "--tasks", 2).code == 0
    after = live.state("sums-backfill")
    assert (after.run, after.task_counts) == (before.run, {"in.by_user": 2})
    assert live.sums("out.backfill") == dict.fromkeys(USERS, 1)
    assert after.counts["in"] == len(USERS)


def test_more_tasks_than_there_can_be_are_refused_before_a_row_is_read(live: Live) -> None:
    asked = ("backfill", live.target, "--from", BEGIN, "--standalone", "--home", live.home)
    ran = headrace(*asked, "--tasks", 1000)
    assert ran.code == 1
    assert "found 1000 tasks, expected 1 to 512" in ran.err
    assert live.state("sums-backfill").counts.get("in", 0) == 0


class Runs:
    """Runs the job in this process until it has caught up; what comes after is only noted."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.after: list[Sequence[str]] = []
        self.out: dict[str, int] = {}

    def __call__(self, sets: Sequence[str], scaling: Scaling | None) -> None:
        if scaling is None:
            self.after.append(sets)
            return
        settings = load_settings(None, [f"home={self._live.home}", "epoch.max_rows=3", *sets])
        run_target(self._live.target, settings, JobRunner(standalone=True), scaling=scaling)
        self.out = self._live.counts()


def in_place(live: Live, tasks: int | None) -> BlockingBackfill:
    return BlockingBackfill("sums", BEGIN, tasks, (), (), None, (), False, live.home)


def test_a_job_reads_all_again_with_more_tasks_and_has_as_many_as_before_then(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    done("jobs", "rescale", "sums", "--tasks", 2, "--home", live.home)
    go = Runs(live)
    in_place(live, 6).run(go)
    assert (go.out, live.counts()) == ({"in.by_user": 6}, {"in.by_user": 2})
    assert go.after == [()]
    told = capsys.readouterr()
    assert "stage in.by_user: 6 to 2 tasks" in told.out
    assert told.err.endswith("sums has caught up, and continues as before\n")
    assert "interrupt" not in told.out
    assert "Ctrl-C" not in told.err
    rows = live.driver.output("out")
    assert sorted(row["user"] for row in rows) == sorted(USERS * 2)
    assert live.sums("out") == dict.fromkeys(USERS, 1)
    assert current_scale_out(live.settings, "sums") is None


@pytest.mark.parametrize("point", ["epoch.published", "rescale.published", "rescale.committed"])
def test_a_backfill_in_place_that_was_killed_goes_on_and_scales_in(
    live: Live, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with die_at(point), pytest.raises(Died):
        in_place(live, 6).run(Runs(live))
    run = live.state().run
    in_place(live, 6).run(Runs(live))
    assert "was interrupted, and continues" in capsys.readouterr().err
    assert (live.state().run, live.counts()) == (run, {"in.by_user": 3})
    rows = live.driver.output("out")
    assert sorted(row["user"] for row in rows) == sorted(USERS * 2)


def test_a_backfill_in_place_that_was_reset_begins_anew(live: Live) -> None:
    with die_at("epoch.published"), pytest.raises(Died):
        in_place(live, 6).run(Runs(live))
    done("jobs", "reset", "sums", "--home", live.home)
    run = live.state().run
    in_place(live, 6).run(Runs(live))
    assert (live.state().run, live.counts()) == (run + 1, {"in.by_user": 3})


def test_who_stops_it_is_told_how_it_goes_on(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(sets: Sequence[str], scaling: Scaling | None) -> None:
        raise typer.Exit(130)

    with pytest.raises(typer.Exit):
        in_place(live, 6).run(interrupted)
    assert "sums has not caught up: the same command continues" in capsys.readouterr().err
    assert current_scale_out(live.settings, "sums") is not None


def test_a_job_that_was_rescaled_has_as_many_again_after_it_was_cut_by_its_code(live: Live) -> None:
    done("jobs", "rescale", "sums", "--tasks", 5, "--home", live.home)
    go = Runs(live)
    in_place(live, None).run(go)
    assert (go.out, live.counts()) == ({"in.by_user": 3}, {"in.by_user": 5})
    assert live.sums("out") == dict.fromkeys(USERS, 1)


def test_a_job_that_was_not_rescaled_stays_as_its_new_code_says(live: Live) -> None:
    live.target = f"{__name__}:wider"
    in_place(live, None).run(Runs(live))
    assert live.counts() == {"in.by_user": 4}


def test_a_backfill_that_goes_on_without_the_option_scales_in_as_well(live: Live) -> None:
    with die_at("epoch.published"), pytest.raises(Died):
        in_place(live, 6).run(Runs(live))
    assert live.counts() == {"in.by_user": 6}
    in_place(live, None).run(Runs(live))
    assert live.counts() == {"in.by_user": 3}


def test_what_a_job_had_is_not_forgotten_by_two_broken_tries(live: Live) -> None:
    with die_at("epoch.published"), pytest.raises(Died):
        in_place(live, 6).run(Runs(live))

    def dies(sets: Sequence[str], scaling: Scaling | None) -> None:
        raise Died

    with pytest.raises(Died):
        in_place(live, 5).run(dies)
    go = Runs(live)
    in_place(live, 5).run(go)
    assert (go.out, live.counts()) == ({"in.by_user": 5}, {"in.by_user": 3})


def part(counts: dict[str, int], rescaled_at: int = 1) -> JobState:
    empty = JobState("sums", "x", 0, 0, 0, "", 512, {}, {}, task_counts=counts)
    return msgspec.structs.replace(empty, rescaled_at=rescaled_at)


def test_tasks_that_somebody_gave_a_job_meanwhile_stay() -> None:
    note = TemporaryScaleOut(BEGIN, 2, 8, {"by-user": 3}, {"by-user": 3})
    assert counts_before_scale_out(note, part({"by-user": 8})) == {"by-user": 3}
    assert counts_before_scale_out(note, part({"by-user": 5})) == {"by-user": 5}
    assert counts_before_scale_out(None, part({"by-user": 8})) == {"by-user": 8}


def test_a_job_of_which_one_stage_is_scaled_out_is_known_by_both() -> None:
    """Killed between two rescales, and whatever the code cut the others to after the reset."""
    note = TemporaryScaleOut(BEGIN, 2, 8, {"a": 3, "b": 4}, {"a": 3, "b": 4})
    assert counts_before_scale_out(note, part({"a": 8, "b": 4})) == {"a": 3, "b": 4}
    assert counts_before_scale_out(note, part({"a": 8}), part({"b": 2}, -1)) == {"a": 3, "b": 4}
    assert counts_before_scale_out(note, part({"a": 8}), part({"b": 2})) == {"a": 3, "b": 2}
    assert counts_before_scale_out(note, part({"a": 2, "b": 2, "new": 5}, -1)) == {
        "a": 3,
        "b": 4,
        "new": 5,
    }


def test_executors_are_settings_of_the_application_of_the_backfill() -> None:
    settings = load_settings(None, ["spark.master=spark://host:7077"], {})
    assert executor_sets(settings, JobRunner(), None, None) == []
    made = load_settings(None, [*executor_sets(settings, JobRunner(), 3, 2)], {})
    assert made.spark.conf == {
        "spark.executor.cores": "2",
        "spark.executor.instances": "3",
        "spark.cores.max": "6",
        "spark.dynamicAllocation.enabled": "false",
    }
    assert made.job.slots == 6
    assert executor_sets(settings, JobRunner(), None, 2) == ["spark.conf.spark.executor.cores=2"]
    own = load_settings(None, ["spark.master=yarn", "spark.conf.spark.executor.cores=4"], {})
    assert "spark.conf.spark.cores.max=8" in executor_sets(own, JobRunner(), 2, None)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_master_without_executors_gets_none(master: str) -> None:
    settings = load_settings(None, [f"spark.master={master}"], {})
    with pytest.raises(InvalidInputError, match="has no executors"):
        executor_sets(settings, JobRunner(), 2, None)
    with pytest.raises(InvalidInputError, match="--standalone has no executors"):
        executor_sets(settings, JobRunner(standalone=True), None, 2)
