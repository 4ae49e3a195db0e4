"""Recovery is shown as it gets on, and one that stands still ends in an error with its place."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.clock import Deadline, SystemClock
from headrace.coordinator.recovery import (
    Recovery,
    RecoveryStalledError,
    RecoveryWatch,
    watching,
)
from headrace.files import Files
from headrace.state.restore import FOLDER, RestoreProgressFile
from headrace.testing import ManualClock, TestDriver
from headrace.testing.servers import wait_until

MIB = 1 << 20
SOON_S = 30.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def watch_of(storage: Path, clock: ManualClock) -> RecoveryWatch:
    return RecoveryWatch(storage, Files(sync=False), clock, 60.0)


def log_of(storage: Path, clock: ManualClock, slot: int = 0) -> RestoreProgressFile:
    path = storage / FOLDER / f"{1:08d}-{slot:04d}.json"
    return RestoreProgressFile(path, clock, slot, 7, {("a", slot): 10 * MIB, ("b", slot): 30 * MIB})


def test_all_slots_are_summed_with_rate_and_what_is_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    watch = watch_of(tmp_path, clock)
    assert watch.look() is None
    logs = [log_of(tmp_path, clock, slot) for slot in range(2)]
    for slot, log in enumerate(logs):
        log.task("a", slot)
        log.opens(Path("x.seg"))
    found = watch.look()
    assert found is not None
    assert (found.tasks_done, found.tasks, found.bytes_total) == (0, 4, 80 * MIB)
    assert (found.rate, found.eta_s) == (0.0, None)
    clock.advance(2000)
    for slot, log in enumerate(logs):
        log.task("b", slot)
        log.opens(Path(f"y{slot}.seg"))
        log.reads((slot + 1) * 5 * MIB, 1000)
        clock.advance(500)
        log.reads(0, 0)
    found = watch.look()
    assert found is not None
    assert (found.tasks_done, found.rows, found.bytes_done) == (2, 2000, 35 * MIB)
    assert found.rate == pytest.approx(35 * MIB / 3)
    assert found.eta_s == pytest.approx(45 * MIB / found.rate)
    assert (found.stage, found.task, found.file) == ("b", 0, "y0.seg")
    for log in logs:
        log.close()
    assert watch.look() is None


def test_what_moves_is_never_given_up(tmp_path: Path, clock: ManualClock) -> None:
    watch, log = watch_of(tmp_path, clock), log_of(tmp_path, clock)
    log.task("a", 0)
    for number in range(10):
        log.opens(Path(f"{number}.seg"))
        watch.look()
        clock.advance(59_000)
        assert watch.stalled() is None
    clock.advance(1_000)
    watch.look()
    error = watch.stalled()
    assert isinstance(error, RecoveryStalledError)
    assert error.code == "HR205"
    assert (error.fields["stage"], error.fields["task"]) == ("a", 0)
    assert "at 9.seg; check whether its disk answers" in str(error)


def test_a_new_attempt_begins_anew(tmp_path: Path, clock: ManualClock) -> None:
    """Time that a process spent which died does not count against the next one."""
    watch, log = watch_of(tmp_path, clock), log_of(tmp_path, clock)
    log.task("a", 0)
    log.opens(Path("x.seg"))
    log.opens(Path("y.seg"))
    watch.look()
    clock.advance(59_000)
    log = log_of(tmp_path, clock)
    log.task("a", 0)
    log.opens(Path("x.seg"))
    watch.look()
    clock.advance(59_000)
    assert watch.stalled() is None


class Gate(Files):
    """A disk that does not answer when segments are mapped, until the gate is open."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.reached, self.open = threading.Event(), threading.Event()
        self.is_stuck = False

    def map(self, path: Path) -> pa.Buffer:
        if self.is_stuck and path.suffix == ".seg":
            self.reached.set()
            self.open.wait(SOON_S)
        return super().map(path)


@hr.job("counted")
def counted(g: hr.Graph) -> None:
    g.input("events").partition_by("id").aggregate(store="rocksdb", n=hr.agg.count()).send_to(
        g.output("counts")
    )


def test_a_disk_that_does_not_answer_is_named(tmp_path: Path) -> None:
    """A real job whose stores come back from segments that cannot be read for now."""
    gate = Gate()
    with TestDriver(counted, tasks=1, slots=1, home=tmp_path) as driver:
        driver._files = gate
        driver.create("events", {"id": pa.int64()})
        driver.feed("events", [{"id": n % 5} for n in range(50)])
        driver.run()
        driver.crash(lose_hosts=[0])
        driver.feed("events", [{"id": 1}])
        driver.start()
        gate.is_stuck = True
        watch, given_up = watch_of(driver.storage, driver.clock), threading.Event()
        errors: list[RecoveryStalledError] = []
        shown: list[Recovery | None] = []

        def give_up(error: RecoveryStalledError) -> None:
            errors.append(error)
            given_up.set()

        epoch = threading.Thread(target=driver.advance)
        with watching(watch, shown.append, give_up):
            epoch.start()
            assert gate.reached.wait(SOON_S)
            wait_until(lambda: shown, Deadline(SystemClock(), SOON_S), "a word of the recovery")
            assert shown[0] is not None
            assert shown[0].bytes_total > 0
            driver.clock.advance(61_000)
            assert given_up.wait(SOON_S)
            gate.open.set()
            epoch.join(SOON_S)
        assert errors[0].fields["file"].startswith(str(driver.storage / "segment"))
        assert errors[0].fields["task"] == 0
        assert not [*(driver.storage / FOLDER).iterdir()]
        assert driver.output("counts")[-1] == {"id": 1, "n": 11}
