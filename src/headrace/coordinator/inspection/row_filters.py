"""Keys, key ranges and conditions on rows, read from the words of a command line or a request.

``state get`` and ``state scan`` look up keys and ranges, and so does the API; ``--where`` of
``bus tail``, ``dlq`` and ``state`` is an SQL condition on columns.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from headrace import extras, plugins
from headrace.coordinator.inspection.store_view import ALL_ROWS, Range, StoreView
from headrace.errors import InvalidInputError
from headrace.records.keys import encode_key, key_group
from headrace.records.schema import type_text
from headrace.state.value_types import plain


def typed_key(words: Sequence[str], schema: pa.Schema) -> tuple[Any, ...]:
    """Return a key of the columns of a schema.

    Args:
        words: one for each column; ``null`` is null where the column is no string.
        schema: of the key.

    Raises:
        InvalidInputError: another number of words, or one that does not fit its column.
    """
    if len(words) != len(schema):
        expected = ", ".join(f"{f.name} ({type_text(f.type)})" for f in schema)
        raise InvalidInputError(
            f"found a key of {len(words)}, expected {len(schema)}: {expected}; write one word for "
            "each"
        )
    return tuple(_value(word, field) for word, field in zip(words, schema, strict=True))


def free_key(words: Sequence[str]) -> tuple[Any, ...]:
    """Return a key that user code chose: each word as JSON, or text where it is no JSON."""
    return tuple(map(_free, words))


def _free(word: str) -> Any:
    try:
        value = msgspec.json.decode(word)
    except msgspec.DecodeError:
        return word
    return word if isinstance(value, dict | list) else value


def _value(word: str, field: pa.Field) -> Any:
    kind, types = field.type, pa.types
    if word == "null" and not types.is_string(kind):
        return None
    try:
        if types.is_string(kind):
            return word
        if types.is_boolean(kind):
            return {"true": True, "false": False}[word.lower()]
        if types.is_integer(kind):
            return int(word)
        if types.is_floating(kind):
            return float(word)
        if types.is_timestamp(kind):
            return moment(word)
        if types.is_date(kind):
            return datetime.date.fromisoformat(word)
        if types.is_binary(kind):
            return base64.b64decode(word, validate=True)
    except (ValueError, KeyError) as error:
        raise InvalidInputError(
            f"key column {field.name!r}: found {word!r}, expected {type_text(kind)}"
        ) from error
    raise InvalidInputError(f"key column {field.name!r} of type {kind} cannot be typed; use scan")


def moment(word: str) -> datetime.datetime:
    """Return a moment from ISO 8601, UTC where no zone is given, or milliseconds since 1970."""
    if word.lstrip("-").isdigit():
        return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            milliseconds=int(word)
        )
    found = datetime.datetime.fromisoformat(word)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def find(view: StoreView, words: Sequence[str], under: Sequence[str]) -> pa.RecordBatch | None:
    """Return the rows of a key; ``None`` when there are none.

    Entries of a processor's store stand under the key group of the message that was handled. A
    key that is not that of the messages is also looked for under its first values, for such
    keys often begin with it.

    Args:
        view: of the store.
        words: the key as typed.
        under: the messages' key as typed, where it is another one.

    Raises:
        InvalidInputError: the words do not fit the key's columns.
    """
    for key in _candidates(view, words):
        if under:
            homes = [typed_key(under, view.keys)]
        elif view.entry.form == "values":
            homes = [key[:length] for length in range(len(key), 0, -1)]
        else:
            homes = [key]
        for home in homes:
            found = view.of_key(key, key_group(encode_key(home), view.key_groups))
            if found is not None:
                return found
    return None


def _candidates(view: StoreView, words: Sequence[str]) -> list[tuple[Any, ...]]:
    """The keys that words may mean: of the messages' types, and in a processor's store any."""
    if view.entry.form != "values":
        return [typed_key(words, view.keys)]
    free = free_key(words)
    as_text = tuple(words)
    try:
        keys = [typed_key(words, view.keys), free, as_text]
    except InvalidInputError:
        keys = [free, as_text]
    return list({encode_key(key): key for key in keys}.values())


def key_range(
    view: StoreView, prefix: Sequence[str], low: Sequence[str], high: Sequence[str]
) -> Range:
    """Return the range of canonical keys that the options of ``scan`` mean.

    Raises:
        InvalidInputError: the store's keys do not begin with what users call the key.
    """
    if not (prefix or low or high):
        return ALL_ROWS
    if view.entry.form not in ("values", "totals", "ids", "rows", "latest"):
        raise InvalidInputError(
            f"store {view.entry.name!r} holds {view.entry.form}, which are ordered by time: use "
            "--where instead of --prefix, --from and --before"
        )
    if prefix and (low or high):
        raise InvalidInputError("give either --prefix, or --from and --before")
    if prefix:
        return _range_of_prefix(view, prefix)
    return (
        encode_key(_partly_typed(view, low)),
        encode_key(_partly_typed(view, high)) if high else None,
    )


def _range_of_prefix(view: StoreView, words: Sequence[str]) -> Range:

    begins = words[-1].removesuffix("*") if words[-1].endswith("*") else None
    whole = words if begins is None else words[:-1]
    start = encode_key(_partly_typed(view, whole)) if whole else b""
    if begins is not None:
        start += encode_key((begins,))[:-2]  # without the mark at the end of a text
    return start, start + b"\xff" * 9


def _partly_typed(view: StoreView, words: Sequence[str]) -> tuple[Any, ...]:
    """The first values of a key: of the columns' types where there are so many, else free."""
    try:
        return typed_key(words, pa.schema(list(view.keys)[: len(words)]))
    except InvalidInputError:
        if view.entry.form != "values":
            raise
        return free_key(words)


def json_ready(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in kinds that JSON has: moments as ISO 8601, bytes as base64."""
    return {name: plain(pairs_joined(value)) for name, value in row.items()}


def pairs_joined(value: Any) -> Any:
    """Return a map column, which comes as pairs, as a dict; any other value as it is."""
    if isinstance(value, list) and value and all(isinstance(i, tuple) for i in value):
        return dict(value)
    return value


def matching(batches: Iterable[pa.RecordBatch], where: str | None) -> Iterator[pa.RecordBatch]:
    """Keep the rows for which an SQL condition holds.

    Raises:
        InvalidInputError: it is none, or names a column that is not there.
    """
    if where is None:
        yield from batches
        return
    conditions: dict[tuple[str, ...], pl.Expr] = {}
    for batch in batches:
        names = tuple(batch.schema.names)
        if names not in conditions:
            conditions[names] = _condition(where, names)
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        try:
            mask = frame.select(conditions[names].alias("kept"))["kept"]
            mask = mask.cast(pl.Boolean, strict=True)
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0].partition("; valid columns")[0]
            raise InvalidInputError(
                f"--where {where!r}: {reason}; the columns are {list(names)}"
            ) from error
        if len(mask) == 1:
            mask = mask.extend_constant(mask[0], batch.num_rows - 1)
        kept = batch.filter(mask.fill_null(value=False).to_arrow())
        if kept.num_rows:
            yield kept


def _condition(where: str, columns: Sequence[str]) -> pl.Expr:
    """Return a condition; without ``headrace[sql]``, Polars reads it, which is enough for most."""
    if extras.lacking("sqlglot", "--where") is None:
        found: pl.Expr = plugins.load(plugins.QUERIES, "where")(where, columns, "--where")
        return found
    try:
        return pl.sql_expr(where)
    except pl.exceptions.PolarsError as error:
        raise InvalidInputError(
            f"--where {where!r} is no condition: {error}; write a column whose name is a "
            'word of SQL in double quotes, such as "user"'
        ) from error


def limited(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows; 0: all."""
    left = limit
    for batch in batches:
        if not limit:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return
