"""Which committed state a store holds, and which one it is asked to reach.

A position names one manifest. Two stores with equal positions hold equal data; a store
whose position is not on the chain of manifests is thrown away, never repaired.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.state.ownership import Owner


class Position(NamedTuple):
    """One committed manifest: its lineage, its epoch, and the digest of its bytes."""

    lineage: str
    epoch: int
    digest: str


class Target(NamedTuple):
    """The position to reach.

    ``attempt`` is the attempt whose changes of this task were committed in that epoch, or
    ``None`` when the task changed nothing in it. A worker that still holds the changes of
    that very attempt applies them from memory. ``shape`` changes whenever a merge took
    effect: the same state then lies in other files. ``owner`` is for whom stores are opened.
    """

    position: Position
    attempt: str | None = None
    shape: int = 0
    owner: Owner | None = None


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(tuple[str, Position])


def encode_position(scope: str, position: Position) -> bytes:
    """Return the bytes that a store keeps beside its data."""
    return _encode((scope, position))


def decode_position(data: bytes) -> tuple[str, Position]:
    """Return the scope and the position of what ``encode_position`` wrote.

    Raises:
        msgspec.DecodeError: the bytes are something else.
    """
    return _decoder.decode(data)
