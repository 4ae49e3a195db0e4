"""What a slot makes for a table: each day's rows, sorted, and how many of them are late."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.warehouse.day_files import encode_packet, packet_index
from headrace.warehouse.snapshot import DAY_MS, day_name

HOUR = DAY_MS // 24
ROWS = st.lists(
    st.tuples(st.integers(0, 24 * 4), st.sampled_from([None, "a", "b", "c"]), st.booleans()),
    max_size=40,
)


def decoded(chunks: list[Any]) -> dict[str, tuple[list[dict[str, Any]], int]]:
    content = pa.py_buffer(b"".join(bytes(chunk) for chunk in chunks))
    return {
        piece.day: (
            pq.read_table(pa.BufferReader(content.slice(piece.begin, piece.bytes))).to_pylist(),
            piece.late,
        )
        for piece in packet_index(content, Path("x"))
    }


@pytest.mark.parametrize("order", [("at",), ("user",), ("user", "at"), ("at", "user"), ("n",)])
@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.int64()])
@given(parts=st.lists(ROWS, min_size=1, max_size=3))
def test_rows_are_by_day_sorted_and_those_that_are_equal_stay_in_their_order(
    order: tuple[str, ...], kind: pa.DataType, parts: list[Any]
) -> None:
    assume(any(parts))
    schema = pa.schema([("at", kind), ("user", pa.string()), ("n", pa.int64())])
    unit = 1000 if pa.types.is_timestamp(kind) else 1
    batches, late, n = [], Counter[str](), 0
    model: dict[str, list[tuple[int, str | None, int]]] = {}
    for part in parts:
        columns: dict[str, list[Any]] = {"at": [], "user": [], "n": [], "__late": []}
        for hour, user, is_late in part:
            day = day_name(hour * HOUR // DAY_MS)
            model.setdefault(day, []).append((hour, user, n))
            late[day] += is_late
            for name, value in zip(columns, (hour * HOUR * unit, user, n, is_late), strict=True):
                columns[name].append(value)
            n += 1
        batch = pa.RecordBatch.from_pydict({k: columns[k] for k in schema.names}, schema)
        if any(columns["__late"]):
            batch = batch.append_column("__late", pa.array(columns["__late"]))
        batches.append(batch)

    def place(row: tuple[int, str | None, int]) -> list[Any]:
        values = dict(zip(schema.names, row, strict=True))
        return [(values[name] is not None, values[name] or 0) for name in order]

    found = decoded(encode_packet(batches, schema, "at", order))
    assert {day: [row["n"] for row in rows] for day, (rows, _) in found.items()} == {
        day: [row[2] for row in sorted(rows, key=place)] for day, rows in model.items()
    }
    assert {day: count for day, (_, count) in found.items() if count} == +late
