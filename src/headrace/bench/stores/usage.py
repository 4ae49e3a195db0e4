"""What a run takes of the machine: processor time, disk and network, from ``/proc``."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """What one process has used since it began."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    def __sub__(self, other: Used) -> Used:
        """Return what was used since."""
        return Used(
            self.cpu_s - other.cpu_s,
            self.read_bytes - other.read_bytes,
            self.written_bytes - other.written_bytes,
        )


@dataclass(frozen=True)
class Snapshot:
    """What all processes of a run have used: Python workers, driver, JVM, servers."""

    workers: dict[int, Used]
    driver: dict[int, Used]
    jvm: dict[int, Used]
    servers: dict[int, Used]

    def since(self, before: Snapshot) -> dict[str, Used]:
        """Return what each part used after an earlier snapshot."""
        return {
            part: _sum(getattr(self, part), getattr(before, part))
            for part in ("workers", "driver", "jvm", "servers")
        }


def snapshot(servers: tuple[int, ...] = ()) -> Snapshot:
    """Look at this process, all that it started, and the servers named."""
    mine = _descendants(os.getpid())
    java = [pid for pid in mine if _name(pid) == "java"]
    python = [pid for root in java for pid in _descendants(root) if _name(pid) != "java"]
    return Snapshot(_used(python), _used([os.getpid()]), _used(java), _used(list(servers)))


def _sum(after: dict[int, Used], before: dict[int, Used]) -> Used:
    parts = [used - before.get(pid, Used()) for pid, used in after.items()]
    return Used(
        sum(part.cpu_s for part in parts),
        sum(part.read_bytes for part in parts),
        sum(part.written_bytes for part in parts),
    )


def _used(pids: list[int]) -> dict[int, Used]:
    found = {}
    for pid in pids:
        with suppress(OSError):  # it ended meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            io = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            found[pid] = Used(cpu_s, io["read_bytes"], io["write_bytes"])
    return found


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
