"""Items of a test's input beside its rows: crashes, time that passes, epochs that end.

``TestDriver.play`` walks through a list of rows and items. Rows wait until an item, or the end of
the list, lets an epoch read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.coordinator.summary import EpochSummary
from headrace.errors import InvalidInputError
from headrace.graph.durations import duration_ms
from headrace.testing.clock import ManualClock

Row = Mapping[str, Any]


class Played(Protocol):
    """What items do to a driver."""

    clock: ManualClock

    def feed(self, stream: str, rows: Iterable[Row], partition: int | None = None) -> None: ...  # noqa: D102

    def advance(self) -> EpochSummary | None: ...  # noqa: D102

    def run(self) -> int: ...  # noqa: D102

    def finish(self) -> int: ...  # noqa: D102

    def crash(self, *, lose_hosts: Sequence[int] = ()) -> None: ...  # noqa: D102

    def advance_with_crash(self, point: str, nth: int = 1) -> bool: ...  # noqa: D102

    def idle_ms(self, stream: str) -> int: ...  # noqa: D102


class Item(ABC):
    """Something that happens between two rows."""

    @abstractmethod
    def play(self, driver: Played) -> None:
        """Let it happen; all rows before it are in their streams."""


@dataclass(frozen=True)
class Rows(Item):
    """Rows of one stream, or of one of its partitions."""

    stream: str
    rows: Sequence[Row]
    partition: int | None = None

    def play(self, driver: Played) -> None:
        """Append them."""
        driver.feed(self.stream, self.rows, self.partition)


@dataclass(frozen=True)
class Crash(Item):
    """A process dies, at a fault point or between epochs; disks of some hosts with it."""

    point: str | None = None
    nth: int = 1
    lose_hosts: tuple[int, ...] = ()

    def play(self, driver: Played) -> None:
        """Die; at a point, in an epoch that reads what waits."""
        if self.point is not None and not driver.advance_with_crash(self.point, self.nth):
            raise InvalidInputError(
                f"nothing died: the epoch did not pass {self.point!r} {self.nth} times; put rows "
                "or time before the crash, or crash at another point of headrace.faults"
            )
        if self.point is None or self.lose_hosts:
            driver.crash(lose_hosts=self.lose_hosts)


@dataclass(frozen=True)
class Passed(Item):
    """The wall clock moves on."""

    by_ms: int

    def play(self, driver: Played) -> None:
        """Read what waits, then move the clock; what is due since is due in the next epoch."""
        driver.run()
        driver.clock.advance(self.by_ms)


@dataclass(frozen=True)
class Idle(Item):
    """The partitions of a stream are silent for as long as makes them idle."""

    stream: str

    def play(self, driver: Played) -> None:
        """Read what waits, then let the idle timeout pass."""
        driver.run()
        driver.clock.advance(driver.idle_ms(self.stream))


@dataclass(frozen=True)
class Epoch(Item):
    """An epoch ends here."""

    def play(self, driver: Played) -> None:
        """Run one, over what waits."""
        driver.advance()


@dataclass(frozen=True)
class Settled(Item):
    """All that can be done is done here."""

    def play(self, driver: Played) -> None:
        """Run epochs until there is nothing to do."""
        driver.run()


@dataclass(frozen=True)
class Finish(Item):
    """The inputs end here."""

    def play(self, driver: Played) -> None:
        """Read them to their ends and close all windows."""
        driver.finish()


def rows(stream: str, *rows: Row, partition: int | None = None) -> Rows:
    """Rows of a stream that is not the script's own, or of one partition.

    Args:
        stream: its name.
        *rows: by column.
        partition: all go to it; by their key when left out.
    """
    return Rows(stream, rows, partition)


def crash(point: str | None = None, nth: int = 1, *, lose_hosts: Sequence[int] = ()) -> Crash:
    """The process dies in the epoch that reads the rows before; it fails where nothing died.

    Args:
        point: one of ``headrace.faults.FAULT_POINTS``; between two epochs when left out. Points
            that begin with ``slot.`` kill a slot, which is run again; others kill the driver.
        nth: at which pass of the point.
        lose_hosts: hosts whose disks are lost, too.
    """
    return Crash(point, nth, tuple(lose_hosts))


def restart() -> Crash:
    """Every process ends between two epochs, and others go on."""
    return Crash()


def advance_clock(by: str | int) -> Passed:
    """The wall clock moves on, once the rows before were read.

    Args:
        by: a duration such as ``"5m"``, or milliseconds.
    """
    return Passed(by if isinstance(by, int) else duration_ms(by, "advance_clock"))


def idle(stream: str) -> Idle:
    """A stream is silent for its idle timeout; its partitions without rows after this are idle.

    Args:
        stream: of an input with ``idle=``.
    """
    return Idle(stream)


def epoch() -> Epoch:
    """One epoch reads what waits, and commits."""
    return Epoch()


def settled() -> Settled:
    """Epochs run until there is nothing to do."""
    return Settled()


def finish() -> Finish:
    """The inputs end: windows close."""
    return Finish()


def play(driver: Played, stream: str, script: Iterable[Row | Item]) -> None:
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
