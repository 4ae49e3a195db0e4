"""The last row of each key of a stream, as somebody sees it who follows the stream to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bus.bus import Stream
from headrace.errors import InvalidInputError
from headrace.graph.windows import BOUNDS

Row = dict[str, Any]


@dataclass(frozen=True)
class Latest:
    """How many rows a stream has, and the last one of each key, by the key as text.

    Where all columns are the key, equal rows are told apart by their number.
    """

    count: int
    rows: dict[str, Row]


def key_columns(stream: Stream, shared: Sequence[str], wanted: Sequence[str] = ()) -> list[str]:
    """Return the columns that tell rows apart: the stream's key and the window, or all.

    Args:
        stream: whose key counts.
        shared: columns that may be chosen.
        wanted: the columns, where somebody says which.

    Raises:
        InvalidInputError: a column that is not among them.
    """
    unknown = [name for name in wanted if name not in shared]
    if unknown:
        raise InvalidInputError(
            f"column {unknown[0]!r} is not in both streams; expected some of {list(shared)}"
        )
    if wanted:
        return list(wanted)
    own = [name for name in stream.spec.key if name in shared]
    return [*own, *(name for name in BOUNDS if name in shared and name not in own)] or list(shared)


def latest_rows(stream: Stream, columns: Sequence[str], keys: Sequence[str]) -> Latest:
    """Read a stream to its end; holds a row for each key in memory.

    Args:
        stream: to read.
        columns: of the rows.
        keys: among these.
    """
    count, rows, seen = 0, {}, Counter[str]()
    is_all = len(keys) == len(columns)
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin, columns=list(columns)):
            for row in part.batch.to_pylist():
                count += 1
                # As text, NaN is equal to itself, and lists can be keys.
                name = repr([row[key] for key in keys])
                seen[name] += is_all
                rows[f"{name}/{seen[name]}" if is_all else name] = row
    return Latest(count, rows)
