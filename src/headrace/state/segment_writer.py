"""Write a segment file: sections are handed in, one durable file comes out at ``close``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.errors import ClosedError, InternalError
from headrace.files import Bytes, Files
from headrace.records.frame import encode_frame
from headrace.state.backend import Changes
from headrace.state.segment import (
    FORMAT,
    MAGIC,
    SCHEMA,
    SIZE,
    TRAILER,
    BlockWriter,
    Footer,
    Section,
    SegmentHeader,
    SegmentInfo,
)

FRAME_ROWS = 65_536

UInt16s = npt.NDArray[np.uint16]


class SegmentWriter:
    """Writes one file, once, under a name that must not exist.

    Args:
        files: the file system; its fsync makes the content durable.
        path: of the new file.
        header: whose changes these are.
    """

    def __init__(self, files: Files, path: Path, header: SegmentHeader) -> None:
        self._files = files
        self._path = path
        self._header = header
        self._pending: list[tuple[str, int, str, Iterable[Changes] | BlockWriter]] = []
        self._sections: list[Section] = []
        self._checksum = 0
        self._closed = False

    def add(
        self,
        stage: str,
        task: int,
        store: str,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> None:
        """Add the changes of one store of one task, sorted by full key; none is fine."""
        self.add_batches(stage, task, store, [(keys, values)])

    def add_batches(
        self,
        stage: str,
        task: int,
        store: str,
        batches: Iterable[Changes | tuple[pa.BinaryArray, pa.BinaryArray]],
    ) -> None:
        """Add one store of one task in batches, which are drawn while ``close`` writes."""
        if self._closed:
            raise ClosedError(f"segment {self._path} is written; begin another")
        self._pending.append((stage, task, store, batches))

    def add_table(
        self,
        stage: str,
        task: int,
        store: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        key_groups: int,
    ) -> None:
        """Add a run of a table, whose batches are drawn while ``close`` writes; none is fine.

        Args:
            stage: name of the stage.
            task: number of the task.
            store: name of the store.
            schema: of all batches; one of a ``TableLayout``.
            batches: sorted, each after the one before.
            key_groups: how many the job has.
        """
        if self._closed:
            raise ClosedError(f"segment {self._path} is written; begin another")
        run = BlockWriter(schema, key_groups, batches, f"store {store} of {stage}/{task}")
        self._pending.append((stage, task, store, run))

    def close(self) -> SegmentInfo:
        """Write the file, make its content durable, and return what a commit record names."""
        if self._closed:
            raise ClosedError(f"segment {self._path} is written already")
        self._closed = True
        size = self._files.write_new(self._path, chain.from_iterable(self._frames()))
        return SegmentInfo(self._path, size, self._checksum, tuple(self._sections))

    def _frames(self) -> Iterator[list[Bytes]]:
        position = 0
        for stage, task, store, batches in self._pending:
            section = _SectionWriter(stage, task, store, position)
            if isinstance(batches, BlockWriter):
                yield from section.pieces(batches)
            else:
                yield from section.frames(batches)
            position = section.end
            if section.rows:
                self._sections.append(section.finished())
        footer = msgspec.json.encode(Footer(FORMAT, self._header, tuple(self._sections)))
        size = SIZE.pack(len(footer))
        self._checksum = xxh3_64_intdigest(footer + size)
        yield [footer + TRAILER.pack(len(footer), self._checksum, MAGIC)]


class _SectionWriter:
    def __init__(self, stage: str, task: int, store: str, begin: int) -> None:
        self._name = (stage, task, store)
        self._begin = self.end = begin
        self.rows = 0
        self._groups: list[int] = []
        self._starts: list[int] = []
        self._digest = xxh3_64()
        self._table: BlockWriter | None = None

    def pieces(self, run: BlockWriter) -> Iterator[list[Bytes]]:
        self._table = run
        for frame in run.frames():
            yield self._written(frame)
        self.rows = run.rows

    def frames(self, batches: Iterable[Changes]) -> Iterator[list[Bytes]]:
        for keys, values in batches:
            for at in range(0, len(keys), FRAME_ROWS):
                part = slice(at, at + FRAME_ROWS)
                for batch in _encode(keys[part], values[part]):
                    yield self._frame(batch)

    def _frame(self, batch: pa.RecordBatch) -> list[Bytes]:
        groups: UInt16s = batch.column(0).to_numpy()
        self._index(groups)
        self.rows += len(groups)
        return self._written(batch)

    def _written(self, batch: pa.RecordBatch) -> list[Bytes]:
        chunks: list[Bytes] = [*encode_frame(batch)]
        self._digest.update(chunks[0])
        self.end += sum([len(memoryview(chunk)) for chunk in chunks])
        return chunks

    def _index(self, groups: UInt16s) -> None:
        begins = np.flatnonzero(np.diff(groups)) + 1
        for start in [0, *begins.tolist()]:
            group = int(groups[start])
            if self._groups and group < self._groups[-1]:
                stage, task, store = self._name
                raise InternalError(
                    f"changes are out of order: found key group {group} after "
                    f"{self._groups[-1]}; sort them by key",
                    stage=stage,
                    task=task,
                    store=store,
                )
            if not self._groups or group != self._groups[-1]:
                self._groups.append(group)
                self._starts.append(self.rows + start)

    def finished(self) -> Section:
        return Section(
            *self._name,
            begin=self._begin,
            end=self.end,
            rows=self.rows,
            groups=tuple(self._groups),
            starts=tuple(self._starts),
            digest=self._digest.intdigest(),
            table=None if self._table is None else self._table.finished(),
        )


def _encode(keys: Sequence[bytes], values: Sequence[bytes | None]) -> Iterator[pa.RecordBatch]:
    key, value = _column(keys), _column(values)
    if isinstance(key, pa.ChunkedArray) or isinstance(value, pa.ChunkedArray):
        for begin, end in pairwise((0, len(keys) // 2, len(keys))):
            yield from _encode(keys[begin:end], values[begin:end])
        return
    yield pa.RecordBatch.from_arrays([pa.array(_groups_of(key)), key, value], schema=SCHEMA)


def _column(values: Sequence[bytes | None] | pa.Array) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, pa.binary())


def _groups_of(keys: pa.BinaryArray) -> UInt16s:
    """The key group of each full key: its first two bytes."""
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys)]
    content = np.frombuffer(data, np.uint8)
    return (content[starts].astype(np.uint16) << np.uint16(8)) | content[starts + 1]
