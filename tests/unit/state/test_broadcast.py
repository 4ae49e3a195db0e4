"""A broadcast table is a function of what its source held, in however many steps it was read."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInputError
from headrace.records import keys as record_keys
from headrace.records.keys import EncodedKeys
from headrace.state import broadcast
from headrace.state.broadcast import BroadcastStore, BroadcastTable, KeyIndex

DAY = datetime.date(2020, 1, 1)
COLUMNS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-5, 300),
    pa.int16(): st.integers(-5, 300),
    pa.string(): st.text("ab\0", max_size=3),
    pa.binary(): st.binary(max_size=2),
    pa.float64(): st.sampled_from([0.0, 1.5, math.nan, math.inf, -2.0]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.sampled_from([DAY, DAY.replace(day=2)]),
}
kinds = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=2)


def same(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key that equals itself, NaN included."""
    return tuple("nan" if isinstance(part, float) and math.isnan(part) else part for part in key)


def arrays(kinds: list[pa.DataType], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


def check_index(data: Any) -> None:
    chosen = data.draw(kinds)
    one = st.tuples(*(COLUMNS[kind] for kind in chosen))
    with_nulls = st.tuples(*(COLUMNS[kind] | st.none() for kind in chosen))
    table = list({same(row): row for row in data.draw(st.lists(one, max_size=40))}.values())
    asked = data.draw(st.lists(with_nulls, max_size=40)) + table[::2]
    places = {same(row): at for at, row in enumerate(table)}
    found = KeyIndex(arrays(chosen, table)).find(arrays(chosen, asked))
    assert found.tolist() == [places.get(same(row), -1) for row in asked]


@given(st.data())
def test_each_key_finds_its_row_and_no_other(data: Any) -> None:
    check_index(data)


@given(st.data())
def test_keys_of_one_hash_are_told_apart(data: Any) -> None:
    original: Callable[..., EncodedKeys] = record_keys.encode_columns

    class Colliding:
        def __init__(self, columns: Any) -> None:
            self.encoded = original(columns)

        def hashes(self) -> Any:
            return self.encoded.hashes() % np.uint64(3) << np.uint64(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast, "encode_columns", Colliding)
        check_index(data)


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
rows_of = st.lists(
    st.tuples(
        st.none() | st.integers(0, 6), st.none() | st.integers(0, 9), st.sampled_from([None, "w"])
    ),
    max_size=12,
)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[at] for row in rows], f.type) for at, f in enumerate(SCHEMA)], schema=SCHEMA
    )


def table_of() -> BroadcastTable:
    return BroadcastTable(["k"], SCHEMA, ["v", "w"], 2)


def expected(parts: list[list[tuple[Any, ...]]]) -> dict[int, tuple[Any, ...]]:
    live: dict[int, tuple[Any, ...]] = {}
    for rows in parts:
        for row in rows:
            if row[0] is not None:
                live[row[0]] = row
    return {key: row for key, row in live.items() if row[1:] != (None, None)}


def shown(table: BroadcastTable) -> dict[int, tuple[Any, ...]]:
    return {row["k"]: tuple(row.values()) for row in table.batch.to_pylist()}


@given(rows_of, rows_of, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4))
def test_the_latest_row_counts_in_whatever_steps_it_is_read(
    first: list[Any], second: list[Any], stops: list[tuple[int, int]]
) -> None:
    table = table_of()
    messages = table.messages()
    store = BroadcastStore("t", table, "stream 't'")
    parts = [first, second]
    for stop in [*sorted(stops), (12, 12)]:
        news = {}
        for at, upto in enumerate(stop):
            end = min(upto, len(parts[at]))
            if end > table.offsets[at]:
                news[at] = batch(parts[at][table.offsets[at] : end]), end
        table.apply(news)
        wanted = expected([rows[:upto] for rows, upto in zip(parts, table.offsets, strict=True)])
        assert shown(table) == wanted
        assert {key: (m.k, m.v, m.w) for key, m in messages.items()} == wanted
        assert [key for key, _ in store.scan()] == sorted(wanted)
        assert len(store) == len(wanted)
    table.clear()
    assert messages == {}
    assert table.batch.num_rows == 0


def test_a_processor_may_only_read() -> None:
    table = table_of()
    table.apply({0: (batch([(1, 2, "w")]), 1)})
    store = BroadcastStore("rates", table, "stream 'rates'")
    assert store.get(1).v == 2
    assert (store.get(2), store.get(2, "none")) == (None, "none")
    assert 1 in store
    assert 2 not in store
    for write in (lambda: store.put(1, 2), lambda: store.delete(1)):
        with pytest.raises(InvalidInputError, match=r"'rates' is only read: .* stream 'rates'"):
            write()
    with pytest.raises(InvalidInputError, match=r"\[1\] cannot be a key"):
        store.get([1])
