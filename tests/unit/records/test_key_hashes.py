"""Hashes of keys that repeat are those of each key by itself."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.records import keys as module
from headrace.records.keys import LEAST_ROWS, encode_columns, key_hashes

ROWS = LEAST_ROWS * 3
TEXTS = ["a", "", "b\0c", "zürich", None, "long " * 20]
DAY = datetime.date(2013, 1, 31)
MOMENTS = [datetime.datetime(2013, 1, day, tzinfo=datetime.UTC) for day in (1, 2)]


def column(values: Sequence[Any], kind: pa.DataType, seed: int, rows: int = ROWS) -> pa.Array:
    places = np.random.default_rng(seed).integers(0, len(values), rows)
    return pa.array(values, kind).take(pa.array(places))


@pytest.mark.parametrize(
    "others",
    [
        [],
        [column(["x", "yy"], pa.large_string(), 2)],
        [column([b"x", b"\0", None], pa.binary(), 2), column([True, None], pa.bool_(), 3)],
        [column([1, -1, None], pa.int64(), 2), column([(1 << 63) - 1, 0], pa.uint64(), 3)],
        [column([0.0, -0.0, float("nan"), None], pa.float64(), 2)],
        [column([DAY, None], pa.date32(), 2)],
        [column(MOMENTS, pa.timestamp("us", tz="UTC"), 2)],
        [column([None], pa.string(), 2)],
    ],
    ids=["text", "texts", "bytes", "numbers", "fractions", "days", "moments", "nulls"],
)
def test_few_keys_have_the_hashes_of_each(
    others: list[pa.Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [column(TEXTS, pa.string(), 1), *others]
    for cut in (columns, [one.slice(5, LEAST_ROWS) for one in columns]):
        expected = encode_columns(cut).hashes()
        encoded: list[int] = []

        def counted(keys: Sequence[pa.Array], encoded: list[int] = encoded) -> Any:
            encoded.append(len(keys[0]))
            return encode_columns(keys)

        monkeypatch.setattr(module, "encode_columns", counted)
        assert key_hashes(cut).tolist() == expected.tolist()
        assert len(encoded) == 1
        assert encoded[0] < 100


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([str(n) for n in range(ROWS)])],
        [
            pa.array([str(n // 8) for n in range(ROWS)]),
            pa.array([str(n % 997) for n in range(ROWS)]),
        ],
        [column([1, 2], pa.int64(), 1)],
        [column(TEXTS, pa.string(), 1, 7)],
        [column(TEXTS, pa.string(), 1).slice(0, 0)],
        [column(TEXTS, pa.string(), 1).dictionary_encode()],
    ],
    ids=["many", "many together", "fixed", "few rows", "none", "dictionary"],
)
def test_other_keys_are_hashed_as_they_are(columns: list[pa.Array]) -> None:
    assert key_hashes(columns).tolist() == encode_columns(columns).hashes().tolist()
