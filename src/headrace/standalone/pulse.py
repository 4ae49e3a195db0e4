"""Notices a process that is frozen: it says nothing, and no part of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

BEAT_S = 0.5


class Activity(NamedTuple):
    """What the kernel says of a process: a letter for its state, and ticks that it has run."""

    state: str
    ticks: int


def activity(process: int) -> Activity | None:
    """Return what a process is doing; ``None``: the system does not tell, or it has gone."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return Activity(words[0], int(words[11]) + int(words[12]))
    except (OSError, ValueError, IndexError):
        return None


class Pulse:
    """What is known of whether a process goes on.

    One that does not answer may be busy in native code that lets no other thread run. So it
    counts as frozen only where it has not run either, waits for no processor, and nobody has
    stopped it to look at it with a debugger. Time is counted in beats: while the process that
    counts is itself frozen, none goes by.

    Args:
        process: its number.
        silence_s: after so long it is frozen.
    """

    def __init__(self, process: int, silence_s: float) -> None:
        self._process, self._silence_s = process, silence_s
        self._heard = True
        self._silent_s, self._ticks = 0.0, -1

    def heard(self) -> None:
        """Note a sign of life; from any thread."""
        self._heard = True

    def beat(self, after_s: float = BEAT_S) -> bool:
        """Look once more, so long after the last time; return whether it is frozen."""
        if self._heard:
            self._heard, self._silent_s = False, 0.0
            return False
        seen = activity(self._process)
        if seen is None or seen.state in "RtZ" or seen.ticks != self._ticks:
            self._ticks = -1 if seen is None else seen.ticks
            self._silent_s = 0.0
            return False
        self._silent_s += after_s
        return self._silent_s >= self._silence_s
