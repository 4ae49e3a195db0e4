"""Frames: columns come back as they went, read alone where wanted, and all damage is found."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptDataError
from headrace.records.frame import encode_frame, iterate_frames, read_frame, read_header

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [1, None, 3]),
    "s": (pa.string(), ["", None, "ä" * 100]),
    "b": (pa.bool_(), [True, None, False]),
    "raw": (pa.binary(), [b"\0", b"", None]),
    "t": (pa.timestamp("us", tz="UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * 3),
    "d": (pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal("-3.00")]),
    "l": (pa.list_(pa.int64()), [[], None, [1, None]]),
    "st": (pa.struct([("a", pa.int64()), ("z", pa.string())]), [{"a": 1, "z": ""}, None, None]),
    "null": (pa.float64(), [None, None, None]),
}


def batch_of(names: list[str], rows: int = 3) -> pa.RecordBatch:
    fields = [(name, COLUMNS[name][0]) for name in names]
    arrays = [pa.array((COLUMNS[name][1] * 2)[:rows], COLUMNS[name][0]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def frame_of(batch: pa.RecordBatch) -> bytes:
    return b"".join(bytes(chunk) for chunk in encode_frame(batch))


def read(data: bytes, schema: pa.Schema, columns: list[int] | None = None) -> pa.RecordBatch:
    buffer = pa.py_buffer(data)
    return read_frame(buffer, read_header(buffer, 0, "file f"), schema, "file f", columns)


@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=9),
    rows=st.integers(0, 6),
    data=st.data(),
)
def test_frames_come_back_whole_or_by_column(names: list[str], rows: int, data: Any) -> None:
    batch = batch_of(names, rows)
    begin = data.draw(st.integers(0, batch.num_rows)) if names else 0
    batch = batch.slice(begin)
    raw = frame_of(batch)
    assert len(raw) % 64 == 0
    assert read(raw, batch.schema).equals(batch)
    if names:
        wanted = data.draw(st.lists(st.sampled_from(range(len(names))), unique=True))
        assert read(raw, batch.schema, wanted).equals(batch.select(wanted))


def test_frames_stand_in_a_row() -> None:
    batches = [batch_of(["n", "s"], rows) for rows in (3, 0, 1)]
    raw = pa.py_buffer(b"".join(map(frame_of, batches)))
    frames = list(iterate_frames(raw, 0, raw.size, "file f"))
    assert [frame.rows for frame in frames] == [3, 0, 1]
    assert frames[-1].end == raw.size
    for frame, batch in zip(frames, batches, strict=True):
        assert read_frame(raw, frame, batch.schema, "file f").equals(batch)


def test_every_flipped_byte_is_found() -> None:
    batch = batch_of(["n", "s", "b", "null"])
    raw = frame_of(batch)
    for at in range(len(raw)):
        for flip in (0x01, 0xFF):
            damaged = raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]
            with pytest.raises(CorruptDataError, match="file f is damaged at byte"):
                read(damaged, batch.schema)


def test_damage_in_a_column_that_is_not_wanted_is_not_read() -> None:
    """A narrow read verifies what it returns, and no more."""
    batch = batch_of(["n", "s"])
    raw = bytearray(frame_of(batch))
    at = bytes(raw).index("ä".encode() * 100) + 5
    raw[at] ^= 1
    assert read(bytes(raw), batch.schema, [0]).equals(batch.select([0]))
    with pytest.raises(CorruptDataError, match="column 's' does not match its checksum"):
        read(bytes(raw), batch.schema, [1])


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 63, 64, 100, -1])
def test_a_cut_file_is_damage(cut: int) -> None:
    batch = batch_of(["n", "s"])
    with pytest.raises(CorruptDataError, match=r"file f is damaged at byte 0: .* ends inside"):
        read(frame_of(batch)[:cut], batch.schema)


def test_a_frame_of_other_columns_is_told() -> None:
    raw = frame_of(batch_of(["n", "s"]))
    with pytest.raises(CorruptDataError, match="found 2 columns, expected 1"):
        read(raw, pa.schema([("n", pa.int64())]))
