"""Another number of tasks: state, outputs, windows and timers as if it had always been so."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.sim.copies import expire_lease
from tests.sim.world import World, make_job
from tests.support.asking import pending_rescale, requests_left, wait_for_rescale, wish_rescale
from tests.support.changes import rescale, rescale_notice, with_settings
from tests.support.limits import limit
from tests.support.soak import more

import headrace as hr
from headrace.errors import InvalidInputError, NotOwnerError, UnavailableError
from headrace.testing import TestDriver

JOBS = {
    "memory": make_job("memory", small=True),
    "rocksdb": make_job("rocksdb"),
    "columnar": make_job("memory", "columnar"),
}
KINDS = list(JOBS)
POINTS = ["rescale.published", "commit.written", "rescale.committed"]


@pytest.fixture
def cheap_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are merged and snapshotted too."""
    limit(monkeypatch, snapshot_gain_bytes=1)
    limit(monkeypatch, merge_cost_bytes=500)


def check(driver: TestDriver, world: World) -> None:
    driver.finish()
    world.check()


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("memory", (3, 7, 2)),
        ("rocksdb", (3, 7, 2)),
        ("columnar", (3, 7, 2)),
        ("memory", (2, 64, 1)),
    ],
)
def test_up_and_down(kind: str, counts: tuple[int, ...]) -> None:
    """With open windows, timers that wait, and deletions in the changelog."""
    with TestDriver(JOBS[kind], tasks=counts[0], hosts=2) as driver:
        world = World(driver, random.Random(5))
        for count in counts[1:]:
            world.feed(60)
            driver.run()
            held = driver.store("n")
            before = driver.coordinator.state
            state = driver.coordinator.rescale(count)
            assert set(state.task_counts.values()) == {count}
            assert state.lineage != before.lineage
            assert state.epoch == before.epoch + 1
            assert (state.inputs, state.watermarks) == (before.inputs, before.watermarks)
            assert held == driver.store("n")
            world.feed(60)
            driver.run()
        check(driver, world)


def test_results_without_a_key_stay_in_one_partition() -> None:
    """Or who reads partition by partition saw a result after the one that takes its place."""

    @hr.job("job")
    def job(g: hr.Graph) -> None:
        made = g.input("in").window(hr.global_window(rows=2), n=hr.agg.count())
        made.send_to(g.output("out", partitions=5))

    with TestDriver(job, tasks=5) as driver:
        driver.create("in", {"v": pa.int64()})
        for tasks in (5, 3, 1, 7):
            driver.coordinator.rescale(tasks)
            driver.feed("in", [{"v": 0}, {"v": 0}])
            driver.run()
        assert driver.bus.stream("out").ends()[1:] == [0] * 4
        assert [row["n"] for row in driver.output("out")] == [2, 4, 6, 8]


@pytest.mark.parametrize("seed", more([0, 2], range(60), share=30))
def test_rescales_among_crashes_merges_and_lost_disks(seed: int, cheap_merges: None) -> None:
    """Files that serve several tasks hold what is out of date for some of them."""
    rng = random.Random(seed)
    kind = KINDS[seed % 3]
    with TestDriver(JOBS[kind], tasks=3, hosts=2, seed=seed, keep_epochs=3) as driver:
        world = World(driver, rng)
        for number in range(8):
            world.feed(30)
            driver.run()
            if number % 2:
                driver.coordinator.rescale(rng.choice([1, 2, 3, 5, 7, 16]))
            if rng.random() < 0.3:
                driver.crash(lose_hosts=[rng.randrange(2)] if rng.random() < 0.6 else [])
        check(driver, world)


@pytest.mark.parametrize(("kind", "point"), list(zip(KINDS[1:] + KINDS, POINTS, strict=False)))
def test_a_crash_at_every_step(kind: str, point: str) -> None:
    """Before the manifest nothing has happened, after it everything has."""
    with TestDriver(JOBS[kind], tasks=3, hosts=2) as driver:
        world = World(driver, random.Random(9))
        world.feed(80)
        driver.run()
        world.feed(40)
        driver.advance()
        assert driver.advance_with_crash(point, step=lambda: driver.coordinator.rescale(5))
        if kind == "rocksdb":
            driver.crash(lose_hosts=[0])
        counts = set(driver.start().state.task_counts.values())
        happened = point == "rescale.committed"
        assert counts == ({5} if happened else {3})
        driver.coordinator.rescale(5)
        world.feed(40)
        driver.run()
        check(driver, world)


@pytest.mark.parametrize("point", ["commit.published", "epoch.output_published"])
def test_the_outputs_of_the_last_epoch_are_published_once(point: str) -> None:
    """A driver dies with outputs half out; the rescale brings out the rest, and nothing twice."""
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        assert driver.advance_with_crash(point)
        state = rescale(driver, 4)
        assert set(state.task_counts.values()) == {4}
        world.feed(40)
        check(driver, world)


def test_the_state_wins_over_the_settings() -> None:
    """After a rescale; before one, the command is named."""
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.run()
        with_settings(driver, "job", tasks=6)
        driver.crash()
        told = "move it with: headrace jobs rescale world --tasks 6"
        with pytest.raises(InvalidInputError, match=told):
            driver.start()
        rescale(driver, 5)
        told_now = rescale_notice(driver, 6)
        assert told_now is not None
        assert "job.tasks = 6 is not used since the rescale of epoch" in told_now
        assert rescale_notice(driver, 5) is None
        check(driver, world)


class Ring:
    """Sends its key when ten seconds have passed since the message."""

    def process(self, message: Any, context: Any) -> None:
        context.set_timer(message.at + 10_000)

    def on_timer(self, timer: Any, context: Any) -> None:
        context.emit({"id": timer.key})


def test_of_two_tasks_that_become_one_nothing_is_missed_that_was_due_in_either() -> None:
    """Although no row comes to it any more."""

    @hr.job("rings")
    def rings(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").filter(hr.col("id") >= 0).partition_by("id")
        keyed.process(Ring, returns={"id": int}).send_to(g.output("out"))

    with TestDriver(rings, tasks=2) as driver:
        driver.create("in", {"id": pa.int64(), "at": pa.int64()}, partitions=1, time="at")
        driver.feed("in", [{"id": n, "at": 1000 * n} for n in range(8)])
        driver.run()
        driver.coordinator.rescale(1)
        driver.feed("in", [{"id": -1, "at": 10_001}])
        driver.run()
        assert [row["id"] for row in driver.output("out")] == [0]


def test_one_stage_alone() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.run()
        before = driver.coordinator.state.task_counts
        driver.coordinator.rescale(9, "by-id")
        assert driver.coordinator.state.task_counts == {**before, "by-id": 9}
        world.feed(40)
        check(driver, world)


def test_what_cannot_be_is_refused() -> None:
    with TestDriver(JOBS["memory"], tasks=3, key_groups=8) as driver:
        World(driver, random.Random(4)).feed(10)
        driver.run()
        state = driver.coordinator.state
        with pytest.raises(InvalidInputError, match="found 9 tasks, expected 1 to 8"):
            driver.coordinator.rescale(9)
        with pytest.raises(InvalidInputError, match="no keyed stage 'events'; it has 'by-id'"):
            driver.coordinator.rescale(2, "events")
        assert driver.coordinator.rescale(3) is state


def test_an_older_driver_cannot_go_on() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        old = driver.coordinator
        rescale(driver, 4)
        with pytest.raises(NotOwnerError):
            old.advance(force=True)
        driver.start()
        check(driver, world)


def test_a_running_driver_takes_requests_between_epochs() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        with pytest.raises(UnavailableError, match="did not take the request"):
            wait_for_rescale(driver, 6, 0)
        wish = wish_rescale(driver, 6)
        with pytest.raises(UnavailableError, match=r"a rescale to 6 tasks, which process \d+ on"):
            wait_for_rescale(driver, 2, 1)
        world.feed(30)
        driver.advance()
        assert set(driver.coordinator.state.task_counts.values()) == {6}
        answer = wish.answer()
        assert set(answer.counts.values()) == {6}
        assert requests_left(driver.storage) == []
        check(driver, world)


def test_a_request_that_cannot_be_is_answered_with_the_reason() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        World(driver, random.Random(4)).feed(80)
        driver.advance()
        wish = wish_rescale(driver, 6, "nowhere")
        driver.coordinator.serve_requests()
        assert "no keyed stage 'nowhere'" in wish.answer().error


def test_a_driver_that_dies_leaves_the_request_to_the_next() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        wish = wish_rescale(driver, 6)
        world.feed(10)
        assert driver.advance_with_crash("rescale.committed")
        epoch = driver.coordinator.state.epoch
        driver.coordinator.serve_requests()
        answer = wish.answer()
        assert (answer.epoch, set(answer.counts.values())) == (epoch, {6})
        check(driver, world)


def test_a_request_that_is_no_request_is_thrown_away() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        (driver.storage / "requests").mkdir(parents=True)
        (driver.storage / "requests" / "rescale.json").write_bytes(b"{")
        assert pending_rescale(driver) is None
        assert requests_left(driver.storage) == []


def test_a_job_that_keeps_a_copy() -> None:
    """The copy follows a rescale, and what comes back from it has as many tasks."""
    with TestDriver(JOBS["columnar"], tasks=3, durability="backup(30s)") as driver:
        world = World(driver, random.Random(6))
        world.feed(80)
        driver.run()
        driver.coordinator.rescale(5)
        world.feed(40)
        driver.run()
        driver.copy()
        driver.crash(lose_hosts=[0])
        expire_lease(driver)
        assert set(driver.start().state.task_counts.values()) == {5}
        driver.coordinator.rescale(2)
        world.feed(40)
        check(driver, world)
