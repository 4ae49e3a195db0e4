"""Keys: one canonical encoding, and the stable hash that places them.

``key_values`` encodes one key, ``key_columns`` those of a batch. The hash is XXH64 (seed 0)
of the encoding. A key group is its upper 32 bits scaled to the number of groups: a range of
hashes, so that any task count cuts groups into ranges.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_intdigest

from headrace.records.hashing import UInt64s, xxh64_rows
from headrace.records.key_columns import EncodedKeys, encode_columns
from headrace.records.key_values import decode_key, encode_key, encode_value

Int32s = npt.NDArray[np.int32]
Hashes = TypeVar("Hashes", int, UInt64s)

__all__ = [
    "EncodedKeys",
    "UInt64s",
    "decode_key",
    "encode_columns",
    "encode_key",
    "encode_value",
    "group_range",
    "hash_key",
    "hash_within",
    "key_group",
    "key_groups",
    "xxh64_rows",
]


def hash_key(key: bytes) -> int:
    """Return XXH64 of one encoded key."""
    return xxh64_intdigest(key)


def key_group(key: bytes, groups: int) -> int:
    """Return the key group of one encoded key, from 0 to ``groups`` - 1."""
    return (xxh64_intdigest(key) >> 32) * groups >> 32


def key_groups(hashes: UInt64s, groups: int) -> Int32s:
    """Return the key group of each hash; shape (n,)."""
    return ((hashes >> np.uint64(32)) * np.uint64(groups) >> np.uint64(32)).astype(np.int32)


def hash_within(key: Hashes, whole: Hashes) -> Hashes:
    """Return the hash of what is kept under a key: in the key's group, yet of its own.

    Args:
        key: hash of the key, or of each key.
        whole: hash of the key and what tells apart what is kept under it.
    """
    low = 0xFFFFFFFF
    placed: Hashes = (key - (key & low)) | (whole & low)
    return placed


def group_range(task: int, tasks: int, groups: int) -> tuple[int, int]:
    """Return the first key group of a task and the one after its last."""
    return task * groups // tasks, (task + 1) * groups // tasks
