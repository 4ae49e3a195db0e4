"""Files of tests in memory: bus and stores sync often, which is waiting and proves nothing there.

A test of a full disk, or of a lost one, makes a disk of its own or refuses at a call, so nothing is
missed. `TMPDIR=... make test` has the files elsewhere.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED_BYTES = 4 << 30
"""A whole run takes less than half of it, if it keeps what failed tests leave."""


def use_memory() -> None:
    """Have temporary files of this process and its children in memory, where there is enough.

    Children of pytest find ``TMPDIR`` set, and so the same place.
    """
    if "TMPDIR" in os.environ or not has_room(MEMORY):
        return
    place = MEMORY / f"headrace-tests-{os.getuid()}"
    place.mkdir(exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        return  # of someone else
    place.chmod(0o711)  # a server that must not run as root has its folder below
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # what was found before


def has_room(place: Path) -> bool:
    """Say whether a file system in memory has room, and the machine memory for it."""
    if not os.access(place, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(place)
    return min(found.f_bavail * found.f_frsize, available_bytes()) >= NEEDED_BYTES


def available_bytes() -> int:
    """Return what the kernel says can be had without swapping; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) << 10 if sizes else 0
