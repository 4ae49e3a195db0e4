"""Packs small appends of a partition in an object storage into larger objects.

What a reader fetches is an object, and a request has its price: small ones are joined, with those
before them that are not much larger. So a byte is written again a few times in its life, and there
are few objects whatever the size of appends.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.bus.compaction import starts_segment
from headrace.bus.index_table import (
    COMPACTED,
    Entries,
    Entry,
    entries_of,
    segment_begins,
    segment_spans,
)
from headrace.bus.log import Log, new_nonce, segment_name
from headrace.bus.object_index import PACKED
from headrace.bus.stream_stores import StreamSettings
from headrace.files import Bytes
from headrace.records.frame import ALIGNMENT
from headrace.remote import RemoteFile

GROWTH = 2
"""An older object is joined with newer ones that have at least half of its bytes."""


def append_name(offset: int) -> str:
    """Return the name of the object of an append."""
    return f"{offset:020d}.seg"


def object_name(entry: Entry) -> str:
    """Return the name of the object that an entry lies in."""
    if entry.kind == COMPACTED or entry.flags & PACKED:
        return segment_name(entry.segment, entry.nonce)
    return append_name(entry.segment)


def object_names(blocks: Iterable[Entries]) -> set[str]:
    """Return the names of the objects that entries lie in."""
    return {
        object_name(Entry.at(block, at))
        for block in blocks
        if len(block)
        for at in segment_begins(block).tolist()
    }


class _Group(NamedTuple):
    """The entries of one object."""

    begin: int
    end: int
    size: int
    is_packed: bool
    first_ms: int
    last_ms: int


class Packer:
    """Writes the packed objects of one seal.

    Args:
        log: of the partition.
        folder: of its objects.
    """

    def __init__(self, log: Log, folder: Path) -> None:
        self._log, self._folder = log, folder
        self._clock, self._files = log.context.clock, log.context.files
        self._most_bytes = log.context.settings.segment_bytes
        self._most_entries = log.context.settings.index_entries
        self._written: list[Path] = []

    def undo(self) -> None:
        """Remove what was written, which nobody names."""
        for path in self._written:
            RemoteFile(path).remove()

    def packed(self, entries: Entries, settings: StreamSettings) -> Entries:
        """Return the same appends, some of which lie in objects that were written for it.

        Raises:
            SegmentReplacedError: others have packed or compacted them meanwhile.
        """
        result = entries
        for begin, end in self._runs(entries, settings):
            made = self._written_run([Entry.at(entries, at) for at in range(begin, end)])
            result = np.concatenate([result[:begin], made, result[end:]])
        return result

    def _groups(self, entries: Entries) -> list[_Group]:
        found = []
        for begin, end, size in segment_spans(entries):
            part = entries[begin:end]
            is_packed = bool(part["flags"][0] & PACKED) or int(part["kind"][0]) == COMPACTED
            times = int(part["appended_ms"][0]), int(part["appended_ms"][-1])
            found.append(_Group(begin, end, size, is_packed, *times))
        return found

    def _runs(self, entries: Entries, settings: StreamSettings) -> list[tuple[int, int]]:
        """Return which entries are to lie together, from the newest to the oldest."""
        runs: list[tuple[int, int]] = []
        run: list[_Group] = []
        size = 0
        for group in reversed(self._groups(entries)):
            is_small = 2 * group.size < self._most_bytes
            is_other = int(entries["kind"][group.begin]) == COMPACTED
            if group.is_packed and (is_other or not is_small or group.size > GROWTH * size):
                break
            fits = not run or (
                size + group.size <= self._most_bytes
                and run[0].end - group.begin <= self._most_entries
                and not starts_segment(group.first_ms, run[0].last_ms, settings)
            )
            if not fits or not is_small:
                runs += _joined(run)
                run, size = [], 0
                if group.is_packed:
                    break
            if is_small:
                run.append(group)
                size += group.size
        return runs + _joined(run)

    def _written_run(self, entries: list[Entry]) -> Entries:
        first, nonce = entries[0].first_offset, new_nonce(self._clock)
        chunks: list[Bytes] = []
        made: list[Entry] = []
        position = 0
        for entry in entries:
            data, _ = self._log.data(entry)
            chunks.append(data[entry.position : entry.position + entry.length])
            flags = entry.flags | PACKED
            packed = entry._replace(segment=first, nonce=nonce, position=position, flags=flags)
            made.append(packed)
            gap = -entry.length % ALIGNMENT
            chunks.append(bytes(gap))
            position += entry.length + gap
        path = self._folder / segment_name(first, nonce)
        self._written.append(path)
        self._files.write_new(path, chunks)
        return entries_of(made)


def _joined(run: list[_Group]) -> list[tuple[int, int]]:
    return [(run[-1].begin, run[0].end)] if len(run) > 1 else []
