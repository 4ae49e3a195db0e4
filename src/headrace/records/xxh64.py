"""XXH64 over many byte strings at once: rows of a matrix, or of differing lengths."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt8s = npt.NDArray[np.uint8]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1
_STRIPE = 32
_PIECE = 1 << 15
"""Rows hashed at a time, so that what a step reads is still in the processor's cache."""

_u = np.uint64


def xxh64_rows(rows: UInt8s, seed: int = 0) -> UInt64s:
    """Return XXH64 of each row of a matrix of bytes; shape (n, width) to (n,)."""
    if len(rows) <= _PIECE:
        return _hash_rows(rows, seed)
    pieces = [_hash_rows(rows[at : at + _PIECE], seed) for at in range(0, len(rows), _PIECE)]
    return np.concatenate(pieces)


def xxh64_ragged(data: UInt8s, starts: Int64s, lengths: Int64s, seed: int = 0) -> UInt64s:
    """Return XXH64 of each byte string ``data[start : start + length]``; shape (n,).

    Strings of one length are hashed together.
    """
    hashes = np.empty(len(starts), np.uint64)
    order = np.argsort(lengths, kind="stable")
    sizes, begins = np.unique(lengths[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)] if len(order) else []
    for size, begin, end in zip(sizes.tolist(), begins.tolist(), ends, strict=True):
        for at in range(begin, end, _PIECE):
            rows = order[at : min(at + _PIECE, end)]
            hashes[rows] = _hash_rows(data[starts[rows, None] + np.arange(size)], seed)
    return hashes


def _hash_rows(rows: UInt8s, seed: int) -> UInt64s:
    count, width = rows.shape
    rows = np.ascontiguousarray(rows)
    at = 0
    with np.errstate(over="ignore"):
        if width >= _STRIPE:
            state, at = _stripes(rows, seed)
        else:
            state = np.full(count, (seed + _P5) & _MASK, np.uint64)
        state += _u(width)
        while at + 8 <= width:
            state ^= _round(_lanes(rows, at, "<u8"), None)
            state = _rotate(state, 27) * _u(_P1) + _u(_P4)
            at += 8
        if at + 4 <= width:
            state ^= _lanes(rows, at, "<u4") * _u(_P1)
            state = _rotate(state, 23) * _u(_P2) + _u(_P3)
            at += 4
        while at < width:
            state ^= rows[:, at].astype(np.uint64) * _u(_P5)
            state = _rotate(state, 11) * _u(_P1)
            at += 1
        state = (state ^ (state >> _u(33))) * _u(_P2)
        state = (state ^ (state >> _u(29))) * _u(_P3)
        return state ^ (state >> _u(32))


def _stripes(rows: UInt8s, seed: int) -> tuple[UInt64s, int]:
    """Take in as many stripes of 32 bytes as there are; returns the state and where they end."""
    count, width = rows.shape
    begins = [(seed + lane) & _MASK for lane in (_P1 + _P2, _P2, 0, -_P1)]
    sums = [np.full(count, begin, np.uint64) for begin in begins]
    at = 0
    while at + _STRIPE <= width:
        for lane in range(4):
            sums[lane] = _round(_lanes(rows, at + 8 * lane, "<u8"), sums[lane])
        at += _STRIPE
    state = sum(
        (_rotate(own, bits) for own, bits in zip(sums[1:], (7, 12, 18), strict=True)),
        _rotate(sums[0], 1),
    )
    for own in sums:
        state = (state ^ _round(own, None)) * _u(_P1) + _u(_P4)
    return state, at


def _lanes(rows: UInt8s, at: int, kind: str) -> UInt64s:
    size = np.dtype(kind).itemsize
    lanes = np.ascontiguousarray(rows[:, at : at + size]).view(kind).ravel()
    return lanes.astype(np.uint64, copy=False)


def _round(lane: UInt64s, before: UInt64s | None) -> UInt64s:
    mixed = lane * _u(_P2)
    if before is not None:
        mixed += before
    return _rotate(mixed, 31) * _u(_P1)


def _rotate(values: UInt64s, bits: int) -> UInt64s:
    return (values << _u(bits)) | (values >> _u(64 - bits))
