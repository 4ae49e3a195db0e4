"""Turns rows of text into the columns of a stream, and tells which value does not fit.

A stream's schema becomes one msgspec struct, which checks a line while it is decoded. JSON and
CSV share it: CSV's words are read as numbers, times and truth values where the schema has them.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.evolution import default_values
from headrace.records.type_words import words_of_type

_AT: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_SHOWN_CHARS: Final = 60


class RowReader:
    """Checks and collects the rows of one stream.

    Args:
        spec: of the stream. Its event-time column must be in each row; what else is left
            out is null, or what an added column has in older rows.
    """

    def __init__(self, spec: StreamSpec) -> None:
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
            "Row", fields, rename=rename, forbid_unknown_fields=True, gc=False
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
            expected = words_of_type(self._spec.schema.field(missing[1]).type)
            return InvalidInputError(
                f"column {missing[1]!r}: found nothing, expected {expected}: it is the event time"
            )
        if path is None:
            return InvalidInputError(f"found {_plain(row())}, expected a JSON object of columns")
        name = max((n for n in names if path.startswith(f".{n}")), key=len)
        expected = words_of_type(self._spec.schema.field(name).type)
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
    expected = words_of_type(field.type)
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
