"""Compares what two jobs have sent: rows, keys, and where the last row of a key differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bus.bus import Bus
from headrace.coordinator.reprocessing.latest import key_columns, last_rows
from headrace.coordinator.reprocessing.parted import Parted, Row, part_count


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


@dataclass
class _Tally:
    """What was counted so far of two streams; ``shown`` keys of each kind, with their rows."""

    keys: Sequence[str]
    most: int
    rows: list[int] = field(default_factory=lambda: [0, 0])
    held: list[int] = field(default_factory=lambda: [0, 0])
    only: list[int] = field(default_factory=lambda: [0, 0])
    different: int = 0
    same: int = 0
    shown: tuple[list[dict[str, Any]], ...] = field(default_factory=lambda: ([], [], []))

    def add(self, first: dict[str, Row], second: dict[str, Row]) -> None:
        """Count the last rows of some keys, all that both streams have of them."""
        lacking = [name for name in first if name not in second]
        new = [name for name in second if name not in first]
        both = [name for name in first if name in second]
        differ = [name for name in both if repr(first[name]) != repr(second[name])]
        for at, rows in enumerate((first, second)):
            self.held[at] += len(rows)
        self.only[0] += len(lacking)
        self.only[1] += len(new)
        self.different += len(differ)
        self.same += len(both) - len(differ)
        for shown, names in zip(self.shown, (differ, lacking, new), strict=True):
            for name in names[: self.most - len(shown)]:
                row = first.get(name) or second[name]
                key = {column: row[column] for column in self.keys}
                told = {"key": key, "first": first.get(name), "second": second.get(name)}
                shown.append(told)

    @property
    def examples(self) -> list[dict[str, Any]]:
        """Keys that differ, then those that the second stream lacks, then those it has more."""
        return [one for shown in self.shown for one in shown][: self.most]


def compare(
    bus: Bus, operator: str, streams: tuple[str, str], key: Sequence[str] = (), examples: int = 5
) -> Compared:
    """Compare two streams; holds the last rows of a part of the keys in memory.

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
    is_all = len(keys) == len(shared)
    parts = max(part_count(first), part_count(second))
    tally = _Tally(keys, examples)
    with Parted(first, shared, keys, parts) as left, Parted(second, shared, keys, parts) as right:
        for part in range(parts):
            found = [last_rows(one, part, is_all=is_all) for one in (left, right)]
            for at, (count, _) in enumerate(found):
                tally.rows[at] += count
            tally.add(found[0][1], found[1][1])
    return Compared(
        operator,
        streams,
        tuple(keys),
        (tally.rows[0], tally.rows[1]),
        (tally.held[0], tally.held[1]),
        (tally.only[0], tally.only[1]),
        tally.different,
        tally.same,
        tuple(tuple(n for n in own if n not in shared) for own in names),  # type: ignore[arg-type]
        tally.examples,
    )
