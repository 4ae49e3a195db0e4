"""Compacted rows on disk: a frame with the offset of each row, and behind it the rows' frame.

The rows' frame is like any other. The first one has a second column where rows are deletes:
when a compaction met each first, in ms, from which on it is kept for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus.compacting.seen_keys import Bools
from headrace.bus.entries import Entry, Int64s
from headrace.errors import CorruptDataError
from headrace.files import Bytes
from headrace.records.frame import Frame, encode_frame, iterate_frames, read_frame

NOT_DELETED = -1
_OFFSETS = pa.schema([("offset", pa.int64())])
_DELETES = pa.schema([("offset", pa.int64()), ("deleted_ms", pa.int64())])


class Places(NamedTuple):
    """Where compacted rows are, and which of them delete.

    ``deleted_ms`` is when a compaction first met a delete, ``NOT_DELETED`` for other rows;
    ``None`` where no row deletes.
    """

    offsets: Int64s
    deleted_ms: Int64s | None = None


def encode_compacted(places: Places, rows: pa.RecordBatch, version: int) -> list[Bytes]:
    """Return the chunks of the two frames of compacted rows.

    Args:
        places: of the rows.
        rows: in the schema of that number.
        version: number of the schema.
    """
    if places.deleted_ms is None:
        batch = pa.record_batch([places.offsets], schema=_OFFSETS)
    else:
        batch = pa.record_batch([places.offsets, places.deleted_ms], schema=_DELETES)
    return [*encode_frame(batch), *encode_frame(rows, version)]


def read_compacted(data: pa.Buffer, entry: Entry, origin: str) -> tuple[Places, Frame]:
    """Return where the rows of a compacted entry are, and their frame.

    Raises:
        CorruptDataError: damaged bytes, or other frames than the index expects.
    """
    end = entry.position + entry.length
    frames = list(iterate_frames(data, entry.position, end, origin))
    if len(frames) == 2 and frames[0].rows == frames[1].rows == entry.rows:
        schema = _DELETES if len(frames[0].parts) == 2 * (len(_DELETES) + 1) else _OFFSETS
        batch = read_frame(data, frames[0], schema, origin)
        offsets = batch.column(0).to_numpy()
        is_inside = entry.first_offset <= offsets[0] and offsets[-1] < entry.next_offset
        if len(offsets) == entry.rows and is_inside and (np.diff(offsets) > 0).all():
            deleted = batch.column(1).to_numpy() if len(schema) == 2 else None
            return Places(offsets, deleted), frames[1]
    raise CorruptDataError(
        f"{origin} is damaged at byte {entry.position}: its frames do not hold the {entry.rows} "
        f"rows of offsets {entry.first_offset} to {entry.next_offset} that the index expects",
        file=origin,
    )


def deletes_of(batch: pa.RecordBatch, values: Sequence[str]) -> Bools:
    """Say which rows delete their key: those in which all values are null."""
    if not values:
        return np.zeros(batch.num_rows, bool)
    is_dead = np.ones(batch.num_rows, bool)
    for name in values:
        column = batch.column(name)
        if not column.null_count:
            return np.zeros(batch.num_rows, bool)
        is_dead &= column.is_null().to_numpy(zero_copy_only=False)
    return is_dead
