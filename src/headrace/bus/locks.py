"""The lock of a file, waited for with a deadline."""

from __future__ import annotations

import fcntl

from headrace.clock import Clock, Deadline

PAUSE_S = 0.0005
PAUSE_MOST_S = 0.01


def take_lock(descriptor: int, clock: Clock, timeout_s: float) -> bool:
    """Take the lock of an open file; False when another process has it all the time."""
    deadline = Deadline(clock, timeout_s)
    pause = PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.expired:
                return False
        else:
            return True
        clock.sleep(deadline.remaining(pause))
        pause = min(2 * pause, PAUSE_MOST_S)
