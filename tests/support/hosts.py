"""Hosts and slots of a test driver: where tasks are, what they read there, attempts that linger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest

from headrace.clock import SteadyClock
from headrace.coordinator import coordinator
from headrace.coordinator.commands import Drain, DrainAnswer, Request
from headrace.coordinator.drain import CORDON_FOLDER as DRAINED
from headrace.coordinator.drain import CordonedHost, CordonedHosts
from headrace.coordinator.epoch import EpochRun, MisplacedError
from headrace.coordinator.epoch_placement import MAX_STANDBY_LAG_EPOCHS
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.host_state import FAILOVER, NO_FAILOVER, EventKind, HostState
from headrace.coordinator.host_state import violations as _violations
from headrace.coordinator.job_events import event_text
from headrace.coordinator.job_storage import STORAGES
from headrace.coordinator.placement import Slot
from headrace.coordinator.plan_files import load_plan
from headrace.coordinator.worker_host import DELETED_MARK, collect_garbage, open_host, stop_file
from headrace.errors import HeadraceError, InvalidInputError
from headrace.files import Files
from headrace.runtime.background import (
    RETRY_EPOCHS,
    BackgroundWork,
    InlineBackground,
    ThreadBackground,
    WorkHandle,
)
from headrace.runtime.exchange import ExchangeWriter
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.runtime.slot import run_slot
from headrace.runtime.slot_host import SlotHost
from headrace.state.restore import RestoreCounts
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment import SegmentReader
from headrace.testing import TestDriver
from headrace.testing.driver import LocalRunner

__all__ = [
    "DELETED_MARK",
    "DRAINED",
    "FAILOVER",
    "FILES",
    "MAX_STANDBY_LAG_EPOCHS",
    "NO_FAILOVER",
    "RETRY_EPOCHS",
    "STORAGES",
    "AtOnce",
    "BackgroundWork",
    "CordonedHost",
    "EventKind",
    "FreezingDriver",
    "FreezingRunner",
    "HostState",
    "InlineBackground",
    "Never",
    "T",
    "ThreadBackground",
    "TurnedDriver",
    "WorkHandle",
    "carry_out",
    "collected",
    "copies_of_positions",
    "covered",
    "doubled",
    "drain",
    "drained_hosts",
    "epochs_of",
    "epochs_on_disk",
    "follow_drains",
    "forget_time",
    "happened",
    "happenings",
    "homes",
    "host",
    "loads",
    "look_for_hot_keys",
    "lose_home",
    "now_and_then",
    "number_of",
    "orders",
    "plan_of",
    "restoring",
    "rows_exchanged",
    "silent_tasks",
    "slots_by_the_hosts_clock",
    "standby_epochs",
    "state_of",
    "stop_in_mid_epoch",
    "turn_slots",
    "violations",
]

T = TypeVar("T")
FILES = Files(sync=False)


def state_of(driver: TestDriver) -> Any:
    """Return what the driver of the first part last committed."""
    return driver.parts[0].state


def homes(driver: TestDriver) -> dict[str, str]:
    """Return the host of each task of the first part."""
    return {name: task.host for name, task in state_of(driver).tasks.items()}


def loads(driver: TestDriver) -> Counter[str]:
    """Return how many tasks each host has."""
    return Counter(homes(driver).values())


def host(driver: TestDriver, slot: int) -> str:
    """Return the identity of the host that a slot is on; slot n of n < hosts is on host n."""
    return driver.runner.host(slot).host


def number_of(driver: TestDriver, named: str) -> int:
    """Return the number of a host that is there, by its identity."""
    return next(
        number
        for number in range(driver.hosts)
        if number not in driver.runner.down and host(driver, number) == named
    )


def lose_home(driver: TestDriver) -> list[str]:
    """Lose the host with most tasks, of several the first; return the tasks that were there."""
    before = homes(driver)
    counts = Counter(before.values())
    lost = max(sorted(counts), key=lambda one: counts[one])
    driver.lose_host(number_of(driver, lost))
    return [name for name, home in before.items() if home == lost]


def standby_epochs(driver: TestDriver) -> dict[str, int]:
    """Return how far the first standby of each task has come."""
    return {name: found[0].epoch for name, found in state_of(driver).standbys.items()}


def violations(driver: TestDriver) -> list[str]:
    """Return what no placement of standbys may have: one beside its task, two on one host."""
    return list(_violations(homes(driver), state_of(driver).standbys))


def happenings(driver: TestDriver) -> list[str]:
    """Return the kinds of what happened to the hosts of the job, the oldest first."""
    return [one.what for one in state_of(driver).host_events]


def happened(driver: TestDriver, what: EventKind) -> list[str]:
    """Return the texts of what happened to hosts, of one kind."""
    state = state_of(driver)
    return [event_text(one, state) for one in state.host_events if one.what == what]


def drain(
    driver: TestDriver, named: str, *, undo: bool = False, everywhere: bool = False
) -> DrainAnswer:
    """Ask the driver of the first part to empty a host, or to use it again."""
    part, command = driver.parts[0], Drain(named, undo, everywhere)
    try:
        return command.run(part, Request.of(command, driver.clock))
    except InvalidInputError as error:
        return command.refused(part, error)


def follow_drains(driver: TestDriver) -> None:
    """Let the driver look now at which hosts are drained for all jobs."""
    driver.parts[0].host_commands.follow(drained_hosts(driver), now=True)


def drained_hosts(driver: TestDriver) -> CordonedHosts:
    """Return the note of the hosts that are drained for all jobs of the home."""
    return CordonedHosts(driver.storage.parent, FILES)


@contextmanager
def restoring(*, standbys: bool = False) -> Iterator[list[tuple[Path, int]]]:
    """Note what tasks read to bring their stores back: file, bytes.

    Args:
        standbys: with what standbys read.
    """
    read: list[tuple[Path, int]] = []
    opened: dict[int, Path] = {}
    opens, applied = RestoreCounts.opens, RestoreCounts.applied

    def noted(self: RestoreCounts, path: Path) -> None:
        opened[id(self)] = path
        opens(self, path)

    def counted(self: RestoreCounts, size: int, entries: int) -> None:
        if standbys or self.log is not None:
            read.append((opened[id(self)], size))
        applied(self, size, entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RestoreCounts, "opens", noted)
        patch.setattr(RestoreCounts, "applied", counted)
        yield read


def epochs_of(read: Sequence[tuple[Path, int]]) -> set[int]:
    """Return the epochs whose files were read."""
    return {int(path.name.partition("-")[0]) for path, size in read if size}


class TurnedDriver(TestDriver):
    """Slots have other numbers than before, as after the restart of a whole application."""

    __test__ = False

    def state_dir(self, host: int) -> Path:
        return super().state_dir((host + 1) % self.hosts)


def turn_slots(driver: TestDriver) -> None:
    """Let slots whose processes have ended have other places than before."""
    opened, slots = driver.runner._open, driver.slots
    driver.runner._open = lambda slot: opened((slot + 1) % slots)


def collected(driver: TestDriver, number: int, keep_s: float) -> list[Path]:
    """Remove local state of a host that nobody has used for so long; returns what is gone."""
    return collect_garbage(driver.state_dir(number), FILES, driver.clock, keep_s)


@contextmanager
def doubled(driver: TestDriver, which: Literal["first", "last"]) -> Iterator[None]:
    """Have two attempts of each order answer, of which the driver takes the first or the last."""
    driver.runner.doubled = which
    try:
        yield
    finally:
        driver.runner.doubled = None


def orders(driver: TestDriver) -> list[SlotOrder]:
    """Return the orders that slots of the first part got so far, the oldest first."""
    return list(driver.runner.history)


def carry_out(order: SlotOrder, process: SlotHost) -> SlotReport:
    """Carry an order out once more, in a process of a slot: an attempt that nobody waits for."""
    return run_slot(order, process)


@contextmanager
def rows_exchanged() -> Iterator[list[int]]:
    """Note how many rows each task sends to the next level."""
    sent: list[int] = []
    write = ExchangeWriter.write

    def counting(self: ExchangeWriter, *arguments: Any) -> Any:
        sent.append(self.rows)
        return write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExchangeWriter, "write", counting)
        yield sent


@contextmanager
def silent_tasks(
    *, whole_slots: bool
) -> Iterator[tuple[set[tuple[str, int]], list[tuple[str, int]]]]:
    """Let each task be silent once where its stage is to hear of the end of its inputs.

    Args:
        whole_slots: the report of its slot has no tasks then; else all but this one.

    Yields:
        The tasks that were silent, by stage and number; the levels that were asked, by job.
    """
    real = LocalRunner.run
    silent: set[tuple[str, int]] = set()
    asked: list[tuple[str, int]] = []

    def run(runner: LocalRunner, orders: list[SlotOrder]) -> list[SlotReport]:
        reports = real(runner, orders)
        if not orders[0].ended:
            return reports
        asked.append((orders[0].job, orders[0].level))
        for number, report in enumerate(reports):
            for task in report.tasks:
                if (task.stage, task.task) not in silent:
                    silent.add((task.stage, task.task))
                    left = [] if whole_slots else [one for one in report.tasks if one is not task]
                    reports[number] = msgspec.structs.replace(report, tasks=left)
                    return reports
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalRunner, "run", run)
        yield silent, asked


def forget_time(driver: TestDriver) -> None:
    """Let the driver know as little of the time as one in a process that has just begun."""
    driver._steady = SteadyClock(driver.clock)


def slots_by_the_hosts_clock(driver: TestDriver) -> None:
    """Let slots that are opened from now on read the clock of their host alone."""
    driver._open_slot = lambda part, slot: open_host(  # type: ignore[method-assign]
        storage=driver.storage,
        bus=driver.bus,
        state_dir=driver.state_dir(0),
        clock=driver.clock,
        files=FILES,
    )


def plan_of(driver: TestDriver, digest: str) -> Any:
    """Read a plan of the job as a slot does, with the functions in it."""
    return load_plan(driver.storage, digest, FILES)


def covered(driver: TestDriver, ref: Any) -> list[tuple[int, str]]:
    """Return the epochs and attempts that a file of a task stands for, as it says itself."""
    reader = SegmentReader(FILES, driver.storage / ref.path, ref.checksum)
    return list(reader.header.covers)


def epochs_on_disk(folder: Path, stores: Sequence[str], scope: str) -> list[int]:
    """Return the epoch that a RocksDB folder is at, as it would be found after a kill."""
    backend = RocksDBBackend(folder, stores, scope)
    found = [] if backend.position is None else [backend.position.epoch]
    backend.close()
    return found


@contextmanager
def copies_of_positions() -> Iterator[list[str]]:
    """Note each time an epoch copies where its inputs stand, which may be of many partitions."""
    copies: list[str] = []

    class Positions(dict[int, Any]):
        def __iter__(self) -> Any:  # what copies a dictionary of another class comes by here
            return self.keys()

        def keys(self) -> Any:
            copies.append("copy")
            return super().keys()

    def counted(*given: Any, **named: Any) -> EpochRun:
        run = EpochRun(*given, **named)
        inputs = {name: Positions(held) for name, held in run.state.inputs.items()}
        run.state = msgspec.structs.replace(run.state, inputs=inputs)
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "EpochRun", counted)
        yield copies


def stop_in_mid_epoch(driver: TestDriver) -> EpochSummary | None:
    """Run an epoch whose sources stop reading at once; what they reached is committed."""
    path = stop_file(driver.storage, driver.coordinator.generation)
    path.touch()
    found = driver.advance()
    path.unlink()
    return found


def look_for_hot_keys(driver: TestDriver, *, looks: bool) -> None:
    """Say whether slots that are opened from now on look for heavy keys."""
    opened = driver._open_slot

    def open_slot(part: str, slot: int) -> Any:
        return replace(opened(part, slot), hot_keys=looks)

    driver._open_slot = open_slot  # type: ignore[method-assign]


class FreezingRunner(LocalRunner):
    """Slots of frozen hosts keep their order to themselves, until they wake."""

    def __init__(self, open_slot: Callable[[int], SlotHost], slots: int) -> None:
        super().__init__(open_slot, slots)
        self.frozen: set[int] = set()
        self.left: list[tuple[SlotHost, SlotOrder]] = []

    def slots(self) -> list[Slot]:
        self.down |= self.frozen
        return super().slots()

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run what lives; give the others up, as a driver does that hears nothing of them."""
        stopped = [order for order in orders if order.slot in self.frozen - self.down]
        if not stopped:
            return super().run(orders)
        for order in orders:
            if order not in stopped:
                self.run_one(order)
        self.left += [(self.host(order.slot), order) for order in stopped]
        self.down |= self.frozen
        raise MisplacedError(f"slots {[order.slot for order in stopped]} say nothing")

    def thaw(self, slots: Collection[int]) -> None:
        """Let slots end what they were doing; the driver hears of it, and does not care."""
        for process, order in [one for one in self.left if one[1].slot in slots]:
            with suppress(HeadraceError):
                run_slot(order, process)
        self.left = [one for one in self.left if one[1].slot not in slots]
        self.frozen -= set(slots)
        self.down -= set(slots)


class FreezingDriver(TestDriver):
    """A driver whose hosts can be frozen: they keep their orders, and carry them out later."""

    __test__ = False

    def _new_runner(self, part: str) -> FreezingRunner:
        return FreezingRunner(lambda slot: self._open_slot(part, slot), self.slots)

    def _of(self, host: int) -> set[int]:
        return {slot for slot in range(self.slots) if slot % self.hosts == host}

    def _runners(self) -> list[FreezingRunner]:
        return [one for one in self.runners.values() if isinstance(one, FreezingRunner)]

    def freeze(self, host: int) -> None:
        """Let a host answer nothing any more."""
        for runner in self._runners():
            runner.frozen |= self._of(host)

    def thaw(self, host: int) -> None:
        """Let a frozen host go on where it was."""
        for runner in self._runners():
            runner.thaw(self._of(host))


class AtOnce(InlineBackground):
    """Standbys are where they are to be before the next epoch begins."""

    def submit(self, work: BackgroundWork[T]) -> WorkHandle[T]:
        ticket = super().submit(work)
        self.look(ticket)
        return ticket


class Never(InlineBackground):
    """Standbys are ordered somewhere, and never get there."""

    def look(self, ticket: WorkHandle[T]) -> bool:
        del ticket
        return False


def now_and_then(is_time: Callable[[], bool]) -> Callable[[], InlineBackground]:
    """Return a background for ``TestDriver`` whose merges are done when they are looked at."""
    return lambda: InlineBackground(is_time)
