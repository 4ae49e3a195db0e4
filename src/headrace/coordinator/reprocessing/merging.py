"""Brings results of a run over old data into those of the live job: for each key, one wins.

Called while the live job appends nothing. Each partition gets the rows of a part of the keys in one
append, under the run of the other job, so it gets them once, however often somebody asks and dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import Producer
from headrace.closing import Closing
from headrace.coordinator.reprocessing.latest import key_columns
from headrace.coordinator.reprocessing.parted import Parted, Row, Spill, part_count
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


def choose(
    bus: Bus,
    operator: str,
    streams: tuple[str, str],
    run: str,
    merge: Merge = live_wins,
    key: Sequence[str] = (),
    *,
    parts: int | None = None,
    is_alike: bool = False,
) -> Chosen:
    """Choose what the last rows of one stream become in another, a part of the keys at a time.

    A part is one append to each partition that has rows of it, and sequences are numbers of parts:
    so ``parts`` must be the same when a merge is asked for again.

    Args:
        bus: with the streams.
        operator: that they come from.
        streams: the live one, and the other.
        run: a name of the other one's run that no other run has.
        merge: chooses for a key.
        key: columns that say which rows are of one thing; by default the key of the live stream
            and the window.
        parts: how many; ``None``: by the size of the other stream.
        is_alike: both jobs send a key to the same partition, although streams have no key.

    Raises:
        InvalidInputError: nothing tells rows apart, or where they belong, or ``merge`` fails or
            makes rows that do not fit.
    """
    live, other = (bus.stream(name) for name in streams)
    columns = live.spec.schema.names
    shared = [name for name in columns if name in other.spec.schema.names]
    keys = _keys(live, shared, key)
    parts = part_count(other) if parts is None else parts
    finder = PlaceFinder(live, other, is_alike=is_alike)
    chosen = Chosen(live, parts, Producer(f"merge/{operator}", run), operator)
    try:
        with (
            Parted(other, shared, keys, parts) as others,
            Parted(live, columns, keys, parts) as lives,
        ):
            for part in range(parts):
                found = Meeting(part, others, lives)
                rows: dict[int, list[Row]] = {}
                for name, row in found.old.items():
                    new = chosen_row(merge, found.live.get(name), row, operator)
                    if new is not None:
                        rows.setdefault(finder.place(name, found), []).append(new)
                chosen.add(part, rows, len(found.old))
    except BaseException:
        chosen.close()
        raise
    return chosen


class Chosen(Closing):
    """Rows that are to follow those of a live stream; none is appended until that is said.

    Args:
        live: the stream.
        parts: in how many keys are handled.
        producer: that appends.
        operator: that the rows come from.
    """

    def __init__(self, live: Stream, parts: int, producer: Producer, operator: str) -> None:
        self._live, self._parts, self._producer = live, parts, producer
        self._operator, self._spill = operator, Spill()
        self._met = 0
        self.rows = 0

    def add(self, part: int, rows: Mapping[int, Sequence[Row]], met: int) -> None:
        """Take the rows of a part by partition, of so many keys that were asked for."""
        for partition, some in sorted(rows.items()):
            schema, name = self._live.spec.schema, f"{self._live.spec.name!r}"
            self._spill.write(fitting(some, schema, name), partition, part)
            self.rows += len(some)
        self._met += met

    def append(self) -> Merged:
        """Append them; what was appended by a try before is not there twice."""
        live, came, there = self._live, 0, 0
        for part in range(self._parts):
            for partition, rows in self._spill.read(part):
                if live.spec.key:
                    given = live.append_rows(rows, producer=self._producer, sequence=part + 1)
                    answers = list(given.values())
                else:
                    answers = [
                        live.append(partition, rows, producer=self._producer, sequence=part + 1)
                    ]
                for answer in answers:
                    count = answer.next_offset - answer.first_offset
                    came, there = (
                        (came, there + count) if answer.duplicate else (came + count, there)
                    )
                    fault("merge.appended")
        return Merged(self._operator, live.spec.name, came, there, self._met - self.rows)

    def close(self) -> None:
        """Let them go."""
        self._spill.close()


def _keys(live: Stream, shared: Sequence[str], wanted: Sequence[str]) -> list[str]:
    keys = key_columns(live, shared, wanted)
    if len(keys) == len(shared):
        name = live.spec.name
        raise InvalidInputError(
            f"stream {name!r} has no key, so nothing says which rows are of one thing; give --key "
            "COLUMN,...",
            stream=name,
        )
    return keys


class Meeting:
    """The last rows of a part of the keys in both streams, and where rows of each key lie.

    Args:
        part: of the keys.
        others: rows of the other stream.
        lives: rows of the live one; of keys that the other has not, none is held.
    """

    def __init__(self, part: int, others: Parted, lives: Parted) -> None:
        self.old: dict[str, Row] = {}
        self.live: dict[str, Row] = {}
        self.places: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
        for partition, batch, names in others.read(part):
            for name, row in zip(names, batch.to_pylist(), strict=True):
                self.old[name] = row
                self.places[1].setdefault(name, set()).add(partition)
        for partition, batch, names in lives.read(part):
            wanted = [at for at, name in enumerate(names) if name in self.old]
            rows = batch.take(pa.array(wanted, pa.int64())).to_pylist()
            for at, row in zip(wanted, rows, strict=True):
                self.live[names[at]] = row
                self.places[0].setdefault(names[at], set()).add(partition)


class PlaceFinder:
    """Says to which partition of the live stream a row belongs: where those of its key lie.

    Args:
        live: the stream.
        other: that of the run over old data.
        is_alike: both jobs send a key to the same partition, where there are as many.
    """

    def __init__(self, live: Stream, other: Stream, *, is_alike: bool) -> None:
        self._name, self._is_any = live.spec.name, bool(live.spec.key) or live.spec.partitions == 1
        counts = [one.settings.counts(one.created.partitions)[0] for one in (live, other)]
        self._is_alike = is_alike and counts[0] == counts[1]

    def place(self, name: str, found: Meeting) -> int:
        """Return the partition of a key; 0 where the bus knows.

        Raises:
            InvalidInputError: that cannot be known.
        """
        if self._is_any:
            return 0
        lives, others = (held.get(name, set()) for held in found.places)
        if not lives and self._is_alike and len(others) == 1:
            return next(iter(others))
        if len(lives) == 1:
            return next(iter(lives))
        why = (
            f"rows of key {name} lie in its partitions {sorted(lives)}, so none is the last"
            if lives
            else f"it has no row of key {name} yet, and nothing says to which of its partitions "
            "the live job will send one"
        )
        raise InvalidInputError(
            f"stream {self._name!r} has no key of its own, and {why}; let the job keep the columns "
            "that it is partitioned by, which a new stream has for its key, or send to one "
            "partition (partitions=1)",
            stream=self._name,
        )


def fitting(rows: Sequence[Row], schema: pa.Schema, name: str) -> pa.Table:
    """Return chosen rows as a table of some columns; ``name`` says whose they are.

    Raises:
        InvalidInputError: they do not fit.
    """
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(
            f"what merge returns does not fit the columns of {name}: {error}"
        ) from error


def chosen_row(merge: Merge, live: Row | None, other: Row, operator: str) -> Row | None:
    """Return what a function makes of the rows of a key.

    Raises:
        InvalidInputError: it fails, or makes what is no row.
    """
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
