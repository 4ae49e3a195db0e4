"""Whether all keys of a column are of the same kinds, mostly without looking at each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.records.key_values import BOOL, FLOAT, STRING
from headrace.records.keys import decode_key

_GROUP_BYTES = 2
_FIXED_BYTES = 9
"""A tag and eight bytes: integers, dates, timestamps and floats."""


def are_alike(keys: pa.BinaryArray, first: bytes) -> bool:
    """Say whether the full keys of a column have the kinds of values that another one has.

    Args:
        keys: at least one.
        first: a full key.
    """
    _, offsets, data = keys.buffers()
    cuts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content = np.frombuffer(data, np.uint8)
    if _is_quickly_alike(content, cuts, first):
        return True
    kinds = _kinds(first)
    return all(_kinds(key) == kinds for key in keys.to_pylist())


def _kinds(key: bytes) -> list[type]:
    return [type(value) for value in decode_key(key[_GROUP_BYTES:])]


def _is_quickly_alike(
    content: npt.NDArray[np.uint8], cuts: npt.NDArray[np.int32], first: bytes
) -> bool:
    begins = cuts[:-1].astype(np.int64) + _GROUP_BYTES
    if first[_GROUP_BYTES] == STRING and _is_one_text(first):
        return bool((content[begins] == STRING).all()) and _are_one_text(content, cuts)
    tags = _tags(first)
    if tags is None or not (np.diff(cuts) == len(first)).all():
        return False
    return all(bool((content[begins + at] == tag).all()) for at, tag in tags)


def _tags(key: bytes) -> list[tuple[int, int]] | None:
    """The places of the tags after the key group, where all values are of fixed width."""
    found = []
    at = 0
    while at < len(key) - _GROUP_BYTES:
        tag = key[_GROUP_BYTES + at]
        if not BOOL < tag <= FLOAT:
            return None
        found.append((at, tag))
        at += _FIXED_BYTES
    return found


def _is_one_text(key: bytes) -> bool:
    return key.find(b"\0\0", _GROUP_BYTES + 1) == len(key) - 2


def _are_one_text(content: npt.NDArray[np.uint8], cuts: npt.NDArray[np.int32]) -> bool:
    """Say whether each key ends with the first mark of an end in it: two bytes of 0."""
    begin, end = int(cuts[0]), int(cuts[-1])
    zeros = content[begin:end] == 0
    marks = np.flatnonzero(zeros[:-1] & zeros[1:]) + begin
    owner = np.searchsorted(cuts, marks, side="right") - 1
    within = (marks >= cuts[owner] + _GROUP_BYTES + 1) & (marks + 2 <= cuts[owner + 1])
    marks, owner = marks[within], owner[within]
    is_last = marks + 2 == cuts[owner + 1]
    return len(marks) == len(cuts) - 1 and bool(is_last.all())
