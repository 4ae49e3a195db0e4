"""Guesses the columns of a stream from the first rows of a file."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from headrace.errors import InvalidInputError
from headrace.sources.line_source import LineSource

_UTC = pa.timestamp("us", tz="UTC")


def inferred(source: LineSource, name: str, *, is_csv: bool) -> pa.Schema:
    """Return the columns of JSON lines or CSV, as their first MiB has them.

    Whole numbers are ``int64``, others ``float64``; text that is a time in every row is a
    timestamp; a column that is always null is text.

    Args:
        source: of the lines; it is only looked into.
        name: of the file, for errors.
        is_csv: CSV with a header; else JSON lines.

    Raises:
        InvalidInputError: there is nothing to guess from, or the first rows cannot be read.
    """
    data = source.sample()
    if not data.strip():
        raise InvalidInputError(
            f"{name} is empty, so its columns cannot be guessed; create the stream first, with "
            'headrace bus create NAME --schema "column:type,..."'
        )
    try:
        if is_csv:
            table = arrow_csv.read_csv(io.BytesIO(data))
        else:
            options = arrow_json.ReadOptions(block_size=len(data) + 1)
            table = arrow_json.read_json(io.BytesIO(data), read_options=options)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"{name}: its columns cannot be guessed: {reason}; create the stream first, with "
            'headrace bus create NAME --schema "column:type,..."'
        ) from error
    return pa.schema([(field.name, _stored(field)) for field in table.schema])


def _stored(field: pa.Field) -> pa.DataType:
    kind, types = field.type, pa.types
    if types.is_timestamp(kind):
        return _UTC
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind):
        return pa.int64() if types.is_integer(kind) else kind
    if types.is_floating(kind):
        return pa.float64()
    if types.is_list(kind):
        return pa.list_(_stored(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([(inner.name, _stored(inner)) for inner in kind])
    return pa.string()
