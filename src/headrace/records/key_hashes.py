"""Hashes of the keys of a batch: those of few different keys are made once for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headrace.records.hashing import UInt64s
from headrace.records.key_columns import encode_columns

SAMPLE_ROWS = 1024
LEAST_ROWS = 4 * SAMPLE_ROWS

_types = pa.types
_RAGGED: tuple[Callable[[pa.DataType], bool], ...] = (
    _types.is_string,
    _types.is_large_string,
    _types.is_binary,
    _types.is_large_binary,
)
_FIXED: tuple[Callable[[pa.DataType], bool], ...] = (
    _types.is_boolean,
    _types.is_integer,
    _types.is_floating,
    _types.is_timestamp,
    _types.is_date32,
)


def key_hashes(columns: Sequence[pa.Array]) -> UInt64s:
    """Return the hash of each row's key, the same as ``encode_columns(columns).hashes()``.

    Text is what takes long to encode, so this looks for keys that repeat where there is some.

    Args:
        columns: of the key, in order; each of shape (n,).

    Raises:
        InvalidInputError: a value that cannot be a key.
    """
    found = _of_few(columns) if len(columns[0]) >= LEAST_ROWS else None
    return encode_columns(columns).hashes() if found is None else found


def _of_few(columns: Sequence[pa.Array]) -> UInt64s | None:
    """Hash each different key; ``None`` where there are many, or encoding is as quick."""
    if not any(_is_one_of(_RAGGED, column) for column in columns):
        return None
    if not all(_is_one_of(_RAGGED + _FIXED, column) for column in columns):
        return None
    rows = len(columns[0])
    sample = pa.array(np.arange(0, rows, rows // SAMPLE_ROWS))
    if any(len(column.take(sample).unique()) > SAMPLE_ROWS * 3 // 4 for column in columns):
        return None
    codes, dictionaries, size = np.zeros(rows, np.int64), [], 1
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        size *= len(coded.dictionary)
        if size > rows // 2:
            return None
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy()
        dictionaries.append(coded.dictionary)
    is_there = np.zeros(size, np.bool_)
    is_there[codes] = True
    left = present = np.flatnonzero(is_there)
    keys: list[pa.Array] = []
    for dictionary in reversed(dictionaries):
        left, own = np.divmod(left, len(dictionary))
        keys.append(dictionary.take(pa.array(own)))
    hashes = np.zeros(size, np.uint64)
    hashes[present] = encode_columns(keys[::-1]).hashes()
    found: UInt64s = hashes[codes]
    return found


def _is_one_of(kinds: Sequence[Callable[[pa.DataType], bool]], column: pa.Array) -> bool:
    return any(is_kind(column.type) for is_kind in kinds)
