"""The clock of a job's epochs: what its driver believes of it, and how doubts are reported."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import CLOCK_RECORD, ClockDeviation, SteadyClock, SystemClock
from headrace.config import Settings
from headrace.coordinator.job_events import JobEventLog
from headrace.durations import duration_text
from headrace.files import Files

ACCEPTED_FILE = "clock.json"


def driver_clock(settings: Settings) -> SteadyClock:
    """Return the clock of a driver; it believes what processes on the same bus believe."""
    most = settings.epoch.clock_jump_s
    most_ms = None if most is None else int(most * 1000)
    return SteadyClock(SystemClock(), max_jump_ms=most_ms, record=settings.bus_dir / CLOCK_RECORD)


class _AcceptedSkew(msgspec.Struct, frozen=True):
    """How far the clock of the driver was ahead of that of the storage when it was accepted."""

    skew_ms: int


class EpochClock:
    """Watches the clock of one driver; its thread calls.

    Args:
        clock: of the driver.
        root: of the job's storage.
        files: the file system.
        event_log: gets doubts.
    """

    def __init__(
        self, clock: SteadyClock, root: Path, files: Files, event_log: JobEventLog
    ) -> None:
        self._clock, self._root, self._files, self._event_log = clock, root, files, event_log
        self.is_reported = False
        """Whether it was reported that the clock is not believed."""

    def begin(self, written: Path, time_ms: int | None) -> None:
        """Compare the clock with what else is known when a driver starts.

        A clock that is ahead of the storage's, which nobody has accepted, is not believed; nor is
        one that is behind the job: its time continues from where it was.

        Args:
            written: a file that was just written to the storage.
            time_ms: of the job's last epoch.
        """
        most = self._clock.max_jump_ms
        if most is None:
            return
        now, there = self._clock.now_ms(), self._clock.storage_ms(written)
        reading = now if self._clock.doubt is None else self._clock.doubt.reading_ms
        believed = now
        if reading - there - self._skew_ms() > most:
            believed = min(believed, there)
        if time_ms is not None and time_ms - reading > most:
            believed = max(believed, time_ms)
        if believed != now:
            self._clock.believe(believed)

    def report(self) -> None:
        """Report that the clock is not believed, or is again."""
        doubt = self._clock.doubt
        said = "the clock is right again, or was accepted" if doubt is None else doubt_text(doubt)
        self._event_log.record("clock", said)
        self.is_reported = doubt is not None

    def _skew_ms(self) -> int:
        with suppress(OSError, msgspec.DecodeError):
            data = self._files.read(self._root / ACCEPTED_FILE)
            return msgspec.json.decode(data, type=_AcceptedSkew).skew_ms
        return 0


def accept_clock(clock: SteadyClock, root: Path, files: Files) -> ClockDeviation | None:
    """Believe the clock of this host from now on, whatever else says; return what was wrong.

    Args:
        clock: of the driver, or of the bus where none runs.
        root: of the job's storage, whose clock may differ from now on as much as it does.
        files: the file system.
    """
    path = root / ACCEPTED_FILE
    files.replace(path, b"{}")
    doubt = clock.accept()
    skew = _AcceptedSkew(clock.now_ms() - clock.storage_ms(path))
    files.replace(path, msgspec.json.encode(skew))
    return doubt


def doubt_text(doubt: ClockDeviation) -> str:
    """Return what is wrong with a clock, in words."""
    far = duration_text(max(1000, abs(doubt.off_ms) // 1000 * 1000))
    where = "ahead of" if doubt.off_ms > 0 else "behind"
    return (
        f"the clock of the driver's host is {far} {where} the time that has passed, and is not "
        "believed: epochs continue by the time that passes"
    )
