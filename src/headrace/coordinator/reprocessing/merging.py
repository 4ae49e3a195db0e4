"""Brings results of a run over old data into those of the live job: for each key, one wins.

Called while the live job appends nothing. Each partition gets its rows in one append, under the
run of the other job, so it gets them once, however often somebody asks and dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.spec import Producer
from headrace.coordinator.reprocessing.latest import Row, key_columns, latest_rows
from headrace.errors import InvalidInputError
from headrace.faults import fault

Merge = Callable[[Row | None, Row], Row | None]
"""Given the live row of a key, ``None`` where there is none, and the other one: what is to follow
in the live stream; ``None`` for nothing."""


@dataclass(frozen=True)
class Merged:
    """What became of one output.

    Args:
        operator: that both streams come from.
        stream: the live one.
        appended: rows that it got.
        there: rows that it had got before, by the same run.
        kept: keys for which the live rows stay.
    """

    operator: str
    stream: str
    appended: int
    there: int
    kept: int


def live_wins(live: Row | None, other: Row) -> Row | None:
    """Take what the live job has nothing of."""
    return other if live is None else None


def merge_streams(
    bus: Bus,
    operator: str,
    streams: tuple[str, str],
    run: str,
    merge: Merge = live_wins,
    key: Sequence[str] = (),
) -> Merged:
    """Merge the last rows of one stream into another.

    Args:
        bus: with the streams.
        operator: that they come from.
        streams: the live one, and the other.
        run: a name of the other one's run that no other run has.
        merge: chooses for a key.
        key: columns that say which rows are of one thing; by default the key of the live stream
            and the window.

    Raises:
        InvalidInputError: nothing tells rows apart, or ``merge`` fails or makes rows that do not
            fit; nothing is appended.
    """
    live, other = (bus.stream(name) for name in streams)
    columns = live.spec.schema.names
    shared = [name for name in columns if name in other.spec.schema.names]
    keys = key_columns(live, shared, key)
    if len(keys) == len(shared):
        raise InvalidInputError(
            f"stream {streams[0]!r} has no key, so nothing says which rows are of one thing; give "
            "--key COLUMN,...",
            stream=streams[0],
        )
    held = latest_rows(live, columns, keys).rows
    found = latest_rows(other, shared, keys).rows
    made = [_merged(merge, held.get(name), row, operator) for name, row in found.items()]
    rows = [row for row in made if row is not None]
    try:
        table = pa.Table.from_pylist(rows, schema=live.spec.schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(
            f"what merge returns does not fit the columns of {streams[0]!r}: {error}"
        ) from error
    producer = Producer(f"merge/{operator}", run)
    appended = there = 0
    for answer in live.append_rows(table, producer=producer, sequence=1).values():
        rows_of_it = answer.next_offset - answer.first_offset
        appended += 0 if answer.duplicate else rows_of_it
        there += rows_of_it if answer.duplicate else 0
        fault("merge.appended")
    return Merged(operator, streams[0], appended, there, len(made) - len(rows))


def _merged(merge: Merge, live: Row | None, other: Row, operator: str) -> Row | None:
    try:
        row = merge(live, other)
    except Exception as error:
        raise InvalidInputError(
            f"merge raised {type(error).__name__}: {error}, for output {operator!r}, live "
            f"{live}, other {other}"
        ) from error
    if row is not None and not isinstance(row, dict):
        raise InvalidInputError(
            f"merge returned {row!r} for output {operator!r}; expected a dict of columns, or None"
        )
    return row
