"""What a test injects into a job: a manual clock, crashes at fault points, and scripted items.

Items stand between the rows of a test's input: crashes, time that passes, epochs that end.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.coordinator.epoch_records import EpochSummary
from headrace.durations import duration_ms
from headrace.errors import InvalidInputError
from headrace.faults import FAULT_POINTS, injected


class ManualClock:
    """Time moves only by ``advance`` and ``sleep``; names come from the seed.

    ``jump`` sets the wall clock wrong, or right again, while no time passes.

    Args:
        start_ms: first reading of the wall clock.
        seed: of the names.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._passed_ms, self._off_ms = start_ms, 0
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self._passed_ms + self._off_ms

    def monotonic(self) -> float:
        """Return seconds, which no jump changes."""
        return self._passed_ms / 1000

    def uptime(self) -> tuple[str, float]:
        """Return the id of the only boot, and the seconds since it."""
        return "manual", self._passed_ms / 1000

    def storage_ms(self, path: Path) -> int:
        """Return the time without jumps: the storage has a clock of its own."""
        del path
        return self._passed_ms

    def sleep(self, seconds: float) -> None:
        """Move on at once."""
        self.advance(int(seconds * 1000))

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self._passed_ms += by_ms

    def jump(self, by_ms: int) -> None:
        """Move only the wall clock, as somebody who sets it wrong does; backwards if negative."""
        self._off_ms += by_ms

    def new_id(self) -> str:
        """Return the next name of the seed."""
        return f"{self._random.getrandbits(64):016x}"


__all__ = [
    "FAULT_POINTS",
    "DriverCrash",
    "SlotCrash",
    "call_at",
    "crash_at",
    "each_at",
    "points_passed",
]


class DriverCrash(BaseException):
    """The process dies here; not an ``Exception``, so that no code under test handles it."""


class SlotCrash(BaseException):
    """The process that runs a slot dies here; only the runner, which starts another, handles it."""


@contextmanager
def call_at(point: str, act: Callable[[], object], nth: int = 1) -> Iterator[list[str]]:
    """Call ``act`` once, when a fault point is passed for the nth time in a block.

    Passes within ``act`` are not counted. It can raise, which ends the step.

    Args:
        point: one of ``FAULT_POINTS``.
        act: takes no arguments; its result is ignored.
        nth: at which pass of the point.

    Yields:
        One item for each pass so far; fewer than ``nth`` if ``act`` was not called.

    Raises:
        InvalidInputError: no such point.
    """
    passes: list[str] = []

    def hook(name: str) -> None:
        if name == point and len(passes) < nth:
            passes.append(name)
            if len(passes) == nth:
                act()

    with injected(hook, (point,)):
        yield passes


@contextmanager
def crash_at(point: str, nth: int = 1, *, required: bool = True) -> Iterator[None]:
    """Crash when a fault point is passed for the nth time; the block ends there.

    Points that start with ``slot.`` kill the process of a slot, which a ``TestDriver`` starts
    again; all others end the block. The memory of the process is still in reach of the test, so
    drop it, as ``TestDriver.crash`` does.

    Args:
        point: one of ``FAULT_POINTS``.
        nth: at which pass of the point.
        required: fail if nothing died.

    Raises:
        AssertionError: the point was not passed that often.
        InvalidInputError: no such point.
    """

    def die() -> None:
        raise SlotCrash(point) if point.startswith("slot.") else DriverCrash(point)

    with call_at(point, die, nth) as passes:
        try:
            yield
        except DriverCrash:
            return
    if required and len(passes) < nth:
        raise AssertionError(f"nothing died: {point!r} was passed {len(passes)} times, not {nth}")


@contextmanager
def each_at(points: str | Sequence[str], act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` at every pass of fault points in a block, except for those within ``act``.

    Args:
        points: one or several of ``FAULT_POINTS``.
        act: takes no arguments; can raise, which ends the step.

    Raises:
        InvalidInputError: no such point.
    """
    wanted = (points,) if isinstance(points, str) else tuple(points)
    within = False

    def hook(name: str) -> None:
        nonlocal within
        if name in wanted and not within:
            within = True
            try:
                act()
            finally:
                within = False

    with injected(hook, wanted):
        yield


@contextmanager
def points_passed() -> Iterator[list[str]]:
    """Yield the names of the fault points that are passed in a block, in order."""
    seen: list[str] = []
    with injected(seen.append):
        yield seen


Row = Mapping[str, Any]


class ScriptTarget(Protocol):
    """What items do to a driver."""

    clock: ManualClock

    def feed(self, stream: str, rows: Iterable[Row], partition: int | None = None) -> None: ...

    def advance(self) -> EpochSummary | None: ...

    def run(self) -> int: ...

    def finish(self) -> int: ...

    def crash(self, *, lose_hosts: Sequence[int] = ()) -> None: ...

    def advance_with_crash(self, point: str, nth: int = 1) -> bool: ...

    def idle_ms(self, stream: str) -> int: ...


class Item(ABC):
    """Something that happens between two rows."""

    @abstractmethod
    def play(self, driver: ScriptTarget) -> None:
        """Make it happen; all rows before it are in their streams."""


@dataclass(frozen=True)
class Rows(Item):
    """Rows of one stream, or of one of its partitions."""

    stream: str
    rows: Sequence[Row]
    partition: int | None = None

    def play(self, driver: ScriptTarget) -> None:
        """Append them."""
        driver.feed(self.stream, self.rows, self.partition)


@dataclass(frozen=True)
class Crash(Item):
    """A process dies, at a fault point or between epochs; disks of some hosts with it."""

    point: str | None = None
    nth: int = 1
    lose_hosts: tuple[int, ...] = ()

    def play(self, driver: ScriptTarget) -> None:
        """Die; at a point, in an epoch that reads what waits."""
        if self.point is not None and not driver.advance_with_crash(self.point, self.nth):
            raise InvalidInputError(
                f"nothing died: the epoch did not pass {self.point!r} {self.nth} times; put rows "
                "or time before the crash, or crash at another point of headrace.faults"
            )
        if self.point is None or self.lose_hosts:
            driver.crash(lose_hosts=self.lose_hosts)


@dataclass(frozen=True)
class ClockAdvance(Item):
    """The wall clock moves on."""

    by_ms: int

    def play(self, driver: ScriptTarget) -> None:
        """Read what waits, then move the clock; what is due since is due in the next epoch."""
        driver.run()
        driver.clock.advance(self.by_ms)


@dataclass(frozen=True)
class ClockJump(Item):
    """The wall clock is set wrong, or right again, while no time passes."""

    by_ms: int

    def play(self, driver: ScriptTarget) -> None:
        """Read what waits, then move the wall clock alone."""
        driver.run()
        driver.clock.jump(self.by_ms)


@dataclass(frozen=True)
class Idle(Item):
    """The partitions of a stream are silent for as long as makes them idle."""

    stream: str

    def play(self, driver: ScriptTarget) -> None:
        """Read what waits, then let the idle timeout pass."""
        driver.run()
        driver.clock.advance(driver.idle_ms(self.stream))


@dataclass(frozen=True)
class Epoch(Item):
    """An epoch ends here."""

    def play(self, driver: ScriptTarget) -> None:
        """Run one, over what waits."""
        driver.advance()


@dataclass(frozen=True)
class Settled(Item):
    """All that can be done is done here."""

    def play(self, driver: ScriptTarget) -> None:
        """Run epochs until there is nothing to do."""
        driver.run()


@dataclass(frozen=True)
class Finish(Item):
    """The inputs end here."""

    def play(self, driver: ScriptTarget) -> None:
        """Read them to their ends and close all windows."""
        driver.finish()


def rows(stream: str, *rows: Row, partition: int | None = None) -> Rows:
    """Feed rows to another stream, or to one partition.

    Args:
        stream: its name.
        *rows: by column.
        partition: for all rows; by default by their key.
    """
    return Rows(stream, rows, partition)


def crash(point: str | None = None, nth: int = 1, *, lose_hosts: Sequence[int] = ()) -> Crash:
    """Crash in the epoch that reads the rows before; it fails if nothing died.

    Args:
        point: one of ``headrace.faults.FAULT_POINTS``; by default between two epochs. Points that
            start with ``slot.`` kill a slot, which runs again; others kill the driver.
        nth: at which pass of the point.
        lose_hosts: hosts whose disks are lost too.
    """
    return Crash(point, nth, tuple(lose_hosts))


def restart() -> Crash:
    """End every process between two epochs; new ones continue."""
    return Crash()


def advance_clock(by: str | int) -> ClockAdvance:
    """Advance the wall clock after the rows before were read.

    Args:
        by: a duration such as ``"5m"``, or milliseconds.
    """
    return ClockAdvance(by if isinstance(by, int) else duration_ms(by, "advance_clock"))


def jump_clock(by: str | int) -> ClockJump:
    """Set the wall clock wrong, after the rows before were read, while no time passes.

    Args:
        by: a duration such as ``"30d"``, or ``"-30d"`` for back, or milliseconds.
    """
    if isinstance(by, int):
        return ClockJump(by)
    sign = -1 if by.startswith("-") else 1
    return ClockJump(sign * duration_ms(by.removeprefix("-"), "jump_clock"))


def idle(stream: str) -> Idle:
    """Let the idle timeout of a stream pass; its partitions without rows after this are idle.

    Args:
        stream: of an input with ``idle=``.
    """
    return Idle(stream)


def epoch() -> Epoch:
    """Run one epoch, which reads the waiting rows, and commits."""
    return Epoch()


def settled() -> Settled:
    """Run epochs until there is nothing to do."""
    return Settled()


def finish() -> Finish:
    """End the inputs: windows close."""
    return Finish()


def play(driver: ScriptTarget, stream: str, script: Iterable[Row | Item]) -> None:
    """Walk through a script; see ``TestDriver.play``."""
    waiting: list[Row] = []
    for item in script:
        if not isinstance(item, Item):
            waiting.append(item)
            continue
        if waiting:
            driver.feed(stream, waiting)
            waiting = []
        item.play(driver)
    if waiting:
        driver.feed(stream, waiting)
    driver.run()
