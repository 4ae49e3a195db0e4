"""Which types hold those of two streams, and how rows come to have them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.records.evolution import cast_to_schema, common_type, unify_schemas


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int64(), pa.int64(), pa.int64()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.int64(), None),
        (pa.string(), pa.binary(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.date32(), pa.timestamp("us", tz="UTC"), None),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(12, 2), pa.decimal128(8, 6), pa.decimal128(16, 6)),
        (pa.decimal128(38, 0), pa.decimal128(38, 30), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.list_(pa.string()), None),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), None),
    ],
)
def test_the_narrowest_type_that_holds_both(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert both == common_type(one, other)
    assert both == common_type(other, one)


def test_columns_come_by_name_in_the_order_of_their_first_stream() -> None:
    schema, wrong = unify_schemas(
        {
            "a": pa.schema([("x", pa.int32()), ("y", pa.string())]),
            "b": pa.schema([("z", pa.bool_()), ("x", pa.int64())]),
            "c": pa.schema([("x", pa.int8())]),
        }
    )
    assert wrong == []
    assert schema == pa.schema([("x", pa.int64()), ("y", pa.string()), ("z", pa.bool_())])


def test_what_keeps_columns_apart_names_both_streams() -> None:
    schemas = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("x", pa.string())])}
    _, [text] = unify_schemas(schemas)
    assert text.startswith("column 'x' is int64 in 'a', but string in 'b', and no type holds both")


def test_rows_get_wider_types_and_nulls_and_lose_what_is_not_wanted() -> None:
    wanted = pa.schema([("x", pa.int64()), ("tags", pa.list_(pa.int64())), ("new", pa.string())])
    batch = pa.record_batch(
        {
            "gone": [1, 2],
            "x": pa.array([3, None], pa.int32()),
            "tags": pa.array([[1], None], pa.list_(pa.int8())),
        }
    )
    assert cast_to_schema(batch, wanted).to_pylist() == [
        {"x": 3, "tags": [1], "new": None},
        {"x": None, "tags": None, "new": None},
    ]
    assert cast_to_schema(batch, wanted).schema == wanted
    assert cast_to_schema(batch, batch.schema) is batch
