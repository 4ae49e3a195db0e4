"""A batch on its way through the operators of a task, with what travels beside it.

Event times, watermarks, key groups, and the record that each row was made of. ``OriginIds`` keeps
the numbers of inputs what they are while streams come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.plan.dead_letters import PARTITION_BITS
from headrace.plan.stages import HIDDEN, OFFSET, ORIGIN, TIME, WATERMARK

Ints = npt.NDArray[np.int64]
Groups = npt.NDArray[np.uint16]
Sources = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

UNKNOWN = -1
"""The source of a row that was not made of one record."""


@dataclass(frozen=True)
class RowOrigins:
    """The record that each row was made of: its source (``source_of``) and its offset."""

    sources: Sources
    offsets: Ints


@dataclass(frozen=True)
class Chunk:
    """User columns, and for each row its event time, watermark and key group.

    ``times`` and ``watermarks`` (int64 ms, shape (n,)) are present in timed stages;
    ``groups`` (uint16, shape (n,)) in keyed ones; ``origins`` where an operator makes dead
    letters. Rows of one key are in arrival order.
    """

    batch: pa.RecordBatch
    times: Ints | None = None
    watermarks: Ints | None = None
    groups: Groups | None = None
    origins: RowOrigins | None = None

    @cached_property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.batch.num_rows)

    def record(self, row: int) -> dict[str, Any]:
        """Return the user columns of one row."""
        found: dict[str, Any] = self.batch.slice(row, 1).to_pylist()[0]
        return found

    def frame(self) -> pl.DataFrame:
        """Return the user columns as a Polars frame."""
        return frame_of(self.batch)

    def with_batch(self, batch: pa.RecordBatch) -> Chunk:
        """Return the same rows with other columns."""
        return replace(self, batch=batch)

    def take(self, rows: Ints) -> Chunk:
        """Return the chosen rows, in the order given."""
        return self._pick(self.batch.take(pa.array(rows)), rows)

    def filter(self, keep: Mask) -> Chunk:
        """Return the rows where ``keep`` is true."""
        return self if keep.all() else self._pick(self.batch.filter(pa.array(keep)), keep)

    def part(self, begin: int, end: int) -> Chunk:
        """Return the rows from ``begin`` to before ``end``."""
        return self._pick(self.batch.slice(begin, end - begin), slice(begin, end))

    def derive(self, batch: pa.RecordBatch, rows: Ints) -> Chunk:
        """Return a new batch whose row i came from row ``rows[i]`` of this chunk."""
        return self._pick(batch, rows)

    def seen(self, delay_ms: int, watermark: int) -> Ints:
        """Return the watermark that each row came with, as it is for an operator so far behind.

        Args:
            delay_ms: how far the operator's watermark lags the one that rows came with.
            watermark: of the operator when the epoch began.
        """
        assert self.watermarks is not None
        return np.maximum(self.watermarks - delay_ms, watermark)

    def _pick(self, batch: pa.RecordBatch, index: npt.NDArray[np.generic] | slice) -> Chunk:
        return Chunk(
            batch,
            None if self.times is None else self.times[index],
            None if self.watermarks is None else self.watermarks[index],
            None if self.groups is None else self.groups[index],
            None
            if self.origins is None
            else RowOrigins(self.origins.sources[index], self.origins.offsets[index]),
        )

    def to_exchange(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of an exchange schema, hidden ones included."""
        hidden: dict[str, Any] = {TIME: self.times, WATERMARK: self.watermarks}
        if ORIGIN in schema.names:
            known = self.origins or RowOrigins(
                np.full(self.rows, UNKNOWN, np.int32), np.full(self.rows, UNKNOWN, np.int64)
            )
            hidden |= {ORIGIN: known.sources, OFFSET: known.offsets}
        arrays = [
            pa.array(hidden[name]) if name in hidden else self.batch.column(name)
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


FEW_ROWS = 1024
"""So many rows are worked on by the thread itself: Polars's pool may be busy with others."""


def frame_of(batch: pa.RecordBatch) -> pl.DataFrame:
    """Return the columns of a batch as a Polars frame."""
    if 0 < batch.num_rows <= FEW_ROWS:
        names = batch.schema.names
        return pl.DataFrame([pl.Series(*one) for one in zip(names, batch.columns, strict=True)])
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame


def source_of(origin: int, partition: int) -> int:
    """Return the number that stands for a partition of an input in ``RowOrigins``."""
    return origin << PARTITION_BITS | partition


def from_exchange(batch: pa.RecordBatch, groups: Groups) -> Chunk:
    """Read what ``to_exchange`` made."""
    names = batch.schema.names
    times = batch.column(TIME).to_numpy() if TIME in names else None
    watermarks = batch.column(WATERMARK).to_numpy() if WATERMARK in names else None
    origins = None
    if ORIGIN in names:
        origins = RowOrigins(batch.column(ORIGIN).to_numpy(), batch.column(OFFSET).to_numpy())
    users = [name for name in names if name not in HIDDEN]
    return Chunk(batch.select(users), times, watermarks, groups, origins)


def concat_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks of the same columns as one."""
    if len(chunks) == 1:
        return chunks[0]
    origins = [chunk.origins for chunk in chunks if chunk.origins is not None]
    return Chunk(
        pa.concat_batches([chunk.batch for chunk in chunks]),
        _one([chunk.times for chunk in chunks]),
        _one([chunk.watermarks for chunk in chunks]),
        _one([chunk.groups for chunk in chunks]),
        None
        if len(origins) < len(chunks)
        else RowOrigins(
            np.concatenate([one.sources for one in origins]),
            np.concatenate([one.offsets for one in origins]),
        ),
    )


def joined_columns(
    schema: pa.Schema,
    own: pa.RecordBatch,
    held: pa.RecordBatch,
    names: Mapping[str, str],
    places: pa.Array,
) -> pa.RecordBatch:
    """Return rows with columns of a table beside theirs.

    Args:
        schema: of the result.
        own: the rows.
        held: rows of the table.
        names: by new name, the columns of the table.
        places: the table's row for each row, null where it has none.
    """
    arrays = [
        held.column(names[name]).take(places) if name in names else own.column(name)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def join_found(
    chunk: Chunk,
    rows: Ints,
    held: pa.RecordBatch,
    names: Mapping[str, str],
    schema: pa.Schema,
    *,
    keeps_all: bool,
) -> Chunk:
    """Return a chunk with columns of a table beside its own, as of ``joined_columns``.

    Args:
        chunk: the rows.
        rows: the table's row for each; -1 where it has none.
        held: rows of the table.
        names: by new name, the columns of the table.
        schema: of the result.
        keeps_all: whether rows without one stay, with nulls.
    """
    found = rows >= 0
    if found.all():
        places = pa.array(rows)
    elif keeps_all:
        places = pa.array(rows, mask=~found)
    else:
        chunk, places = chunk.filter(found), pa.array(rows[found])
    return chunk.with_batch(joined_columns(schema, chunk.batch, held, names, places))


def _one(parts: Sequence[npt.NDArray[Number] | None]) -> npt.NDArray[Number] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def split_groups(groups: Groups) -> list[tuple[int, int, int]]:
    """Return (group, first row, row after last) of each run of equal groups."""
    if not len(groups):
        return []
    cuts = np.flatnonzero(np.diff(groups)) + 1
    starts = np.concatenate([[0], cuts]).tolist()
    stops = np.concatenate([cuts, [len(groups)]]).tolist()
    return list(zip(groups[starts].tolist(), starts, stops, strict=True))


_NAME_BYTES = 5


class OriginIds:
    """Distinguishes the numbers of partitions of inputs from those that are kept.

    Args:
        streams: of the job's inputs, by number.
    """

    def __init__(self, streams: Sequence[str]) -> None:
        self._kept = np.array([_kept(stream) for stream in streams], np.int64)
        self._order = np.argsort(self._kept, kind="stable")

    def kept(self, sources: npt.NDArray[np.int32]) -> Ints:
        """Return the numbers to keep."""
        if not len(self._kept):
            return np.full(len(sources), UNKNOWN, np.int64)
        names = self._kept[sources >> PARTITION_BITS] << PARTITION_BITS
        return np.where(sources == UNKNOWN, UNKNOWN, names | _partitions(sources))

    def known(self, kept: Ints) -> npt.NDArray[np.int32]:
        """Return the numbers as they are now; of streams that are gone ``UNKNOWN``."""
        if not len(self._kept):
            return np.full(len(kept), UNKNOWN, np.int32)
        names = kept >> PARTITION_BITS
        places = np.searchsorted(self._kept, names, sorter=self._order)
        inputs = self._order[np.minimum(places, len(self._order) - 1)]
        numbers = inputs << PARTITION_BITS | _partitions(kept)
        return np.where(self._kept[inputs] == names, numbers, UNKNOWN).astype(np.int32)


def _kept(stream: str) -> int:
    return int.from_bytes(blake2b(stream.encode(), digest_size=_NAME_BYTES).digest(), "big")


def _partitions(sources: npt.NDArray[np.int32] | Ints) -> Ints:
    return sources.astype(np.int64) & ((1 << PARTITION_BITS) - 1)
