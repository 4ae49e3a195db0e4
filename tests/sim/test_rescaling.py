"""Another number of tasks: state, outputs, windows and timers as if it had always been so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.sim.copies import expire_lease
from tests.sim.world import World, make_job

from headrace.coordinator.changes.requests import Requests, RescaleAnswer, RescaleRequest, rescales
from headrace.coordinator.changes.rescale_steps import rescale_stopped
from headrace.coordinator.changes.rescaling import setting_notice, wanted_counts
from headrace.errors import InvalidInputError, NotOwnerError, UnavailableError
from headrace.files import Files
from headrace.testing.driver import TestDriver

JOBS = {
    "memory": make_job("memory"),
    "rocksdb": make_job("rocksdb"),
    "columnar": make_job("memory", "columnar"),
}
KINDS = list(JOBS)
POINTS = ["rescale.published", "commit.written", "rescale.committed"]


@pytest.fixture
def cheap_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are merged and snapshotted too."""
    monkeypatch.setattr("headrace.state.snapshots.MINIMUM_GAIN_BYTES", 1)
    monkeypatch.setattr("headrace.state.tiers.FILE_COST_BYTES", 500)


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


@pytest.mark.parametrize("seed", range(6))
def test_rescales_among_crashes_merges_and_lost_disks(seed: int, cheap_merges: None) -> None:
    """Files that serve several tasks hold what is out of date for some of them."""
    rng = random.Random(seed)
    kind = KINDS[seed % 3]
    with TestDriver(JOBS[kind], tasks=3, hosts=2, seed=seed, keep_epochs=3) as driver:
        world = World(driver, rng)
        for number in range(14):
            world.feed(30)
            driver.run()
            if number % 2:
                driver.coordinator.rescale(rng.choice([1, 2, 3, 5, 7, 16]))
            if rng.random() < 0.3:
                driver.crash(lose_hosts=[rng.randrange(2)] if rng.random() < 0.6 else [])
        check(driver, world)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", POINTS)
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
        state = rescale_stopped(
            driver.storage, "world", 4, None,
            bus=driver.bus, files=Files(sync=False), clock=driver.clock,
        )  # fmt: skip
        assert set(state.task_counts.values()) == {4}
        world.feed(40)
        check(driver, world)


def test_the_state_wins_over_the_settings() -> None:
    """After a rescale; before one, the command is named."""
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.run()
        job = driver.settings.job
        driver.settings = driver.settings.model_copy(
            update={"job": job.model_copy(update={"tasks": 6})}
        )
        driver.crash()
        told = "move it with: headrace jobs rescale world --tasks 6"
        with pytest.raises(InvalidInputError, match=told):
            driver.start()
        rescale_stopped(
            driver.storage, "world", 5, None,
            bus=driver.bus, files=Files(sync=False), clock=driver.clock,
        )  # fmt: skip
        told_now = setting_notice(driver.start().state, 6)
        assert told_now is not None
        assert "job.tasks = 6 is not used since the rescale of epoch" in told_now
        assert setting_notice(driver.coordinator.state, 5) is None
        check(driver, world)


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
            wanted_counts(state, 2, "events")
        assert driver.coordinator.rescale(3) is state


def test_an_older_driver_cannot_go_on() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        old = driver.coordinator
        rescale_stopped(
            driver.storage, "world", 4, None,
            bus=driver.bus, files=Files(sync=False), clock=driver.clock,
        )  # fmt: skip
        with pytest.raises(NotOwnerError):
            old.advance(force=True)
        driver.start()
        check(driver, world)


def request(driver: TestDriver, tasks: int, stage: str = "") -> RescaleRequest:
    return RescaleRequest(driver.clock.new_id(), tasks, stage, 1, "host", 0)


def desk(driver: TestDriver) -> Requests[RescaleRequest, RescaleAnswer]:
    return rescales(driver.storage, Files(sync=False), driver.clock)


def ask(driver: TestDriver, wish: RescaleRequest) -> None:
    """Leave a request without waiting for the answer."""
    with pytest.raises(UnavailableError, match="did not take the request"):
        desk(driver).ask(wish, 0)
    path = driver.storage / "requests" / "rescale.json"
    import msgspec

    path.write_bytes(msgspec.json.encode(wish))


def test_a_running_driver_takes_requests_between_epochs() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        wish = request(driver, 6)
        ask(driver, wish)
        with pytest.raises(UnavailableError, match="a rescale to 6 tasks, which process 1 on host"):
            desk(driver).ask(request(driver, 2), 1)
        world.feed(30)
        driver.advance()
        assert set(driver.coordinator.state.task_counts.values()) == {6}
        answer = desk(driver).taken(wish)
        assert answer is not None
        assert set(answer.counts.values()) == {6}
        assert list((driver.storage / "requests").iterdir()) == []
        check(driver, world)


def test_a_request_that_cannot_be_is_answered_with_the_reason() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        World(driver, random.Random(4)).feed(80)
        driver.advance()
        wish = request(driver, 6, "nowhere")
        ask(driver, wish)
        driver.coordinator.serve_requests()
        answer = desk(driver).taken(wish)
        assert answer is not None
        assert "no keyed stage 'nowhere'" in answer.error


def test_a_driver_that_dies_leaves_the_request_to_the_next() -> None:
    with TestDriver(JOBS["memory"], tasks=3) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.advance()
        wish = request(driver, 6)
        ask(driver, wish)
        world.feed(10)
        assert driver.advance_with_crash("rescale.committed")
        epoch = driver.coordinator.state.epoch
        driver.coordinator.serve_requests()
        answer = desk(driver).taken(wish)
        assert answer is not None
        assert (answer.epoch, set(answer.counts.values())) == (epoch, {6})
        check(driver, world)


def test_a_request_that_is_no_request_is_thrown_away(tmp_path: Path) -> None:
    from headrace.testing import ManualClock

    found = rescales(tmp_path, Files(sync=False), ManualClock())
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "rescale.json").write_bytes(b"{")
    assert found.pending() is None
    assert list((tmp_path / "requests").iterdir()) == []


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
