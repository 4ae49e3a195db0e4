"""Time, waiting and identity, passed in so that tests can hold them still.

Nothing else in Headrace reads the clock, sleeps or makes random names; the linter
bans ``time.time``, ``time.sleep``, ``random`` and ``uuid`` elsewhere.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.remote import RemoteFile, boot_id, is_remote

MAX_JUMP_MS = 60_000
LOOK_S = 1.0
CLOCK_RECORD = "clock.json"
_BOOTS = 15
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Where time, waiting and unique names come from."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back; for deadlines and durations."""
        ...

    def uptime(self) -> tuple[str, float]:
        """Return which boot of the machine this is, and its seconds, suspended or not."""
        ...

    def storage_ms(self, path: Path) -> int:
        """Return when a file was last written, by the clock of the storage that it is on."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; called only by shells around the pure parts."""
        ...

    def new_id(self) -> str:
        """Return a name of 16 hexadecimal digits that no other call ever returned."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def uptime(self) -> tuple[str, float]:
        """Return the kernel's name of this boot, and its seconds."""
        boot = boot_id() or f"process {os.getpid()}"  # nothing is known of other processes
        return boot, time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def storage_ms(self, path: Path) -> int:
        """Return the time that the file system gave a file, or an object storage an object."""
        if is_remote(path) and (info := RemoteFile(path).info()) is not None:
            return int(info.written_s * 1000)
        return path.stat().st_mtime_ns // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Sleep for the seconds given."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return 16 hexadecimal digits from the operating system's randomness."""
        return os.urandom(8).hex()


def step_times(marks: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return how long each step took, ms; of steps of one name all together.

    Args:
        marks: what has just ended and when, s of a monotonic clock; the first one is the begin.
    """
    found: dict[str, float] = {}
    last = marks[0][1]
    for step, now in marks[1:]:
        found[step] = round(found.get(step, 0.0) + (now - last) * 1000, 2)
        last = now
    return found


class ClockDeviation(NamedTuple):
    """A clock that is not believed: what it says, and the time that it should be, ms."""

    reading_ms: int
    believed_ms: int

    @property
    def off_ms(self) -> int:
        """How far the clock is ahead; below 0 behind."""
        return self.reading_ms - self.believed_ms


class _TimeReference(NamedTuple):
    """A time that is believed: the wall clock at an uptime of the machine, ms and seconds."""

    wall_ms: float
    up_s: float

    def at(self, up_s: float) -> float:
        """Return the time that it is at another uptime."""
        return self.wall_ms + (up_s - self.up_s) * 1000


class SteadyClock:
    """A clock that is believed only as far as time has passed since it was believed last.

    One reading that is a month ahead would empty stores with a time to live, drop what streams
    keep by age, and silence timers for a month after it. So a reading that is further than
    ``max_jump_ms`` from the uptime of the machine does not count: time continues as that does,
    until the clock is right again, or somebody accepts what it says. For any thread.

    Args:
        inner: the clock.
        max_jump_ms: so far it may be off; ``None``: whatever it says counts.
        record: a file by which processes of this boot of the machine know the time that is
            believed; it is made where its folder is there.
    """

    def __init__(
        self, inner: Clock, *, max_jump_ms: int | None = MAX_JUMP_MS, record: Path | None = None
    ) -> None:
        self._inner, self.max_jump_ms, self._record = inner, max_jump_ms, record
        self.monotonic, self.uptime, self.sleep = inner.monotonic, inner.uptime, inner.sleep
        self.storage_ms, self.new_id = inner.storage_ms, inner.new_id
        self.doubt: ClockDeviation | None = None
        """What is wrong with the clock since it was last looked at; ``None``: nothing."""
        self._lock = threading.RLock()
        self._line: _TimeReference | None = None
        self._seen: _TimeReference | None = None  # in the record
        self._looked_s = 0.0

    def now_ms(self) -> int:
        """Return the time that is believed."""
        with self._lock:
            reading = self._inner.now_ms()
            if self.max_jump_ms is None:
                return reading
            boot, up = self._inner.uptime()
            if self._line is None:
                self._seen = self._recorded(boot)
                self._line = self._seen or _TimeReference(reading, up)
                if self._seen is None:
                    self._write(boot)
            believed = self._line.at(up)
            if abs(reading - believed) > self.max_jump_ms and up - self._looked_s >= LOOK_S:
                self._looked_s = up
                line = self._recorded(boot)
                if line is not None and line != self._seen:  # another process has accepted it
                    self._seen, believed = line, line.at(up)
            if abs(reading - believed) <= self.max_jump_ms:
                self._line, self.doubt = _TimeReference(reading, up), None
                return reading
            self.doubt = ClockDeviation(reading, int(believed))
            return int(believed)

    def believe(self, wall_ms: int) -> None:
        """Continue from another time, for there is better evidence than the clock."""
        with self._lock:
            self.now_ms()
            self._line = _TimeReference(wall_ms, self._inner.uptime()[1])
            self.now_ms()

    def accept(self) -> ClockDeviation | None:
        """Believe the clock from now on; return what was wrong with it."""
        with self._lock:
            self.now_ms()
            doubt, self.doubt = self.doubt, None
            boot, up = self._inner.uptime()
            self._line = _TimeReference(self._inner.now_ms(), up)
            self._write(boot)
            return doubt

    def _recorded(self, boot: str) -> _TimeReference | None:
        held = self._read().get(boot)
        return None if held is None else _TimeReference(*held)

    def _read(self) -> dict[str, tuple[float, float]]:
        if self._record is None:
            return {}
        try:
            found = json.loads(self._record.read_bytes())
            return {str(boot): (float(wall), float(up)) for boot, (wall, up) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, boot: str) -> None:
        """Let other processes know what is believed, if that can be."""
        if self._record is None or self._line is None:
            return
        self._seen = self._line
        kept = dict([one for one in self._read().items() if one[0] != boot][-_BOOTS:])
        temporary = self._record.with_name(f".{self._record.name}-{self._inner.new_id()}")
        with suppress(OSError):
            temporary.write_text(json.dumps(kept | {boot: tuple(self._line)}))
            os.replace(temporary, self._record)


class Deadline:
    """One time budget shared by a chain of calls.

    Args:
        clock: where time comes from.
        seconds: the budget; ``None`` never expires.
    """

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock = clock
        self._at = None if seconds is None else clock.monotonic() + seconds

    def remaining(self, at_most: float = float("inf")) -> float:
        """Return seconds left, from 0 to ``at_most``."""
        if self._at is None:
            return at_most
        return max(0.0, min(at_most, self._at - self._clock.monotonic()))

    @property
    def expired(self) -> bool:
        """Say whether nothing is left."""
        return self._at is not None and self._clock.monotonic() >= self._at
