"""The last row of each key of a stream, as somebody sees it who follows the stream to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.bus.bus import Stream
from headrace.coordinator.reprocessing.parted import Parted, Row
from headrace.errors import InvalidInputError
from headrace.graph.windows import BOUNDS


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


def last_rows(rows: Parted, part: int, *, is_all: bool = False) -> tuple[int, dict[str, Row]]:
    """Return how many rows a part has, and the last one of each key, by the key as text.

    Args:
        rows: of a stream.
        part: held in memory.
        is_all: all columns are the key; then equal rows are told apart by their number.
    """
    count, found, seen = 0, dict[str, Row](), Counter[str]()
    for _, batch, names in rows.read(part):
        count += len(names)
        for name, row in zip(names, batch.to_pylist(), strict=True):
            seen[name] += is_all
            found[f"{name}/{seen[name]}" if is_all else name] = row
    return count, found
