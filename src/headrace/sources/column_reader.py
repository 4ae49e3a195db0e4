"""Turns many lines into columns at once, where nothing about them is out of the ordinary.

What cannot be told apart for certain, such as a line that does not fit, is left to
``row_types``, which goes row by row and says what is wrong.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from headrace.bus.spec import StreamSpec

_LEAST_MOMENT = len("2013-01-31T05:15")
_TRUE, _FALSE = ["true", "True", "TRUE", "1"], ["false", "False", "FALSE", "0"]
_UTC = pa.timestamp("us", tz="UTC")


class ColumnReader:
    """Reads lines of one stream as columns.

    Args:
        spec: of the stream.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        is_null = all(default is None for _, default in spec.added)  # what is left out
        self._fits_json = is_null and all(_is_plain(f.type, lists=True) for f in spec.schema)
        self._fits_csv = is_null and all(_is_plain(f.type, lists=False) for f in spec.schema)

    def from_json(self, lines: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return JSON lines as a batch; ``None`` where a look at each row is needed.

        Args:
            lines: at least one, none of them blank.
        """
        if not self._fits_json or not all(map(_is_object, lines)):
            return None  # Arrow's reader dies of a null in place of an object
        block = b"\n".join(lines)
        try:
            first = json.loads(lines[0])
            kinds = [self._json_kind(field, first) for field in self._spec.schema]
            table = arrow_json.read_json(
                io.BytesIO(block),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(kinds), unexpected_field_behavior="error"
                ),
            )
        except (pa.ArrowException, ValueError, AttributeError, RecursionError):
            return None
        times = [field.name for field in self._spec.schema if field.type == _UTC]
        if any(_has_empty(table.column(name)) for name in times):
            return None  # no time in JSON, where it is not the null that it is in CSV
        return self._batch(table, len(lines))

    def _json_kind(self, field: pa.Field, row: dict[str, object]) -> pa.Field:
        if field.type != _UTC:
            return field
        is_number = isinstance(row.get(field.name), int)
        return pa.field(field.name, pa.int64() if is_number else pa.string())

    def from_csv(self, lines: Sequence[bytes], header: Sequence[str]) -> pa.RecordBatch | None:
        """Return lines of CSV as a batch; ``None`` where a look at each row is needed.

        Args:
            lines: at least one, none of them blank, and none with a quote.
            header: names of the columns that are there.
        """
        if not self._fits_csv:
            return None
        block = b"\n".join(lines)
        kinds = {
            name: pa.string() if kind == _UTC else kind
            for name in header
            for kind in [self._spec.schema.field(name).type]
        }
        try:
            table = arrow_csv.read_csv(
                io.BytesIO(block),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, block_size=len(block) + 1, column_names=list(header)
                ),
                parse_options=arrow_csv.ParseOptions(quote_char=False),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=kinds,
                    null_values=[""],
                    strings_can_be_null=False,
                    true_values=_TRUE,
                    false_values=_FALSE,
                ),
            )
        except (pa.ArrowException, ValueError):
            return None
        return self._batch(table, len(lines))

    def _batch(self, table: pa.Table, rows: int) -> pa.RecordBatch | None:
        if table.num_rows != rows:
            return None
        columns = []
        try:
            for field in self._spec.schema:
                if field.name not in table.schema.names:
                    columns.append(pa.nulls(rows, field.type))
                    continue
                column = table.column(field.name).combine_chunks()
                columns.append(_moments(column) if field.type == _UTC else column)
            batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
            batch.validate(full=True)
        except (pa.ArrowException, _UnsureError):
            return None
        time = self._spec.time
        return None if time is not None and batch.column(time).null_count else batch


class _UnsureError(Exception):
    """A column may hold what has to be looked at row by row."""


def _is_object(line: bytes) -> bool:
    return line.startswith(b"{") or line.lstrip().startswith(b"{")


def _has_empty(column: pa.ChunkedArray) -> bool:
    return column.type == pa.string() and bool(pc.any(pc.equal(column, "")).as_py())


def _moments(column: pa.Array) -> pa.Array:
    """Return times: whole numbers are milliseconds; text without a zone is UTC."""
    if column.type == pa.int64():
        return pc.multiply_checked(column, 1000).cast(_UTC)
    given = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    least = pc.min(pc.utf8_length(given)).as_py()
    if least is None:
        return pa.nulls(len(column), _UTC)
    if least < _LEAST_MOMENT:
        if not pc.all(pc.utf8_is_digit(given)).as_py():
            raise _UnsureError
        return pc.multiply_checked(given.cast(pa.int64()), 1000).cast(_UTC)
    try:
        return given.cast(_UTC)
    except pa.ArrowInvalid:
        return given.cast(pa.timestamp("us")).cast(_UTC)


def _is_plain(kind: pa.DataType, *, lists: bool) -> bool:
    types = pa.types
    if lists and types.is_list(kind):
        inner = kind.value_type
        return bool(inner != _UTC and _is_plain(inner, lists=False))
    return bool(
        types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or kind == _UTC
    )
