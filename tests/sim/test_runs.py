"""Runs of a bounded job: the next one begins fresh, one that crashed goes on (seed 004)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.changes import (
    JobState,
    begin_next_run,
    conclude_run,
    readers,
    reset,
    rewind,
    with_settings,
)
from tests.support.hosts import silent_tasks
from tests.support.soak import crossed, more

import headrace as hr
from headrace.errors import PartsError, UnavailableError
from headrace.testing import TestDriver, crash_at, each_at, points_passed

USERS = "abcdefg"
STEPS = (
    "set_back.published",
    "commit.written",
    "set_back.committed",
    "parts.set_back",
    "parts.stream_removed",
    "run.outputs_emptied",
)
ENDING = (
    "epoch.planned",
    "epoch.level_done",
    "epoch.before_commit",
    "commit.published",
    "epoch.output_published",
    "feed.mark_published",
    "slot.ran",
    "slot.output_written",
)
WAYS = ("bus", "exchange")
ONE_PART = STEPS[:3] + STEPS[5:]


def make(via: str) -> hr.Job:
    """Three stages: rows by user, sums by user and ten seconds, the largest of each ten seconds."""

    @hr.job("batch")
    def batch(g: hr.Graph) -> None:
        by_user = g.input("clicks", time="at").partition_by("user", via=via, name="by-user")
        sums = by_user.window(hr.tumbling("10s"), name="sums", n=hr.agg.sum("n"))
        by_time = sums.partition_by("window_start", via=via, name="by-time")
        best = by_time.window(hr.tumbling("10s"), name="best", m=hr.agg.max("n"))
        best.send_to(g.output("best", partitions=1))

    return batch


def best_of(driver: TestDriver) -> Counter[tuple[int, int]]:
    def moment(value: object) -> int:
        return int(value.timestamp() * 1000) if hasattr(value, "timestamp") else int(str(value))

    return Counter((moment(row["window_start"]), row["m"]) for row in driver.output("best"))


class Runs:
    """A bounded job that is started again and again, as by ``headrace run --bounded``."""

    def __init__(self, via: str, *, replace: bool = False, home: Path | None = None) -> None:
        self.driver = TestDriver(make(via), home=home, max_rows=30, tasks=2)
        with_settings(self.driver, "job", replace_outputs=replace)
        columns = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
        self.driver.create("clicks", columns, time="at", partitions=2)
        self.expected: Counter[tuple[int, int]] = Counter()
        self._sums: Counter[tuple[str, int]] = Counter()

    def feed(self, begin_s: int, end_s: int) -> None:
        for second in range(begin_s, end_s):
            user, at = USERS[second % len(USERS)], second * 1000
            self.driver.feed("clicks", [{"user": user, "n": second, "at": at}], second % 2)
            self._sums[user, at // 10_000] += second
        best: dict[int, int] = {}
        for (_, window), total in self._sums.items():
            best[window] = max(total, best.get(window, 0))
        self.expected = Counter((window * 10_000, total) for window, total in best.items())

    def begin(self) -> JobState | None:
        return begin_next_run(self.driver)

    def finish(self) -> None:
        self.driver.finish()
        conclude_run(self.driver)

    def sent(self) -> Counter[tuple[int, int]]:
        return best_of(self.driver)

    def states(self) -> list[JobState]:
        return [reader.state() for reader in readers(self.driver)]

    def numbers(self) -> list[int]:
        return [state.run for state in self.states()]


@pytest.fixture(params=["exchange", "bus"])
def via(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def runs(via: str) -> Iterator[Runs]:
    made = Runs(via)
    yield made
    made.driver.close()


def test_a_new_job_has_no_run_to_begin(runs: Runs) -> None:
    assert runs.begin() is None
    runs.feed(0, 50)
    runs.finish()
    assert (runs.sent(), set(runs.numbers())) == (runs.expected, {1})


def test_each_start_after_the_end_is_a_run_of_its_own(runs: Runs) -> None:
    """Nothing of the last run is left: not its state, not what went between its stages."""
    runs.feed(0, 50)
    runs.finish()
    first = runs.expected
    before = {state.lineage for state in runs.states()}
    runs.feed(50, 70)
    begun = runs.begin()
    assert begun is not None
    assert (begun.run, begun.tasks, begun.ended) == (2, {}, False)
    assert not [name for name in runs.driver.bus.names() if name.endswith(".exchange")]
    runs.finish()
    assert runs.sent() == first + runs.expected
    assert set(runs.numbers()) == {2}
    assert before.isdisjoint({state.lineage for state in runs.states()})
    named = set.union(*(state.files() for state in runs.states()))
    folders = [reader.root for reader in readers(runs.driver)]
    held = {
        path.relative_to(folder).as_posix()
        for folder in folders
        for path in folder.glob("tasks/**/*")
        if path.is_file()
    }
    assert held <= named


@cache
def passed_undisturbed(via: str) -> Counter[str]:
    """How often each point is passed by a run that nothing disturbs."""
    runs = Runs(via)
    with runs.driver, points_passed() as passed:
        runs.feed(0, 50)
        runs.finish()
    return Counter(passed)


@pytest.mark.parametrize(
    ("point", "via"),
    more(
        [(point, WAYS[n % 2] if "feed" not in point else "bus") for n, point in enumerate(ENDING)],
        [(point, via) for point in ENDING for via in WAYS if (point[:4], via) != ("feed", WAYS[1])],
    ),
)
def test_each_stage_hears_of_the_end_once_whoever_dies_on_the_way(via: str, point: str) -> None:
    """At the last two passes, which are those of the epochs of the end."""
    passes = passed_undisturbed(via)[point]
    assert passes >= 2
    for nth in {passes, passes - 1}:
        runs = Runs(via)
        with runs.driver as driver:
            runs.feed(0, 50)
            assert driver.advance_with_crash(point, nth, driver.finish)
            runs.finish()
            assert (runs.sent(), set(runs.numbers())) == (runs.expected, {1})
            assert all(state.ended for state in runs.states())


@pytest.mark.parametrize(
    ("via", "point"), crossed(WAYS, ["slot.ran", "epoch.before_commit", "commit.published"])
)
def test_three_stages_over_files_give_what_they_give_over_a_stream(
    via: str, point: str, tmp_path: Path
) -> None:
    runs = Runs(via)
    with runs.driver:
        runs.feed(0, 50)
        clicks = runs.driver.bus.stream("clicks")
        for partition in (0, 1):
            rows = [row for part in clicks.read(partition, 0) for row in part.batch.to_pylist()]
            (tmp_path / f"{partition}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        runs.finish()
    given = {"clicks": {"files": str(tmp_path)}}
    with TestDriver(
        make(via), max_rows=9, tasks=2, inputs=given, job_settings={"bounded": True}
    ) as driver:
        died = 0
        while driver.advance() is not None:  # every other epoch, of whichever part
            died += driver.advance_with_crash(point)
        assert died > 2
        assert all(part.has_ended for part in driver.parts)
        assert best_of(driver) == runs.expected


@pytest.mark.parametrize(("via", "silent_slot"), crossed(["exchange", "bus"], [False, True]))
def test_a_stage_concludes_when_every_task_of_the_one_before_has_told_of_the_end(
    via: str, silent_slot: bool
) -> None:
    """Each task is silent once: nothing counts then, and no stage after it has been asked."""
    runs = Runs(via)
    refused = 0
    with runs.driver as driver:
        runs.feed(0, 50)
        for part in driver.parts:
            part.end_at_present()
        with silent_tasks(whole_slots=silent_slot) as (silent, asked):
            is_over = False
            while not is_over:
                try:
                    is_over = driver.advance() is None
                except UnavailableError:
                    refused += 1
                    assert not all(state.ended for state in runs.states())
        # Sources have told with the rows; each task of the two stages behind them was awaited.
        assert silent == {(stage, n) for stage in ("by-user", "by-time") for n in range(2)}
        assert refused == len(silent)
        if via == "exchange":
            assert asked == [("batch", 1)] * 2 + [("batch", 1), ("batch", 2)] * 3
        else:
            assert asked == [("batch@by-user", 0)] * 3 + [("batch@by-time", 0)] * 3
        assert (runs.sent(), set(runs.numbers())) == (runs.expected, {1})


def test_a_part_concludes_when_the_marks_of_all_partitions_have_come() -> None:
    """The next part looks for work between any two marks of the end."""
    runs, heard = Runs("bus"), list[bool]()
    with runs.driver as driver:
        runs.feed(0, 50)
        first, second, _ = driver.parts
        for part in driver.parts:
            part.end_at_present()

        def look() -> None:
            if first.state.ended:
                while driver.advance(part=1) is not None:
                    pass
                heard.append(second.has_ended)

        with each_at("feed.mark_published", look):
            while driver.advance(part=0) is not None:
                pass
        assert heard == [False, True]
        runs.finish()
        assert runs.sent() == runs.expected


def test_outputs_are_replaced_where_that_is_asked_for(via: str) -> None:
    runs = Runs(via, replace=True)
    with runs.driver:
        runs.feed(0, 50)
        runs.finish()
        runs.feed(50, 70)
        assert runs.begin() is not None
        assert runs.sent() == Counter()
        runs.finish()
        assert runs.sent() == runs.expected


def test_outputs_are_replaced_by_a_run_that_a_reset_began(via: str) -> None:
    runs = Runs(via, replace=True)
    with runs.driver as driver:
        runs.feed(0, 50)
        runs.finish()
        driver.crash()
        reset(driver, {"clicks": []})
        assert runs.begin() is None
        for part in driver.parts:
            part.end_at_present()
        driver.advance()
        assert runs.begin() is None  # what the run itself has sent by now stays
        runs.finish()
        assert (runs.sent(), set(runs.numbers())) == (runs.expected, {2})


def test_a_run_that_crashed_is_gone_on_with(runs: Runs) -> None:
    runs.feed(0, 50)
    runs.finish()
    assert runs.begin() is not None
    for part in runs.driver.parts:
        part.end_at_present()
    runs.driver.advance()
    assert runs.begin() is None
    runs.finish()
    assert (runs.sent(), set(runs.numbers())) == (runs.expected + runs.expected, {2})


def test_a_driver_that_died_after_the_last_commit_is_followed_by_one_of_the_same_run(
    runs: Runs,
) -> None:
    """It cannot have told anybody that the run was over."""
    runs.feed(0, 50)
    runs.driver.finish()
    assert runs.begin() is None
    runs.finish()
    assert (runs.sent(), set(runs.numbers())) == (runs.expected, {1})
    assert runs.begin() is not None


def test_a_run_that_was_rewound_after_its_end_ends_again_before_the_next_begins() -> None:
    """What was said of its first end is not said of the second."""
    runs = Runs("exchange")
    with runs.driver as driver:
        runs.feed(0, 50)
        driver.run()
        epoch = driver.coordinator.state.epoch
        runs.finish()
        driver.crash()
        rewind(driver, epoch)
        driver.finish()
        assert runs.begin() is None
        runs.finish()
        assert set(runs.numbers()) == {1}
        assert runs.begin() is not None


@pytest.mark.parametrize(
    ("point", "via"),
    more(
        [(point, WAYS[n % 2] if point in ONE_PART else "bus") for n, point in enumerate(STEPS)],
        [(point, via) for point in STEPS for via in WAYS if point in ONE_PART or via == "bus"],
    ),
)
def test_a_crash_while_a_run_begins_leaves_all_of_it_or_nothing(via: str, point: str) -> None:
    runs = Runs(via, replace=point == "run.outputs_emptied")
    with runs.driver:
        runs.feed(0, 50)
        runs.finish()

        with crash_at(point):
            runs.begin()
        with suppress(PartsError):  # other commands refuse a job of which half has begun
            runs.driver.start()
        runs.begin()
        runs.finish()
        twice = runs.expected + runs.expected
        assert runs.sent() == (runs.expected if point == "run.outputs_emptied" else twice)
        assert set(runs.numbers()) == {2}
        assert runs.begin() is not None
