"""Which stores are compared, and how much work each is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.graph.remote import Access

Workload = Literal["readwrite", "readonly"]
WORKLOADS: tuple[Workload, ...] = ("readwrite", "readonly")
DELAY_MS = 0.5
"""Added to a remote store each way, so twice to a round trip."""


@dataclass(frozen=True)
class Case:
    """One kind of store.

    Args:
        name: on the command line and in the JSON.
        label: in figures.
        kind: of the store.
        changelog: whether its changes are logged.
        is_cached: whether values and blocks are kept in memory.
        access: of a remote store.
        delay_ms: added to a remote store each way.
        speed: rows a second to expect, about: decides how many rows a run takes.
    """

    name: str
    label: str
    kind: str
    speed: int
    changelog: bool = True
    is_cached: bool = True
    access: Access = "batched"
    delay_ms: float = 0.0

    @property
    def is_remote(self) -> bool:
        """Say whether it is on a server."""
        return self.kind == "remote"

    @property
    def is_batch(self) -> bool:
        """Say whether it works on columns, and not on one message after the other."""
        return self.kind == "columnar"


CASES = (
    Case("memory", "in-memory", "memory", 500_000, changelog=False),
    Case("memory-log", "in-memory + CLog", "memory", 450_000),
    Case("disk", "on-disk", "rocksdb", 450_000, changelog=False),
    Case("disk-log", "on-disk + CLog", "rocksdb", 400_000),
    Case("disk-no-cache", "on-disk no cache", "rocksdb", 200_000, False, is_cached=False),
    Case("columnar", "columnar + CLog", "columnar", 4_000_000),
    Case("remote-batched", "remote, batched", "remote", 150_000),
    Case("remote-async", "remote, async", "remote", 80_000, access="async"),
    Case("remote-blocking", "remote, blocking", "remote", 8_000, access="blocking"),
    Case("far-batched", "remote + 0.5 ms, batched", "remote", 120_000, delay_ms=DELAY_MS),
    Case("far-async", "remote + 0.5 ms, async", "remote", 70_000, True, True, "async", DELAY_MS),
    Case("far-blocking", "remote + 0.5 ms, blocking", "remote", 700, True, True, "blocking", 0.5),
)
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        ids: different keys.
        seconds: that a rate is measured over, about.
        latency_seconds: the same for each of both latencies.
        epoch_rows: of an epoch, at most.
        repeats: how often a rate is measured; the middle one counts.
        offered: rows a second that are appended for the latency a user sees; half of what a
            store reaches where that is less.
    """

    ids: int
    seconds: float
    latency_seconds: float
    epoch_rows: int
    repeats: int = 1
    offered: int = 10_000

    def rows(self, case: Case, seconds: float) -> int:
        """Return how many rows a case is given for a time."""
        return max(2_000, int(case.speed * seconds))


FULL = Size(ids=1_000_000, seconds=4.0, latency_seconds=3.0, epoch_rows=1_000_000, repeats=3)
QUICK = Size(ids=50_000, seconds=0.4, latency_seconds=0.3, epoch_rows=200_000)
EPOCHS = 5
"""The least number of epochs of a run; the first warms up and is not measured."""
