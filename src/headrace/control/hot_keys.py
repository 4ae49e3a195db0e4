"""The heaviest keys of a job, of what its tasks told of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.control.figures import ToldKeys
from headrace.records.keys import decode_key

SHOWN = 10
FILE = "hot-keys.json"
"""Below the folder of samples."""

Plain = str | int | float | bool | None


@dataclass(frozen=True)
class HeavyKey:
    """One key: its values as JSON has them, about how many rows, and their share of all keys'."""

    key: tuple[Plain, ...]
    rows: float
    share: float


@dataclass(frozen=True)
class HeavyKeys:
    """The heaviest keys of one ``partition_by``, heaviest first.

    ``rows`` is about how many rows went through it lately, ``tasks`` how many told of it;
    ``too_low`` is the part of all rows by which a share may be too low.
    """

    operator: str
    columns: tuple[str, ...]
    rows: float
    too_low: float
    tasks: int
    at_ms: int
    keys: tuple[HeavyKey, ...]


def plain(value: Any) -> Plain:
    """Return a value of a key as JSON has it: times and bytes as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def heavy_keys(told: Iterable[ToldKeys], most: int = SHOWN) -> list[HeavyKeys]:
    """Put together what tasks told, operator by operator."""
    by_operator: dict[str, list[ToldKeys]] = {}
    for one in told:
        by_operator.setdefault(one.keys.operator, []).append(one)
    return [_joined(name, found, most) for name, found in sorted(by_operator.items())]


def _joined(operator: str, told: list[ToldKeys], most: int) -> HeavyKeys:
    rows = sum(one.keys.rows for one in told)
    sums: dict[bytes, float] = {}
    for one in told:
        for hot in one.keys.keys:
            sums[hot.key] = sums.get(hot.key, 0.0) + hot.rows
    heaviest = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:most]

    def share(count: float) -> float:
        return round(count / rows, 4) if rows else 0.0

    return HeavyKeys(
        operator,
        told[0].keys.columns,
        round(rows, 1),
        share(sum(one.keys.slack for one in told)),
        len(told),
        max(one.at_ms for one in told),
        tuple(
            HeavyKey(tuple(map(plain, decode_key(key))), round(count, 1), share(count))
            for key, count in heaviest
        ),
    )


def kept_keys(folder: Path) -> list[HeavyKeys]:
    """Return what a driver has kept of its heaviest keys; nothing where that cannot be read."""
    try:
        return _DECODER.decode((folder / FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return []


def keep_keys(folder: Path, found: list[HeavyKeys]) -> None:
    """Keep the heaviest keys where commands find them, in one step."""
    temporary = folder / f".{FILE}.tmp"
    temporary.write_bytes(msgspec.json.encode(found))
    os.replace(temporary, folder / FILE)


_DECODER = msgspec.json.Decoder(list[HeavyKeys])
