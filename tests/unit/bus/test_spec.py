"""A stream that cannot work is refused before it exists."""

import pyarrow as pa
import pytest

from headrace.bus import Producer, StreamSpec
from headrace.errors import InvalidInputError

SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("x", pa.float64())])


def test_a_schema_is_kept_in_stored_form():
    spec = StreamSpec("a", 1, pa.schema([("n", pa.large_string())]), key=("n",))
    assert pa.schema([("n", pa.string())]) == spec.schema
    assert spec.key == ("n",)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "_a", "a b", "é", "a\n", "x" * 201])
def test_a_name_that_could_leave_its_folder_is_refused(name):
    with pytest.raises(InvalidInputError, match="cannot name a stream"):
        StreamSpec(name, 1, SCHEMA)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"partitions": 0}, "found 0 partitions, expected 1 to 65536"),
        ({"partitions": 65537}, "found 65537 partitions"),
        ({"schema": pa.schema([])}, "at least one column"),
        ({"time": "when"}, "event-time column 'when' is not in the schema"),
        ({"time": "x"}, "event-time column 'x' is double, expected int64 or a timestamp"),
        ({"key": ("who",)}, "key column 'who' is not in the schema"),
        ({"key": ("id", "id")}, "holds a column twice"),
        ({"key": ("tags",)}, "key column 'tags' is list"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(how, message):
    with pytest.raises(InvalidInputError, match=message):
        StreamSpec(**{"name": "a", "partitions": 1, "schema": SCHEMA, **how})


def test_producers_that_would_look_alike_are_refused():
    for name, lineage in (("", "1"), ("a\0b", "1"), ("a", "b\0c")):
        with pytest.raises(InvalidInputError, match="zero byte"):
            Producer(name, lineage)
