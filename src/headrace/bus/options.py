"""Numbers that users tune on a bus; the names are those of the ``bus`` settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.config import BusSettings
from headrace.errors import InvalidInputError

MIB = 1 << 20


class Fsync(StrEnum):
    """When an append is forced to the disk. All appenders of a stream should use the same.

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
        fsync: when appends are forced to the disk (file bus).
        fsync_interval_ms: longest time between two syncs under ``Fsync.INTERVAL``.
        segment_bytes: a segment of this size is followed by a new one.
        adopt_bytes: a whole file at least this large is adopted by link, not copied.
        batch_bytes: the largest batch that an append takes.
        record_bytes: the largest record in it.
        compact_bytes: so much must be new in a partition of a compacted stream, and as much as is
            compacted, before its appenders compact it.
        index_entries: entries of an index file before a new one is begun.
        lock_timeout_s: longest wait for other processes that append to a partition.
        open_partitions: partitions whose files an appender keeps open.
        open_segments: segments that readers keep mapped.
    """

    fsync: Fsync = Fsync.ALWAYS
    fsync_interval_ms: int = 200
    segment_bytes: int = 64 * MIB
    adopt_bytes: int = 4 * MIB
    batch_bytes: int = 64 * MIB
    record_bytes: int = 8 * MIB
    compact_bytes: int = 64 * MIB
    index_entries: int = 65_536
    lock_timeout_s: float = 30.0
    open_partitions: int = 128
    open_segments: int = 256

    @classmethod
    def of(cls, settings: BusSettings) -> BusOptions:
        """Return the options that settings give; what they do not name keeps its default."""
        return cls(**settings.model_dump())

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
