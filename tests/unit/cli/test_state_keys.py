"""Keys as typed on the command line."""

from __future__ import annotations

import datetime
import re

import pyarrow as pa
import pytest

from headrace.coordinator.inspection.row_filters import free_key, typed_key
from headrace.errors import InvalidInputError

UTC = datetime.UTC
NOON = datetime.datetime(2013, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("word", "kind", "value"),
    [
        ("-5", pa.int64(), -5),
        ("007", pa.string(), "007"),
        ("null", pa.string(), "null"),
        ("null", pa.int32(), None),
        ("True", pa.bool_(), True),
        ("1e3", pa.float64(), 1000.0),
        ("2013-01-31T12:00", pa.timestamp("us", tz="UTC"), NOON),
        ("2013-01-31T13:00+01:00", pa.timestamp("us", tz="UTC"), NOON),
        ("1359633600000", pa.timestamp("us", tz="UTC"), NOON),
        ("2013-01-31", pa.date32(), NOON.date()),
        ("aGk=", pa.binary(), b"hi"),
    ],
)
def test_a_word_has_the_type_of_its_column(word: str, kind: pa.DataType, value: object) -> None:
    assert typed_key([word], pa.schema([("k", kind)])) == (value,)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("x", pa.int64()), ("maybe", pa.bool_()), ("noon", pa.date32()), ("?", pa.binary())],
)
def test_a_word_that_does_not_fit_is_refused(word: str, kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(f"column 'k': found '{word}'")):
        typed_key([word], pa.schema([("k", kind)]))


def test_several_values() -> None:
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    assert typed_key(["ann", "3"], schema) == ("ann", 3)
    with pytest.raises(
        InvalidInputError, match=r"found a key of 1, expected 2: user \(string\), n"
    ):
        typed_key(["ann"], schema)


def test_keys_that_user_code_chose() -> None:
    assert free_key(["5", "x", '"5"', "true", "null", "[1]", "1.5"]) == (
        5, "x", "5", True, None, "[1]", 1.5,
    )  # fmt: skip
