"""Addresses of buses, as settings and commands give them."""

from __future__ import annotations

from pathlib import Path

from headrace.bus.bus import Bus
from headrace.bus.file import FileBus
from headrace.bus.memory import MemoryBus
from headrace.bus.options import BusOptions
from headrace.clock import Clock
from headrace.errors import InvalidInputError


def open_bus(
    address: str | Path, settings: BusOptions | None = None, *, clock: Clock | None = None
) -> Bus:
    """Open the bus at an address.

    Args:
        address: ``file:PATH`` or a path for the file bus; ``memory:`` for a new one in memory.
        settings: sizes and the sync policy.
        clock: for append times, deadlines and names.

    Raises:
        InvalidInputError: an address of an unknown kind.
    """
    if isinstance(address, Path):
        return FileBus(address, settings, clock=clock)
    kind, colon, rest = address.partition(":")
    if not colon or "/" in kind:
        kind, rest = "file", address
    if kind == "memory" and not rest:
        return MemoryBus(settings, clock=clock)
    if kind == "file" and rest:
        return FileBus(Path(rest).expanduser(), settings, clock=clock)
    raise InvalidInputError(f"no bus at {address!r}; expected file:PATH, a path, or memory:")
