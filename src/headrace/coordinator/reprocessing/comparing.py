"""Compares what two jobs have sent: rows, keys, and where the last row of a key differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bus.bus import Bus
from headrace.coordinator.reprocessing.latest import Latest, key_columns, latest_rows


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
    keys = key_columns(first, shared, key)
    held, others = (latest_rows(one, shared, keys) for one in (first, second))
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


def _key_of(held: Latest, others: Latest, name: str, keys: Sequence[str]) -> list[Any]:
    row = held.rows.get(name) or others.rows[name]
    return [row[key] for key in keys]
