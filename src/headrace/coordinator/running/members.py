"""The processes that share a job, as its driver has written them down."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

MEMBERS = "members.json"


class MemberInfo(msgspec.Struct, frozen=True):
    """A process of a shared job; ``host_id`` is the identity of its state directory."""

    host_id: str
    host: str
    process: int
    slots: int
    drives: bool


def read_members(storage: Path) -> list[MemberInfo]:
    """Return the processes that were in last; none where no job is shared."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((storage / MEMBERS).read_bytes(), type=list[MemberInfo])
    return []
