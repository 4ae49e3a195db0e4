"""Sealed segments of a file bus that move to an object storage, and are read from there.

The segment of the last append stays, for the next one may follow in it; no process ever writes to
another one. Index, settings and holds stay in the folder, so appends and looks need no network. A
segment keeps its name, which is not used again:

1. Put the object. 2. Under the lock of the partition, remove the file, if an entry still names it.
3. The next time, remove objects that no entry names: what a trim or a compaction dropped since.

Who dies between two of them leaves both, or an object that is found again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.bus.index_table import Entry, IndexView, segment_begins
from headrace.bus.log import segment_name
from headrace.errors import CorruptDataError, UnavailableError
from headrace.objects import Address
from headrace.remote import RemoteFile, local_path


class Offloaded(NamedTuple):
    """What was moved of a partition: segments, their bytes, and objects that nobody names now."""

    segments: int
    bytes: int
    removed: int


class OffloadFolder(NamedTuple):
    """Where the segments of a stream go: below an address, in a folder of this very stream."""

    root: Path
    name: str
    identity: str

    def at(self, address: str) -> Path:
        """Return what stands for it; copies of what is read are there, below the bus."""
        return local_path(Address.read(address), self.root) / f"{self.name}-{self.identity}"

    def of(self, address: str, partition: str) -> Path:
        """Return what stands for the folder of a partition."""
        return self.at(address) / partition / "rows"


class SealedSegment(NamedTuple):
    """A segment that nobody writes to: its name, an offset in it, its end, its last append."""

    name: str
    offset: int
    end: int
    last_ms: int


def sealed_segments(view: IndexView, kept: Collection[tuple[int, int]]) -> Iterator[SealedSegment]:
    """Yield all but those that the next append may go to.

    Args:
        view: of the partition.
        kept: number and nonce of further ones that stay.
    """
    found: dict[tuple[int, int], SealedSegment] = {}
    newest = None
    for entries in view.blocks():
        begins = segment_begins(entries)
        ends = np.maximum.reduceat(entries["position"] + entries["length"], begins)
        lasts = np.maximum.reduceat(entries["appended_ms"], begins)
        for begin, end, last in zip(begins.tolist(), ends.tolist(), lasts.tolist(), strict=True):
            newest = key = int(entries["segment"][begin]), int(entries["nonce"][begin])
            offset = int(entries["first_offset"][begin])
            one = found.get(key, SealedSegment(segment_name(*key), offset, 0, 0))
            found[key] = one._replace(end=max(one.end, end), last_ms=max(one.last_ms, last))
    yield from (one for key, one in found.items() if key != newest and key not in kept)


def put_segment(path: Path, far: Path, sealed: SealedSegment) -> int | None:
    """Make the object of a segment; return its bytes, ``None`` where there is no such file.

    Raises:
        CorruptDataError: the file is shorter than its entries say.
        UnavailableError: the storage does not have it whole.
    """
    try:
        size = path.stat().st_size
        if size < sealed.end:
            raise CorruptDataError(
                f"{path} is damaged at byte {size}: the file ends there, the index expects "
                f"{sealed.end} bytes",
                file=str(path),
            )
        remote = RemoteFile(far)
        remote.storage.put_file(remote.name, path)
    except FileNotFoundError:
        return None
    found = remote.info()
    if found is None or found.size != size:
        raise UnavailableError(
            f"segment {path} has {size} bytes, but its object has "
            f"{'none' if found is None else found.size}; the file stays, try again"
        )
    return size


def names(view: IndexView, entry: Entry | None, name: str) -> bool:
    """Say whether any entry names a segment; ``entry`` is one that may."""
    if entry is not None and segment_name(entry.segment, entry.nonce) == name:
        return True
    return name in segment_names(view)


def segment_names(view: IndexView) -> set[str]:
    """Return the names of all segments of a partition."""
    return {
        segment_name(int(entry["segment"]), int(entry["nonce"]))
        for entries in view.blocks()
        for entry in entries[segment_begins(entries)]
    }
