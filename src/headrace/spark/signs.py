"""Signs of life of slots that take long: written by workers, read by the driver.

A short level costs nothing: the first sign is due a moment after its start. Signs are files
beside the orders, so they come by the same way as these, and are swept with them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

PROPERTY = "headrace.signs"


def described(prefix: Path, every_s: float) -> str:
    """Return what a Spark job tells its slots: how often, and where."""
    return f"{every_s:g} {prefix}"


def _path(prefix: str, slot: int) -> Path:
    return Path(f"{prefix}-{slot:04d}.sign")


@contextlib.contextmanager
def living(said: str | None, slot: int, *, is_new: bool) -> Iterator[None]:
    """Give signs of life while a block runs, in a thread of its own.

    Args:
        said: by the Spark job, as ``described``; none: nobody listens.
        slot: number of the slot.
        is_new: the process has only begun, and has libraries to load: say so at once.
    """
    if not said:
        yield
        return
    every, _, prefix = said.partition(" ")
    path, over = _path(prefix, slot), threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(0 if is_new and not count else float(every)):
            count += 1
            with contextlib.suppress(OSError):  # no sign is a sign, too
                path.write_text(f"{count}")

    thread = threading.Thread(target=beat, name="headrace-signs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(float(every))
        path.unlink(missing_ok=True)


def read_signs(prefix: Path, slots: Collection[int]) -> dict[int, str]:
    """Return what slots have last said; those that have said nothing are left out."""
    found = {}
    for slot in slots:
        with contextlib.suppress(OSError):
            found[slot] = _path(str(prefix), slot).read_text()
    return found


def forget_signs(prefix: Path, slots: Collection[int]) -> None:
    """Remove what slots that never answered have left."""
    for slot in slots:
        with contextlib.suppress(OSError):
            _path(str(prefix), slot).unlink(missing_ok=True)
