"""Addresses of buses, as settings and commands give them."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.bus.file import FileBus
from headrace.bus.memory import MemoryBus
from headrace.bus.object_bus import ObjectBus
from headrace.bus.options import BusOptions
from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.objects import Address
from headrace.remote import is_remote, local_path


def open_bus(
    address: str | Path, settings: BusOptions | None = None, *, clock: Clock | None = None
) -> Bus:
    """Open the bus at an address.

    Args:
        address: ``file:PATH`` or a path for the file bus; ``s3://BUCKET/PREFIX`` for one in an
            object storage, or a path that stands for one; ``memory:`` for a new one in memory.
        settings: sizes and the sync policy.
        clock: for append times, deadlines and names.

    Raises:
        InvalidInputError: an address of an unknown kind.
    """
    if isinstance(address, Path):
        kind: type[FileBus | ObjectBus] = ObjectBus if is_remote(address) else FileBus
        return kind(address, settings, clock=clock)
    if "://" in address:
        return ObjectBus(local_path(Address.read(address), _cache()), settings, clock=clock)
    kind_name, colon, rest = address.partition(":")
    if not colon or "/" in kind_name:
        kind_name, rest = "file", address
    if kind_name == "memory" and not rest:
        return MemoryBus(settings, clock=clock)
    if kind_name == "file" and rest:
        return open_bus(Path(rest).expanduser(), settings, clock=clock)
    raise InvalidInputError(
        f"no bus at {address!r}; expected file:PATH, a path, s3://BUCKET/PREFIX, or memory:"
    )


def _cache() -> Path:
    """Return where this user's copies of objects are, for callers without settings."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
