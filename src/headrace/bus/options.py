"""Numbers that users tune on a bus; the names are those of the ``bus`` settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.config import BusSettings
from headrace.errors import InvalidInputError

MIB = 1 << 20


class Fsync(StrEnum):
    """When an append is synced to the disk. All appenders of a stream should use the same.

    ``ALWAYS``
        an append that has returned survives the loss of power.
    ``INTERVAL``
        the crash of a process loses nothing; the loss of power loses up to ``fsync_interval_ms``
        of appends, and may leave the last of them as damage that a read reports.
    ``NEVER``
        the crash of a process loses nothing; when the disk is written is up to the
        operating system, often 30 s later.
    """

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True)
class BusOptions:
    """Limits and the sync policy of a bus.

    Args:
        fsync: when appends are synced to the disk (file bus).
        fsync_interval_ms: longest time between two syncs under ``Fsync.INTERVAL``.
        segment_bytes: size at which a new segment begins.
        adopt_bytes: a complete file of at least this size is adopted by link, not copied.
        batch_bytes: the largest batch of an append.
        record_bytes: the largest record in it.
        compact_bytes: least new bytes in a partition of a compacted stream before its appenders
            compact it; there must also be as many as compacted ones.
        index_entries: appends in an index file before a new one begins.
        lock_timeout_s: longest wait for other processes that append to the partition.
        seal_after_s: wait after which a process that has the lock of a partition, and appends or
            compacts nothing, is kept out; it appends again when it wakes up.
        open_partitions: partitions whose files an appender keeps open.
        open_segments: segments that readers keep mapped.
        offload_address: of an object storage, for segments that streams do not keep here (file
            bus).
    """

    fsync: Fsync = Fsync.ALWAYS
    fsync_interval_ms: int = 200
    segment_bytes: int = 64 * MIB
    adopt_bytes: int = 4 * MIB
    batch_bytes: int = 64 * MIB
    record_bytes: int = 8 * MIB
    compact_bytes: int = 64 * MIB
    index_entries: int = 16_384
    lock_timeout_s: float = 30.0
    seal_after_s: float = 10.0
    open_partitions: int = 128
    open_segments: int = 256
    offload_address: str = ""

    @classmethod
    def of(cls, settings: BusSettings) -> BusOptions:
        """Return the options from settings; others keep their defaults."""
        return cls(**{name: one for name, one in vars(settings).items() if name != "address"})

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        object.__setattr__(self, "fsync", Fsync(self.fsync))
        least = {
            "fsync_interval_ms": 1,
            "segment_bytes": 1,
            "batch_bytes": 1,
            "record_bytes": 1,
            "index_entries": 2,
            "compact_bytes": 1,
        }
        least |= {"adopt_bytes": 0, "open_partitions": 1, "open_segments": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InvalidInputError(
                    f"bus option {name} is {getattr(self, name)}, expected at least {bound}"
                )
