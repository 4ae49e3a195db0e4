"""Entries of a store read straight from committed files: the newest value of each key wins.

Nothing is applied anywhere and nothing is held whole: files are mapped, and merged one run
of key groups after the other, in the order of key group and key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.state.merging import SortedKeys, group_sizes, merge_entries
from headrace.state.segment import SegmentHeader
from headrace.state.segment_reader import ALL_GROUPS, SegmentReader

Entries = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True)
class Source:
    """A file, and what it counts for: key groups (the first, and the one after the last), a stage.

    A file serves all tasks of a slot; without a ``stage`` it counts for whichever it has.
    """

    reader: SegmentReader
    groups: tuple[int, int]
    stage: str | None = None


class MergedEntries:
    """One store over several files.

    Args:
        store: its name.
        sources: oldest first, where they hold the same key groups.
    """

    def __init__(self, store: str, sources: Sequence[Source]) -> None:
        self._store = store
        self._sources = [source for source in sources if self._sections(source)]

    def _sections(self, source: Source) -> list[Any]:
        low, high = source.groups
        return [
            section
            for section in source.reader.sections
            if section.store == self._store
            and source.stage in (None, section.stage)
            and section.first_group < high
            and section.last_group >= low
        ]

    @property
    def headers(self) -> list[SegmentHeader]:
        """Of each file that holds something of the store."""
        readers = {source.reader.path: source.reader for source in self._sources}
        return [reader.header for reader in readers.values()]

    @property
    def rows(self) -> int:
        """How many entries and deletions the files hold together: at least the live entries."""
        return sum(rows for rows, _ in self._sizes().values())

    @property
    def size(self) -> int:
        """About how many bytes of the files these are."""
        return round(sum(size for _, size in self._sizes().values()))

    @property
    def is_exact(self) -> bool:
        """Say whether ``rows`` is the number of live entries, for nothing was overwritten."""
        held: Counter[int] = Counter()
        for source in self._sources:
            if source.reader.header.kind != "snapshot":
                return not self._sources
            held.update(self._groups_of(source))
        return all(count == 1 for count in held.values())

    def _groups_of(self, source: Source) -> set[int]:
        low, high = source.groups
        sections = self._sections(source)
        return {group for s in sections for group in s.groups if low <= group < high}

    def _sizes(self) -> dict[int, tuple[int, float]]:
        """Rows and bytes of each key group, over all files."""
        return group_sizes(
            (section, source.groups)
            for source in self._sources
            for section in self._sections(source)
        )

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a full key; reads that key group of each file, newest first."""
        group = int.from_bytes(key[:2], "big")
        for source in reversed(self._sources):
            if not source.groups[0] <= group < source.groups[1]:
                continue
            for keys, values in source.reader.columns(self._store, (group, group + 1)):
                at = bisect_left(SortedKeys(keys), key)
                if at < len(keys) and keys[at].as_py() == key:
                    found: bytes | None = values[at].as_py()
                    return found
        return None

    def key_columns(self) -> Iterator[pa.BinaryArray]:
        """Yield the full keys of all files, those deleted since too, without their values."""
        for source in self._sources:
            yield from source.reader.keys(self._store, source.groups)

    def batches(self, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[Entries]:
        """Yield full keys and values, rising by key, none twice."""
        parts = []
        for source in self._sources:
            low, high = max(groups[0], source.groups[0]), min(groups[1], source.groups[1])
            if low < high:
                parts.append((source.reader, (low, high)))
        for keys, values in merge_entries(self._store, parts, drop_deleted=True):
            yield keys.to_pylist(), values.to_pylist()
