"""Rows as entries and entries as rows: keys and values in the form that ``hr.Remote`` uses.

A key is the canonical encoding of its columns, a value MessagePack: a map of columns, or a bare
value. People and other programs may write a key as text, which stands for one of a few encodings.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from headrace.coordinator.catalog import StoreEntry
from headrace.coordinator.inspection.row_filters import free_key, typed_key
from headrace.coordinator.inspection.store_rows import StoreRows
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.keys import INTEGER, STRING, decode_key, encode_columns, encode_key
from headrace.serving.resp import EqualKeys
from headrace.state.value_types import plain

VALUE = "value"
"""The field of a value that is no map."""

Encoded = tuple[list[bytes], list[bytes]]
_pack = msgspec.msgpack.Encoder().encode
_GROUP = b"\0\0"
_INTEGER, _SIGN = struct.Struct(">BQ"), 1 << 63
_TEXT_BEGIN, _TEXT_END = bytes([STRING]), b"\0\0"
_NO_TEXT = bytes(range(0x21)) + b"\x7f"
_MAP_FORMS = ((16, b"\x80", 0), (1 << 16, b"\xde", 2))


def encode_rows(
    keys: Sequence[pa.Array], values: Mapping[str, pa.Array], *, is_bare: bool = False
) -> Encoded:
    """Return rows as keys and values.

    Args:
        keys: columns of the key, in order, each of shape (n,).
        values: columns of the value, by name, each of shape (n,).
        is_bare: the value is that of the only column, not a map.
    """
    encoded = encode_columns(keys).to_list()
    columns = [list(map(_pack, column.to_pylist())) for column in values.values()]
    if is_bare:
        return encoded, columns[0]
    # As a map: its head, and before each value its name, which are the same in all rows.
    head = _map_head(len(values))
    parts: list[Any] = []
    for at, (name, column) in enumerate(zip(values, columns, strict=True)):
        parts += [repeat((head if at == 0 else b"") + _pack(name)), column]
    return encoded, list(map(b"".join, zip(*parts, strict=False)))


def text_of(key: bytes) -> bytes:
    """Return the text of a key that ``RowShape.of_equal`` made."""
    return key[len(_TEXT_BEGIN) : -len(_TEXT_END)]


def _map_head(fields: int) -> bytes:
    for most, tag, size in _MAP_FORMS:
        if fields < most:
            return tag + fields.to_bytes(size, "big") if size else bytes([tag[0] + fields])
    raise InvalidInputError(f"found {fields} columns of a value, expected less than {most}")


def field_text(value: Any) -> bytes:
    """Return a field as Redis's clients see it: text as it is, the rest as JSON has it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    shown = plain(value)
    return shown.encode() if isinstance(shown, str) else msgspec.json.encode(shown)


class RowShape(ABC):
    """What the entries of a table look like as rows."""

    @property
    @abstractmethod
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""

    @abstractmethod
    def batch(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Return entries as rows; shape (n,).

        Raises:
            CorruptDataError: a value does not fit the columns.
        """

    def candidates(self, text: bytes) -> list[bytes]:
        """Return the keys that a text may stand for, the likeliest first.

        One column is written as it is, several as a JSON array.
        """
        try:
            word = text.decode()
        except UnicodeDecodeError:
            return []
        words = [word]
        if word.startswith("["):
            with suppress(msgspec.DecodeError):
                found = msgspec.json.decode(word, type=list[Any])
                words = [one if isinstance(one, str) else _json(one) for one in found]
        keys: list[tuple[Any, ...]] = []
        with suppress(InvalidInputError):
            keys.append(typed_key(words, self.key_schema))
        if self.are_keys_free:
            keys += [free_key(words), tuple(words)]
        found_keys = []
        for key in keys:
            with suppress(InvalidInputError):
                found_keys.append(encode_key(key))
        return list(dict.fromkeys(found_keys))

    def of_texts(self, words: Sequence[bytes], space: bytes = b"") -> list[bytes] | None:
        """Return the first candidate of each of many texts, quickly; ``None``: one by one.

        Args:
            words: the texts, each behind ``space``; where one is no text, or not behind it, or has
                a space, which may begin a number, there is none.
            space: without line ends.
        """
        kind = self._only_kind
        if kind < 0:
            return None
        # All are handled as the lines of one text: a step of bytes for all, not one for each.
        lines, head = b"\n" + b"\n".join(words), b"\n" + space
        if len(lines.translate(None, _NO_TEXT)) + len(words) != len(lines) or lines.count(
            head
        ) != len(words):
            return None
        if kind == STRING:
            between = _TEXT_END + b"\n" + _TEXT_BEGIN
            return (lines.replace(head, between) + _TEXT_END).split(b"\n")[1:]
        texts = lines.replace(head, b"\n").split(b"\n")[1:]
        if not all(map(bytes.isdigit, texts)):
            return None
        numbers = list(map(int, texts))
        if max(numbers, default=0) >= _SIGN:
            return None
        return [_INTEGER.pack(INTEGER, number + _SIGN) for number in numbers]

    def of_equal(self, keys: EqualKeys, space: bytes) -> list[bytes]:
        """Return the same of keys of one size behind ``space``; none: one by one."""
        if self._only_kind != STRING:
            return []
        return keys.encoded(space, _TEXT_BEGIN, _TEXT_END, _NO_TEXT)

    def has_one_meaning(self, text: bytes) -> bool:
        """Say whether what ``of_texts`` returns for a text is its only candidate."""
        return self._only_kind == STRING and not self.are_keys_free and text[:1] != b"["

    @cached_property
    def _only_kind(self) -> int:
        """The tag of the only column of the key, where it is text or an integer; else -1."""
        kinds = self.key_schema.types
        if len(kinds) != 1:
            return -1
        if pa.types.is_string(kinds[0]):
            return STRING
        return INTEGER if pa.types.is_integer(kinds[0]) else -1

    def prefix(self, text: bytes) -> bytes | None:
        """Return what keys begin with whose first column is text that begins so."""
        if text and (kind := self._first_type()) is not None and not pa.types.is_string(kind):
            return None
        return b"\x30" + text.replace(b"\0", b"\0\xff")

    def _first_type(self) -> pa.DataType | None:
        return None if self.are_keys_free else self.key_schema.types[0]

    are_keys_free = False

    def fields(self, value: bytes) -> dict[str, Any]:
        """Return the columns of a value; one that is no map has the field ``value``.

        Raises:
            CorruptDataError: bytes that are no MessagePack.
        """
        try:
            found = msgspec.msgpack.decode(value)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"a served value is no MessagePack: {error}") from error
        return {str(k): v for k, v in found.items()} if isinstance(found, dict) else {VALUE: found}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class ColumnRows(RowShape):
    """Rows of columns that are known: of a stream or a daily table.

    Args:
        keys: columns of the key.
        values: columns of the value.
        is_bare: the value is that of the only column, not a map.
    """

    def __init__(self, keys: pa.Schema, values: pa.Schema, *, is_bare: bool = False) -> None:
        self._keys, self._values, self.is_bare = keys, values, is_bare
        taken = set(keys.names)
        self._schema = pa.schema(
            [
                *keys,
                *(f.with_name(f"value.{f.name}") if f.name in taken else f for f in values),
            ]
        )

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key."""
        return self._keys

    @property
    def value_schema(self) -> pa.Schema:
        """The columns of the value."""
        return self._values

    def batch(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Return entries as rows."""
        heads = list(zip(*map(decode_key, keys), strict=True)) or [()] * len(self._keys)
        rows = [self.fields(value) for value in values]
        names = [VALUE] if self.is_bare else self._values.names
        tails = [[row.get(name) for row in rows] for name in names]
        try:
            arrays = [
                pa.array(column, field.type)
                for column, field in zip([*heads, *tails], self._schema, strict=True)
            ]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise CorruptDataError(f"served rows do not fit {self._schema}: {error}") from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def encode_keys(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the keys of rows."""
        return encode_columns([batch.column(name) for name in self._keys.names]).to_list()

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        """Return rows as keys and values."""
        return encode_rows(
            [batch.column(name) for name in self._keys.names],
            {name: batch.column(name) for name in self._values.names},
            is_bare=self.is_bare,
        )


class StoreShape(RowShape):
    """Entries of a processor's store: its keys are whatever its code chose.

    Args:
        entry: of the catalog.
        keys: schema of the key of its messages.
    """

    are_keys_free = True

    def __init__(self, entry: StoreEntry, keys: pa.Schema) -> None:
        self._entry, self._keys = entry, keys

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key of the messages."""
        return self._keys

    def batch(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Return entries as rows; keys of several kinds are JSON text."""
        full = [_GROUP + key for key in keys]
        kinds = {tuple(map(type, decode_key(key))) for key in keys}
        first = full[0] if len(kinds) == 1 else None
        return StoreRows(self._entry, first).batch(full, values)
