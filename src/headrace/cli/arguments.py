"""Schemas, columns, start positions and times, read from the words of a command line.

``id:int64,at:timestamp`` is a schema, ``count:int64=0`` a column with a default, ``0:120,1:98``
offsets of partitions. Mistakes are answered with what was found and what is near.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.durations import moment_ms
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.bus import Bus, Stream
    from headrace.coordinator.manifest import InputPosition, JobState


_OTHER_NAMES = {
    "boolean": "bool",
    "int": "int64",
    "long": "int64",
    "bigint": "int64",
    "float": "float64",
    "double": "float64",
    "str": "string",
    "text": "string",
    "bytes": "binary",
    "date32": "date",
    "datetime": "timestamp",
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_LIST = re.compile(r"list<(.+)>")


def parse_schema(text: str, option: str = "--schema") -> pa.Schema:
    """Read ``name:type`` pairs that commas separate.

    Args:
        text: the words.
        option: where they were given, for errors.

    Raises:
        InvalidInputError: a pair or a type that cannot be read, a name given twice.
    """
    import pyarrow as pa

    fields: list[tuple[str, pa.DataType]] = []
    for part in _split(text):
        name, colon, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and colon and kind):
            raise InvalidInputError(
                f"{option}: found {part.strip()!r}, expected name:type, such as id:int64"
            )
        if name in {known for known, _ in fields}:
            raise InvalidInputError(f"{option}: column {name!r} is given twice; name it once")
        fields.append((name, _type(name, kind, option)))
    return pa.schema(fields)


def _type(column: str, text: str, option: str) -> pa.DataType:
    import pyarrow as pa

    from headrace.records.schema import TYPE_NAMES

    text = text.lower().replace(" ", "")
    if listed := _LIST.fullmatch(text):
        return pa.list_(_type(column, listed[1], option))
    if decimal := _DECIMAL.fullmatch(text):
        return _decimal(column, int(decimal[1]), int(decimal[2]), option)
    name = _OTHER_NAMES.get(text, text)
    if name in TYPE_NAMES:
        return TYPE_NAMES[name]
    if ":" in text:
        raise InvalidInputError(
            f"{option}: found another colon after that of column {column!r}; expected a comma "
            "between columns, as in id:int64,at:timestamp"
        )
    near = difflib.get_close_matches(text, [*TYPE_NAMES, *_OTHER_NAMES], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join([*TYPE_NAMES, "decimal(P,S)", "list<TYPE>"])
    raise InvalidInputError(
        f"{option}: column {column!r} has unknown type {text!r}; {hint}known are {known}"
    )


def _decimal(column: str, precision: int, scale: int, option: str) -> pa.DataType:
    import pyarrow as pa

    if not (1 <= precision <= 38 and scale <= precision):
        raise InvalidInputError(
            f"{option}: column {column!r} is decimal({precision},{scale}); expected 1 to 38 "
            "digits, of which no more behind the point"
        )
    return pa.decimal128(precision, scale)


def _split(text: str) -> list[str]:
    """Cut at commas that are in no brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "(<") - (char in ")>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts if parts[-1].strip() or len(parts) == 1 else parts[:-1]


def add_columns(
    stream: Stream, change: Callable[[pa.Schema], tuple[pa.Schema, Mapping[str, Any]]]
) -> None:
    """Change the columns of a stream, again where somebody changes them meanwhile.

    Args:
        stream: to be changed.
        change: from its schema to the one that is wanted, and defaults.

    Raises:
        InvalidInputError: a change that cannot be.
    """
    while True:
        known = stream.spec.schema
        try:
            stream.evolve(*change(known))
        except InvalidInputError:
            _ = stream.settings
            if stream.spec.schema.equals(known):
                raise
        else:
            return


def parse_columns(
    schema: pa.Schema, added: Sequence[str], widened: Sequence[str]
) -> tuple[pa.Schema, dict[str, Any]]:
    """Return a schema with more columns, or wider ones, and the defaults that were given.

    Args:
        schema: of the stream as it is.
        added: ``name:type`` or ``name:type=default``, each.
        widened: ``name:type`` of columns that are there.

    Raises:
        InvalidInputError: words that cannot be read, a column that is there, or is not.
    """
    defaults: dict[str, Any] = {}
    for words in added:
        declared, equals, default = words.partition("=")
        for field in parse_schema(declared, "--add-column"):
            if field.name in schema.names:
                raise InvalidInputError(
                    f"--add-column: column {field.name!r} is there already, as "
                    f"{schema.field(field.name).type}; add another name, or make it wider with "
                    "--widen-column"
                )
            schema = schema.append(field)
            if equals:
                defaults[field.name] = _value(default, field.type)
    for words in widened:
        for field in parse_schema(words, "--widen-column"):
            if field.name not in schema.names:
                raise InvalidInputError(
                    f"--widen-column: no column {field.name!r}; found {schema.names}; a new one "
                    "is added with --add-column"
                )
            schema = schema.set(schema.names.index(field.name), field)
    return schema, defaults


def _value(text: str, kind: pa.DataType) -> Any:
    """A default in the words of JSON, or text."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    types = pa.types
    is_plain = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    return value if is_plain or value is None or isinstance(value, str) else text


_OFFSET = re.compile(r"(?P<input>.+)/(?P<partition>\d+)=(?P<offset>\d+)")


def read_time(word: str, option: str, expected: str) -> int:
    """Return a time in ms; UTC where it has no zone.

    Args:
        word: ISO 8601, such as ``2013-01-31T05:15``.
        option: that it was given to.
        expected: what may stand there.

    Raises:
        InvalidInputError: it is no time.
    """
    try:
        return moment_ms(datetime.fromisoformat(word))
    except ValueError:
        raise InvalidInputError(
            f"{option} {word!r} cannot be read; expected {expected} such as 2013-01-31T05:15"
        ) from None


def places_in(stream: Stream, start: str, held: Mapping[int, InputPosition]) -> list[int]:
    """Return where each partition of a stream begins that takes the place of another.

    Args:
        stream: the new one.
        start: ``earliest``, ``latest``, a time, or ``same``.
        held: how far the old one was read.

    Raises:
        InvalidInputError: what cannot be read, or offsets that the new one does not hold.
    """
    if start != "same":
        words = "earliest, latest, same, or a time"
        at = None if start in ("earliest", "latest") else read_time(start, "--from", words)
        return _places(stream, start, at)
    found = []
    for partition, (begin, end) in enumerate(zip(stream.begins(), stream.ends(), strict=True)):
        offset = held[partition].next_offset if partition in held else begin
        if not begin <= offset <= end:
            raise InvalidInputError(
                f"--from same: the old stream was read up to offset {offset} of partition "
                f"{partition}; the new one holds {begin} to {end}: use earliest, latest or a time",
                stream=stream.spec.name,
                partition=partition,
            )
        found.append(offset)
    return found


def start_offsets(
    state: JobState, streams: Mapping[str, str], bus: Bus, start: str, single: Sequence[str]
) -> dict[str, list[int]]:
    """Return where each partition of each input begins.

    Args:
        state: of the job.
        streams: of each input operator; one that is not named has the stream of its own name.
        bus: the streams.
        start: ``earliest``, ``latest`` or a time, for all of them.
        single: ``INPUT/PARTITION=N`` each, which wins over ``start``.

    Raises:
        InvalidInputError: what cannot be read, or is not there.
    """
    at = None
    if start not in ("earliest", "latest"):
        at = read_time(start, "--from", "earliest, latest, or a time")
    there = {*bus.names(), *bus.aliases()}
    opened = {
        operator: bus.stream(streams.get(operator, operator))
        for operator in state.inputs
        if start != "earliest" or single or streams.get(operator, operator) in there
    }
    found = {operator: _places(stream, start, at) for operator, stream in opened.items()}
    for word in single:
        _set_one(found, opened, word)
    return found


def _places(stream: Stream, start: str, at: int | None) -> list[int]:
    if at is not None:
        return [stream.offset_at(p, at) for p in range(stream.spec.partitions)]
    return stream.begins() if start == "earliest" else stream.ends()


def _set_one(found: dict[str, list[int]], opened: Mapping[str, Stream], word: str) -> None:
    matched = _OFFSET.fullmatch(word)
    if matched is None:
        raise InvalidInputError(
            f"--offset {word!r} cannot be read; expected INPUT/PARTITION=N, such as "
            f"{next(iter(found), 'orders')}/0=1000"
        )
    name, partition, offset = matched["input"], int(matched["partition"]), int(matched["offset"])
    if name not in found:
        raise InvalidInputError(f"--offset {word}: no input {name!r}; found {', '.join(found)}")
    stream = opened[name]
    if partition >= stream.spec.partitions:
        raise InvalidInputError(
            f"--offset {word}: input {name!r} has partitions 0 to {stream.spec.partitions - 1}"
        )
    begin, end = stream.begins()[partition], stream.ends()[partition]
    if not begin <= offset <= end:
        raise InvalidInputError(f"--offset {word}: expected an offset from {begin} to {end}")
    found[name][partition] = offset
