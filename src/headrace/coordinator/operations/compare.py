"""Compares what two jobs have sent: rows, keys, and where the last row of a key differs.

Rows of a stream are handled by parts of its keys, so that one part at a time is held in memory.
A part is a range of nothing but the hash of the key: rows of one key are in one part, in every
stream and whenever it is asked. Rows of streams of several parts lie in a file without a name,
below ``TMPDIR``, which goes with the process.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bus import Bus, Stream
from headrace.closeable import Closeable
from headrace.errors import InvalidInputError
from headrace.graph.windows import BOUNDS
from headrace.records.keys import hash_key

PART_ROWS = 50_000
PART_BYTES = 4 << 20
"""A sixteenth of what the bus takes at once, for parts differ and merge functions add."""

PENDING_BYTES = 32 << 20

Row = dict[str, Any]


def part_count(stream: Stream) -> int:
    """Return in how many parts the rows of a stream are handled."""
    rows = size = 0
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin):
            rows += part.batch.num_rows
            size += part.batch.nbytes
    return max(1, -(-rows // PART_ROWS), -(-size // PART_BYTES))


def key_names(batch: pa.RecordBatch, keys: Sequence[str]) -> list[str]:
    """Return the key of each row as text: NaN is equal to itself, and lists can be keys."""
    columns = (batch.column(key).to_pylist() for key in keys)
    return [repr(list(values)) for values in zip(*columns, strict=True)]


class KeyPartitionedRows(Closeable):
    """A stream's rows by parts.

    Args:
        stream: read once to its end when this is made, but for a single part.
        columns: of the rows.
        keys: among these.
        parts: how many.
    """

    def __init__(
        self, stream: Stream, columns: Sequence[str], keys: Sequence[str], parts: int
    ) -> None:
        self._stream, self._columns, self._keys = stream, list(columns), list(keys)
        self._spill = None if parts == 1 else SpillFile()
        if self._spill is not None:
            for partition, batch in self._batches():
                hashes = [hash_key(name.encode()) for name in key_names(batch, keys)]
                part_of = np.array(hashes, np.uint64) % np.uint64(parts)
                self._spill.add(batch, partition, part_of.astype(np.int64))
            self._spill.flush()

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        for partition, begin in enumerate(self._stream.begins()):
            for part in self._stream.read(partition, begin, columns=self._columns):
                yield partition, part.batch

    def read(self, part: int) -> Iterator[tuple[int, pa.RecordBatch, list[str]]]:
        """Yield the rows of a part in their order: partition, batch, the key of each row."""
        found = self._batches() if self._spill is None else self._spill.read(part)
        for partition, batch in found:
            yield partition, batch, key_names(batch, self._keys)

    def close(self) -> None:
        """Let the file go."""
        if self._spill is not None:
            self._spill.close()


class SpillFile(Closeable):
    """Batches of one schema in a file without a name, by part."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115 - closed by close
        self._pieces: dict[int, list[tuple[int, int, int]]] = {}
        self._pending: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
        self._size = self._partition = 0
        self._schema: pa.Schema | None = None

    def add(self, batch: pa.RecordBatch, partition: int, part_of: npt.NDArray[np.int64]) -> None:
        """Take rows of a partition, each with its part; order holds within a part."""
        if partition != self._partition or self._size >= PENDING_BYTES:
            self.flush()
        self._partition = partition
        self._pending.append((batch, part_of))
        self._size += batch.nbytes

    def flush(self) -> None:
        """Write what is held."""
        if not self._pending:
            return
        rows = pa.Table.from_batches([batch for batch, _ in self._pending]).combine_chunks()
        part_of = np.concatenate([one for _, one in self._pending])
        self._pending, self._size = [], 0
        ordered = rows.take(pa.array(np.argsort(part_of, kind="stable")))
        present, counts = np.unique(part_of, return_counts=True)
        begins = np.cumsum(counts) - counts
        for part, begin, count in zip(
            present.tolist(), begins.tolist(), counts.tolist(), strict=True
        ):
            self.write(ordered.slice(begin, count), self._partition, part)

    def write(self, rows: pa.Table, partition: int, part: int) -> None:
        """Write rows of one part at once."""
        self._schema = rows.schema
        for batch in rows.to_batches():
            data = batch.serialize()
            at = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._pieces.setdefault(part, []).append((partition, at, data.size))

    def read(self, part: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of a part: partition and batch."""
        for partition, at, size in self._pieces.get(part, ()):
            self._file.seek(at)
            yield (
                partition,
                pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema),
            )

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def key_columns(stream: Stream, shared: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
    """Return the columns that identify rows: the stream's key and the window, or all.

    Args:
        stream: whose key counts.
        shared: columns that may be chosen.
        wanted: the columns, where somebody says which.

    Raises:
        InvalidInputError: a column that is not among them.
    """
    unknown = [name for name in wanted if name not in shared]
    if unknown:
        raise InvalidInputError(
            f"column {unknown[0]!r} is not in both streams; expected some of {list(shared)}"
        )
    if wanted:
        return list(wanted)
    own = [name for name in stream.spec.key if name in shared]
    return [*own, *(name for name in BOUNDS if name in shared and name not in own)] or list(shared)


def last_rows(
    rows: KeyPartitionedRows, part: int, *, is_all: bool = False
) -> tuple[int, dict[str, Row]]:
    """Return how many rows a part has, and the last one of each key, by the key as text.

    Args:
        rows: of a stream.
        part: held in memory.
        is_all: all columns are the key; then equal rows differ by their number.
    """
    count, found, seen = 0, dict[str, Row](), Counter[str]()
    for _, batch, names in rows.read(part):
        count += len(names)
        for name, row in zip(names, batch.to_pylist(), strict=True):
            seen[name] += is_all
            found[f"{name}/{seen[name]}" if is_all else name] = row
    return count, found


@dataclass(frozen=True)
class StreamComparison:
    """Two streams, the second one's after the first's in each pair.

    Args:
        operator: that both come from.
        streams: their names.
        key: columns by which the last row counts.
        rows: of each.
        keys: of each.
        only: keys that are in one alone.
        different: keys whose last rows differ.
        same: keys whose last rows are equal.
        columns: those that are in one alone, which are not compared.
        examples: of keys that are in one alone or differ: ``key``, ``first`` and ``second``.
    """

    operator: str
    streams: tuple[str, str]
    key: tuple[str, ...]
    rows: tuple[int, int]
    keys: tuple[int, int]
    only: tuple[int, int]
    different: int
    same: int
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    examples: list[dict[str, Any]]

    @property
    def is_same(self) -> bool:
        """Say whether no key differs."""
        return not (self.different or any(self.only))


@dataclass
class _Tally:
    """What was counted so far of two streams; ``shown`` keys of each kind, with their rows."""

    keys: Sequence[str]
    most: int
    rows: list[int] = field(default_factory=lambda: [0, 0])
    held: list[int] = field(default_factory=lambda: [0, 0])
    only: list[int] = field(default_factory=lambda: [0, 0])
    different: int = 0
    same: int = 0
    shown: tuple[list[dict[str, Any]], ...] = field(default_factory=lambda: ([], [], []))

    def add(self, first: dict[str, Row], second: dict[str, Row]) -> None:
        """Count the last rows of some keys, all that both streams have of them."""
        lacking = [name for name in first if name not in second]
        new = [name for name in second if name not in first]
        both = [name for name in first if name in second]
        differ = [name for name in both if repr(first[name]) != repr(second[name])]
        for at, rows in enumerate((first, second)):
            self.held[at] += len(rows)
        self.only[0] += len(lacking)
        self.only[1] += len(new)
        self.different += len(differ)
        self.same += len(both) - len(differ)
        for shown, names in zip(self.shown, (differ, lacking, new), strict=True):
            for name in names[: self.most - len(shown)]:
                row = first.get(name) or second[name]
                key = {column: row[column] for column in self.keys}
                difference = {"key": key, "first": first.get(name), "second": second.get(name)}
                shown.append(difference)

    @property
    def examples(self) -> list[dict[str, Any]]:
        """Keys that differ, then those that the second stream lacks, then those it has more."""
        return [one for shown in self.shown for one in shown][: self.most]


def compare_streams(
    bus: Bus, operator: str, streams: tuple[str, str], key: Sequence[str] = (), examples: int = 5
) -> StreamComparison:
    """Compare two streams; holds the last rows of a part of the keys in memory.

    Args:
        bus: with the streams.
        operator: that they come from.
        streams: their names.
        key: columns that say which rows are of one thing; by default the key of the first stream
            and the window, or all columns where it has no key.
        examples: so many keys that differ are shown.

    Raises:
        InvalidInputError: a column that is not in both.
    """
    first, second = (bus.stream(name) for name in streams)
    names = [one.spec.schema.names for one in (first, second)]
    shared = [name for name in names[0] if name in names[1]]
    keys = key_columns(first, shared, key)
    is_all = len(keys) == len(shared)
    parts = max(part_count(first), part_count(second))
    tally = _Tally(keys, examples)
    with (
        KeyPartitionedRows(first, shared, keys, parts) as left,
        KeyPartitionedRows(second, shared, keys, parts) as right,
    ):
        for part in range(parts):
            found = [last_rows(one, part, is_all=is_all) for one in (left, right)]
            for at, (count, _) in enumerate(found):
                tally.rows[at] += count
            tally.add(found[0][1], found[1][1])
    return StreamComparison(
        operator,
        streams,
        tuple(keys),
        (tally.rows[0], tally.rows[1]),
        (tally.held[0], tally.held[1]),
        (tally.only[0], tally.only[1]),
        tally.different,
        tally.same,
        tuple(tuple(n for n in own if n not in shared) for own in names),  # type: ignore[arg-type]
        tally.examples,
    )
