"""Compares what two jobs have sent: rows, keys, and where the last row of a key differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bus.bus import Bus, Stream
from headrace.errors import InvalidInputError
from headrace.graph.windows import BOUNDS


@dataclass(frozen=True)
class Compared:
    """Two streams, the second one's after the first's in each pair.

    Args:
        operator: that both come from.
        streams: their names.
        key: columns by which the last row counts.
        rows: of each.
        keys: of each.
        only: keys that are in one alone.
        different: keys whose last rows differ.
        same: keys whose last rows are equal.
        columns: those that are in one alone, which are not compared.
        examples: of keys that are in one alone or differ: ``key``, ``first`` and ``second``.
    """

    operator: str
    streams: tuple[str, str]
    key: tuple[str, ...]
    rows: tuple[int, int]
    keys: tuple[int, int]
    only: tuple[int, int]
    different: int
    same: int
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    examples: list[dict[str, Any]]

    @property
    def is_same(self) -> bool:
        """Say whether no key differs."""
        return not (self.different or any(self.only))


def compare(
    bus: Bus, operator: str, streams: tuple[str, str], key: Sequence[str] = (), examples: int = 5
) -> Compared:
    """Compare two streams; holds the last row of each key of both in memory.

    Args:
        bus: with the streams.
        operator: that they come from.
        streams: their names.
        key: columns that say which rows are of one thing; by default the key of the first stream
            and the window, or all columns where it has no key.
        examples: so many keys that differ are told.

    Raises:
        InvalidInputError: a column that is not in both.
    """
    first, second = (bus.stream(name) for name in streams)
    names = [one.spec.schema.names for one in (first, second)]
    shared = [name for name in names[0] if name in names[1]]
    keys = _keys(first, shared, key)
    held, others = _last(first, shared, keys), _last(second, shared, keys)
    lacking = [name for name in held.rows if name not in others.rows]
    new = [name for name in others.rows if name not in held.rows]
    both = [name for name in held.rows if name in others.rows]
    differ = [name for name in both if repr(held.rows[name]) != repr(others.rows[name])]
    shown = [*differ, *lacking, *new][:examples]
    return Compared(
        operator,
        streams,
        tuple(keys),
        (held.count, others.count),
        (len(held.rows), len(others.rows)),
        (len(lacking), len(new)),
        len(differ),
        len(both) - len(differ),
        tuple(tuple(n for n in own if n not in shared) for own in names),  # type: ignore[arg-type]
        [
            {
                "key": dict(zip(keys, _key_of(held, others, name, keys), strict=True)),
                "first": held.rows.get(name),
                "second": others.rows.get(name),
            }
            for name in shown
        ],
    )


@dataclass(frozen=True)
class _Last:
    """How many rows there are, and the last one of each key.

    Where all columns are the key, equal rows are told apart by their number.
    """

    count: int
    rows: dict[str, dict[str, Any]]


def _keys(first: Stream, shared: Sequence[str], wanted: Sequence[str]) -> list[str]:
    unknown = [name for name in wanted if name not in shared]
    if unknown:
        raise InvalidInputError(
            f"column {unknown[0]!r} is not in both streams; expected some of {list(shared)}"
        )
    if wanted:
        return list(wanted)
    own = [name for name in first.spec.key if name in shared]
    return [*own, *(name for name in BOUNDS if name in shared and name not in own)] or list(shared)


def _last(stream: Stream, shared: Sequence[str], keys: Sequence[str]) -> _Last:
    count, rows, seen = 0, {}, Counter[str]()
    is_all = len(keys) == len(shared)
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin, columns=list(shared)):
            for row in part.batch.to_pylist():
                count += 1
                # As text, NaN is equal to itself, and lists can be keys.
                name = repr([row[key] for key in keys])
                seen[name] += is_all
                rows[f"{name}/{seen[name]}" if is_all else name] = row
    return _Last(count, rows)


def _key_of(held: _Last, others: _Last, name: str, keys: Sequence[str]) -> list[Any]:
    row = held.rows.get(name) or others.rows[name]
    return [row[key] for key in keys]
