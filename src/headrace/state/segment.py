r"""The form of a segment: what one slot attempt changed in one epoch, or a snapshot.

One file serves all tasks of a slot, so an epoch costs one fsync. It is a row of sections,
one for each (stage, task, store), each a row of frames (``records.frame``): either of the
columns ``group``, ``key``, ``value`` (null deletes), sorted by key group, then key; or of a
table's own columns (``records.layout``), sorted by cluster, then hash, which the footer tells.
Then a JSON footer, and a trailer of 20 bytes, little endian:

=====================  ===================================================
``u32`` footer size    bytes of the JSON footer, which ends right before
``u64`` checksum       xxh3 of the footer and its size
``8s`` magic           ``HRSEG01\\n``
=====================  ===================================================

The footer holds a digest over the frame headers of each section, and these hold the
checksums of their columns. So the trailer's checksum, kept in the manifest, stands for
every byte of the file, though a reader verifies only what it reads. ``segment_writer``
writes; ``segment_reader`` reads some key groups or all.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from headrace.state.columnar.sections import TableInfo
from headrace.state.position import Position

FORMAT = 2
MAGIC = b"HRSEG01\n"
TRAILER = struct.Struct("<IQ8s")
SIZE = struct.Struct("<I")
SCHEMA = pa.schema([("group", pa.uint16()), ("key", pa.binary()), ("value", pa.binary())])
CHANGELOG: Literal["changelog"] = "changelog"
SNAPSHOT: Literal["snapshot"] = "snapshot"


class SegmentHeader(msgspec.Struct, frozen=True):
    """Whose state a file holds, and of which epoch.

    ``epoch`` is the one whose changes these are, or for a snapshot the one it stands at. A
    merged segment stands for several epochs, from ``first_epoch`` to ``epoch``; ``covers``
    lists the newest of them with the attempts that were committed then, rising.
    """

    kind: Literal["changelog", "snapshot"]
    job: str
    lineage: str
    generation: int
    epoch: int
    attempt: str
    first_epoch: int = -1
    covers: tuple[tuple[int, str], ...] = ()


class Section(msgspec.Struct, frozen=True):
    """One store of one task within a file.

    ``groups`` are the key groups present, rising; ``starts`` the row at which each begins;
    both are empty for a table, which has ``table``. ``digest`` is xxh3 of the headers of its
    frames, one after the other.
    """

    stage: str
    task: int
    store: str
    begin: int
    end: int
    rows: int
    groups: tuple[int, ...]
    starts: tuple[int, ...]
    digest: int
    table: TableInfo | None = None

    @property
    def first_group(self) -> int:
        """The lowest key group present."""
        return self.groups[0]

    @property
    def last_group(self) -> int:
        """The highest key group present."""
        return self.groups[-1]


class Footer(msgspec.Struct, frozen=True):
    """The JSON at the end of a file."""

    format: int
    header: SegmentHeader
    sections: tuple[Section, ...]


class SegmentInfo(NamedTuple):
    """A written file: what a commit record names."""

    path: Path
    bytes: int
    checksum: int
    sections: tuple[Section, ...]


def header_at(
    kind: Literal["changelog", "snapshot"],
    job: str,
    position: Position,
    generation: int,
    attempt: str,
) -> SegmentHeader:
    """Return the header of a file that belongs to a position."""
    return SegmentHeader(kind, job, position.lineage, generation, position.epoch, attempt)
