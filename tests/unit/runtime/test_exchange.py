"""Exchange files: whole, in order within each key, by key group, and never silently damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.limits import limit

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.plan.stages import TIME, WATERMARK
from headrace.records.frame import read_frame, read_header
from headrace.records.keys import encode_key, group_range, key_group
from headrace.runtime.chunk import Chunk, from_exchange
from headrace.runtime.exchange import ExchangeWriter
from headrace.runtime.exchange_file import ExchangeReader, Span

FILES = Files(sync=False)
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
TIMED = pa.schema([("n", pa.int64()), (TIME, pa.int64()), (WATERMARK, pa.int64())])


def chunk(keys: list[str | None], first: int, width: int = 0) -> Chunk:
    columns = [pa.array(keys, pa.string()), pa.array(range(first, first + len(keys)), pa.int64())]
    times = np.arange(first, first + len(keys))
    return Chunk(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), times, times - 5)


def write(
    path: Path,
    chunks: list[Chunk],
    groups: int,
    schema: pa.Schema = SCHEMA,
    tasks: int = 1,
    most_bytes: int | None = None,
) -> Any:
    writer = ExchangeWriter(schema, ("k",), groups)
    for piece in chunks:
        writer.add(piece)
    return writer.write(FILES, path, tasks, most_bytes)


def read(
    path: Path, first: int, last: int, schema: pa.Schema = SCHEMA, *, is_sent: bool = False
) -> list[tuple[Any, ...]]:
    reader = ExchangeReader(FILES, path, schema)
    found: list[tuple[Any, ...]] = []
    whole = path.read_bytes()
    parts = _received(reader, whole, first, last, schema) if is_sent else reader.slices(first, last)
    for batch, sizes in parts:
        piece = from_exchange(batch, np.repeat(np.arange(first, last, dtype=np.uint16), sizes))
        assert piece.groups is not None
        rows = zip(*(column.to_pylist() for column in piece.batch.columns), strict=True)
        found += [(group, *row) for group, row in zip(piece.groups.tolist(), rows, strict=True)]
    return found


def _received(
    reader: ExchangeReader, whole: bytes, first: int, last: int, schema: pa.Schema
) -> Any:
    for piece, sizes in reader.pieces(first, last, 100):
        if isinstance(piece, Span):
            data = pa.py_buffer(whole[piece.position : piece.position + piece.size])
        else:
            data = pa.py_buffer(piece)
        yield read_frame(data, read_header(data, 0, "sent"), schema, "sent"), sizes


KEYS = st.lists(st.sampled_from([None, "", "a", "b", "ä", "key"]), max_size=12)


@given(
    pieces=st.lists(KEYS.filter(bool), min_size=1, max_size=6),
    groups=st.sampled_from([1, 2, 7, 64, 65_536]),
    frame_rows=st.sampled_from([1, 5, 1000]),
    tasks=st.sampled_from([1, 3, 64]),
    frame_bytes=st.sampled_from([1, 200, 1 << 20]),
    most_bytes=st.sampled_from([None, 1, 100]),
)
def test_each_group_gets_its_rows_in_order(
    tmp_path_factory: Any,
    pieces: list[Any],
    groups: int,
    frame_rows: int,
    tasks: int,
    frame_bytes: int,
    most_bytes: int | None,
) -> None:
    """Any number of groups and frames: no row lost, none twice, order kept within a key."""
    tasks = min(tasks, groups)
    path = tmp_path_factory.mktemp("x") / "file"
    rows: list[tuple[str | None, int]] = []
    chunks = []
    for keys in pieces:
        chunks.append(chunk(keys, len(rows)))
        rows += [(key, len(rows) + n) for n, key in enumerate(keys)]
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, exchange_frame_rows=frame_rows, exchange_frame_bytes=frame_bytes)
        size, counted = write(path, chunks, groups, tasks=tasks, most_bytes=most_bytes)
    assert size == path.stat().st_size
    found = read(path, 0, groups)
    assert sorted(found, key=lambda row: row[2]) == [
        (key_group(encode_key((key,)), groups), key, n) for key, n in rows
    ]
    for key in {key for key, _ in rows}:
        assert [n for k, n in rows if k == key] == [n for _, k, n in found if k == key]
    totals = np.bincount([row[0] for row in found], minlength=groups)
    ranges = [group_range(task, tasks, groups) for task in range(tasks)]
    assert counted == [totals[first:last].sum() for first, last in ranges]
    cut = groups // 2
    halves = read(path, 0, cut) + read(path, cut, groups)
    assert sorted(halves, key=_order) == sorted(found, key=_order)
    assert read(path, 0, groups, is_sent=True) == found
    sent = read(path, 0, cut, is_sent=True) + read(path, cut, groups, is_sent=True)
    assert sent == halves


def _order(row: tuple[Any, ...]) -> Any:
    return row[0], row[2]


def test_hidden_columns_travel_with_the_rows(tmp_path: Path) -> None:
    write(tmp_path / "file", [chunk(["a", "b", "a"], 10)], 4, TIMED)
    ((batch, sizes), *more) = ExchangeReader(FILES, tmp_path / "file", TIMED).slices(0, 4)
    found = from_exchange(batch, np.repeat(np.arange(4, dtype=np.uint16), sizes))
    assert found.batch.schema.names == ["n"]
    assert found.times is not None
    assert found.watermarks is not None
    assert found.times.tolist() == found.batch.column(0).to_pylist()
    assert (found.times - found.watermarks).tolist() == [5, 5, 5]
    assert more == []


def test_a_file_without_rows_has_no_groups(tmp_path: Path) -> None:
    write(tmp_path / "file", [], 4)
    assert read(tmp_path / "file", 0, 4) == []


def test_a_range_without_rows_is_empty(tmp_path: Path) -> None:
    write(tmp_path / "file", [chunk(["a"], 0)], 64)
    group = key_group(encode_key(("a",)), 64)
    assert read(tmp_path / "file", 0, group) == []
    assert read(tmp_path / "file", group + 1, 64) == []
    assert read(tmp_path / "file", group, group + 1) == [(group, "a", 0)]


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    """None of a file's bytes can change without an error that names the file."""
    path = tmp_path / "file"
    write(path, [chunk(["a", "b", None, "c"], 0)], 3)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            with pytest.raises(CorruptDataError, match="file") as error:
                read(path, 0, 3)
            assert str(path) in str(error.value)


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, [chunk(["a", "b"], 0)], 3)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError):
            read(path, 0, 3)


def test_a_tail_that_names_another_frame_is_found(tmp_path: Path) -> None:
    """A data frame with two columns must not be taken for the index."""
    path = tmp_path / "file"
    write(path, [chunk(["a", "b"], 0)], 3)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(CorruptDataError, match="its last 8 bytes name no index"):
        read(path, 0, 3)


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="is missing, though it is named"):
        read(tmp_path / "none", 0, 1)
