"""Rows of the lines of JSON and CSV: columns at once, and row by row where one is bad.

``ColumnReader`` reads many lines as columns where nothing about them is out of the ordinary. What
it is not certain about goes row by row through ``RowDecoder``, which says what is wrong with a
value. There a stream's schema is one msgspec struct, which checks a line while it is decoded.
JSON and CSV share it; CSV's words are read as numbers, times and truth values by the schema.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from headrace.bus import StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.evolution import default_values
from headrace.records.schema import type_text

_LEAST_MOMENT = len("2013-01-31T05:15")
LINE = "line"
"""The column that a file of lines has."""
_TRUE, _FALSE = ["true", "True", "TRUE", "1"], ["false", "False", "FALSE", "0"]
_UTC = pa.timestamp("us", tz="UTC")


class ColumnReader:
    """Reads lines of one stream as columns.

    Args:
        spec: of the stream.
        ignores_others: leave out the fields of JSON that are no columns; else they are mistakes.
    """

    def __init__(self, spec: StreamSpec, *, ignores_others: bool = False) -> None:
        self._spec = spec
        self._others = "ignore" if ignores_others else "error"
        is_null = all(default is None for _, default in spec.added)  # what is left out
        self._fits_json = is_null and all(_is_plain(f.type, lists=True) for f in spec.schema)
        self._fits_csv = is_null and all(_is_plain(f.type, lists=False) for f in spec.schema)

    def from_json(self, lines: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return JSON lines as a batch; ``None`` where a look at each row is needed.

        Args:
            lines: at least one, none of them blank.
        """
        if not self._fits_json:
            return None
        block = b"\n".join(lines)
        are_plain = block.startswith(b"{") and block.count(b"\n{") == len(lines) - 1
        if not are_plain and not all(map(_is_object, lines)):
            return None  # Arrow's reader dies of a null in place of an object
        try:
            first = json.loads(lines[0])
            kinds = [self._json_kind(field, first) for field in self._spec.schema]
            table = arrow_json.read_json(
                io.BytesIO(block),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema(kinds), unexpected_field_behavior=self._others
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

    def from_lines(self, lines: Sequence[bytes]) -> pa.RecordBatch | None:
        """Return lines as the column ``line``; ``None`` where a look at each row is needed."""
        if not self._fits_csv:
            return None
        try:
            column = pa.array(lines, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return None
        return self._batch(pa.table({LINE: column}), len(lines))

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


_AT: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_SHOWN_CHARS: Final = 60


class RowDecoder:
    """Checks and collects the rows of one stream.

    Args:
        spec: of the stream. Its event-time column must be in each row; what else is left
            out is null, or what an added column has in older rows.
        ignores_others: as of ``ColumnReader``.
    """

    def __init__(self, spec: StreamSpec, *, ignores_others: bool = False) -> None:
        self._spec = spec
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        rename = {}
        added = default_values(spec.schema, dict(spec.added))
        # A row without its event time must fail, so that column comes first, without a default.
        self._order = sorted(
            range(len(spec.schema)), key=lambda i: spec.schema[i].name != spec.time
        )
        for index in self._order:
            field = spec.schema.field(index)
            kind = _python_type(field.type)
            own = f"f{index}"
            rename[own] = field.name
            given = (own, kind | None, added.get(field.name))
            fields.append((own, kind) if field.name == spec.time else given)
        self._type = msgspec.defstruct(
            "Row", fields, rename=rename, forbid_unknown_fields=not ignores_others, gc=False
        )
        self._decoder = msgspec.json.Decoder(self._type)

    def from_json(self, line: bytes) -> Any:
        """Return the row of a line of JSON.

        Raises:
            InvalidInputError: what is wrong: column, found, expected.
        """
        try:
            return self._decoder.decode(line)
        except msgspec.ValidationError as error:
            raise self._mistake(error, lambda: _whole(line)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = _shortened(line.decode(errors="replace").strip())
            raise InvalidInputError(
                f"found {found}, expected a JSON object: {_lower(str(error))}"
            ) from error

    def from_words(self, words: Mapping[str, str | None]) -> Any:
        """Return the row of a line of CSV; an empty field is null, or empty text.

        Raises:
            InvalidInputError: what is wrong: column, found, expected.
        """
        schema = self._spec.schema
        given: dict[str, Any] = {}
        for name, word in words.items():
            is_known = name in schema.names
            kind = schema.field(name).type if is_known else None
            if word == "" and not (kind is not None and pa.types.is_string(kind)):
                continue
            given[name] = _from_json(word) if word and _is_nested(kind) else word
        try:
            return msgspec.convert(given, self._type, strict=False)
        except msgspec.ValidationError as error:
            raise self._mistake(error, lambda: given) from error

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Return rows as a batch of the stream.

        Raises:
            UnfitRowError: a value that Arrow refuses, with the index of its row.
        """
        if not rows:
            return pa.RecordBatch.from_pylist([], self._spec.schema)
        columns = list(zip(*map(msgspec.structs.astuple, rows), strict=True))
        arrays: dict[int, pa.Array] = {}
        for index, values in zip(self._order, columns, strict=True):
            field = self._spec.schema.field(index)
            stored = _stored(values, field.type)
            try:
                arrays[index] = pa.array(stored, field.type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise _unfit(stored, field) from error
        ordered = [arrays[index] for index in range(len(self._spec.schema))]
        return pa.RecordBatch.from_arrays(ordered, schema=self._spec.schema)

    def _mistake(self, error: msgspec.ValidationError, row: Any) -> InvalidInputError:
        matched = _AT.fullmatch(str(error))
        assert matched is not None
        reason, path = matched["reason"], matched["path"]
        names = self._spec.schema.names
        if path is None and (unknown := _UNKNOWN.fullmatch(reason)):
            near = difflib.get_close_matches(unknown[1], names, 1)
            add = f"expected {', '.join(names)}; to add it: --add-columns"
            hint = f"did you mean {near[0]!r}?" if near else add
            return InvalidInputError(f"found column {unknown[1]!r}, which is not there; {hint}")
        if path is None and (missing := _MISSING.fullmatch(reason)):
            expected = type_text(self._spec.schema.field(missing[1]).type)
            return InvalidInputError(
                f"column {missing[1]!r}: found nothing, expected {expected}: it is the event time"
            )
        if path is None:
            return InvalidInputError(f"found {_plain(row())}, expected a JSON object of columns")
        name = max((n for n in names if path.startswith(f".{n}")), key=len)
        expected = type_text(self._spec.schema.field(name).type)
        found = _plain(row()[name])
        return InvalidInputError(
            f"column {name!r}: found {found}, expected {expected}{_hint(expected, reason)}"
        )


class UnfitRowError(InvalidInputError):
    """A row of a batch does not fit; ``row`` is its index."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


def _python_type(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_integer(kind):
        signed = types.is_signed_integer(kind)
        bits = kind.bit_width - signed
        least = -(2**bits) if signed else 0
        # msgspec bounds must fit 64 signed bits; Arrow checks what is above.
        return (
            Annotated[int, msgspec.Meta(ge=least, le=min(2**bits, 2**63) - 1)]
            if (kind.bit_width < 64 or signed)
            else Annotated[int, msgspec.Meta(ge=0)]
        )
    if types.is_timestamp(kind):
        return datetime.datetime | int
    plain = (
        (types.is_floating, float),
        (types.is_boolean, bool),
        (types.is_string, str),
        (types.is_binary, bytes),
        (types.is_date, datetime.date),
        (types.is_decimal, decimal.Decimal),
        (types.is_duration, datetime.timedelta),
    )
    for test, found in plain:
        if test(kind):
            return found
    if types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    return dict[str, Any]


def _is_nested(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_list(kind) or pa.types.is_struct(kind))


def _from_json(word: str) -> Any:
    """Lists and structs stand in CSV as JSON; what cannot be read is refused by its type."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def _stored(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Times without a zone are UTC; whole numbers for times are milliseconds."""
    if not pa.types.is_timestamp(kind):
        return values
    return [_microseconds(value) for value in values]


_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _microseconds(value: datetime.datetime | int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, int):
        return value * 1000
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    return (value - _START) // _MICROSECOND


def _unfit(values: Sequence[Any], field: pa.Field) -> UnfitRowError:
    expected = type_text(field.type)
    for row, value in enumerate(values):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            reason = _lower(str(error).splitlines()[0])
            return UnfitRowError(
                f"column {field.name!r}: found {_plain(value)}, expected {expected}: {reason}", row
            )
    return UnfitRowError(f"column {field.name!r} does not fit {expected}", 0)


def _hint(expected: str, reason: str) -> str:
    if expected == "timestamp":
        return ', such as "2013-01-31T05:15:00Z" or milliseconds since 1970'
    if expected == "date":
        return ', such as "2013-01-31"'
    if expected == "binary":
        return " as base64"
    bound = re.search(r"(<=|>=) (-?\d+)", reason)
    return f" {bound[1]} {int(bound[2]):,}" if bound else ""


def _plain(value: Any) -> str:
    try:
        return _shortened(json.dumps(value, ensure_ascii=False, default=str))
    except ValueError:
        return _shortened(repr(value))


def _whole(line: bytes) -> Any:
    """Return a line of JSON that does not fit; what is behind its first value may be none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        found = _shortened(line.decode(errors="replace").strip())
        raise InvalidInputError(f"found {found}, expected a JSON object on a line") from error


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _lower(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
