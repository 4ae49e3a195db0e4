"""Rows at the offsets that they had elsewhere: what a stream is filled with from a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.compacting.compaction import Piece
from headrace.bus.compacting.sparse import Places, encode_compacted
from headrace.bus.entries import NO_TIME, Int64s
from headrace.bus.spec import StreamSpec
from headrace.records.schema import event_times


class Restored(NamedTuple):
    """Offsets ``begin`` to before ``end`` of a partition: batches, each with its rows' offsets."""

    begin: int
    end: int
    batches: Sequence[tuple[Int64s, pa.RecordBatch]] = ()


def sparse_pieces(restored: Restored, spec: StreamSpec, version: int) -> Iterator[Piece]:
    """Yield what stands for a range of a compacted stream, which may lack offsets.

    Args:
        restored: the rows.
        spec: of the stream.
        version: number of the schema that they are in.
    """
    begin = restored.begin
    for offsets, batch in restored.batches:
        if not batch.num_rows:
            continue
        end = int(offsets[-1]) + 1
        low = high = NO_TIME
        if spec.time is not None:
            times = event_times(batch.column(spec.time), spec.name)
            low, high = int(np.min(times)), int(np.max(times))
        chunks = encode_compacted(Places(offsets), batch, version)
        yield Piece(begin, end, batch.num_rows, low, high, 0, chunks)
        begin = end
    if begin < restored.end:
        yield Piece(begin, restored.end, 0, NO_TIME, NO_TIME, 0, [])
