"""The columns of a stream on disk: immutable Parquet files whose names say what they hold.

``FIRST-LAST.parquet`` has the commits from FIRST to LAST. A commit is one new file: its footer has
the rows, and the next offset of each partition, so rows and offsets become visible in one step. A
merged file takes the place of those whose commits it has, which a reader leaves out and a writer
removes. Files are published by linking: of two writers of one commit, one wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.clock import Clock
from headrace.errors import CorruptDataError, NotOwnerError
from headrace.files import Files

TIME, PARTITION, OFFSET, RATE = OWN = ("_time", "_partition", "_offset", "_sample_rate")
"""Columns of every row: time in ms, where it is in the stream, how many rows it stands for."""

OWN_TYPES = (pa.int64(), pa.int32(), pa.int64(), pa.int32())
GRACE_MS = 60_000
"""How long a file that is replaced stays, for queries that have begun."""

MERGED_FILES = 8
MERGED_ROWS = 4_000_000
ROW_GROUP = 122_880
COMPRESSION = "lz4"
LOOKED_AT = 8_192
MOST_DISTINCT = 0.5
"""Of so many rows, so many values may be distinct in a column that is written with a dictionary."""

_NAME = re.compile(r"(\d{12})-(\d{12})\.parquet")
_KEY = b"headrace.explore"


class SegmentFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the footer of a file says.

    ``weight`` is the number of rows that its rows stand for; ``skipped`` counts rows of the stream
    that could not be read, and ``lost`` those that its retention removed before they were.
    """

    identity: str
    offsets: dict[int, int]
    rows: int
    weight: int
    least_rate: int
    greatest_rate: int
    first_ms: int | None
    last_ms: int | None
    read_ms: int
    skipped: int = 0
    lost: int = 0


class Segment(msgspec.Struct, frozen=True):
    """One file that is there."""

    path: Path
    first: int
    last: int
    bytes: int
    facts: SegmentFacts
    schema: pa.Schema

    def is_older(self, than_ms: int) -> bool:
        """Say whether all its rows are older than a moment, by their time and by when they came."""
        return max(self.facts.last_ms or 0, self.facts.read_ms) < than_ms

    def is_within(self, from_ms: int, to_ms: int) -> bool:
        """Say whether all its rows are of a time, from one moment to before another."""
        first, last = self.facts.first_ms, self.facts.last_ms
        return first is not None and last is not None and first >= from_ms and last < to_ms


def file_name(first: int, last: int) -> str:
    """Return the name of the file with some commits."""
    return f"{first:012d}-{last:012d}.parquet"


class SegmentFolder:
    """The files of one stream; one thread writes, any number of processes read.

    Args:
        folder: of the stream.
        files: the file system.
        clock: for the age of files that were replaced.
    """

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self.folder, self._files, self._clock = folder, files, clock
        self._known: dict[str, Segment] = {}
        self._dying: dict[str, int] = {}
        self.damaged: dict[str, str] = {}
        """Files whose footer cannot be read, and why; queries leave them out."""

    def refresh(self) -> tuple[Segment, ...]:
        """Return the files that count now, in the order of their commits."""
        found = [
            (int(matched[1]), -int(matched[2]), name)
            for name in self._files.names(self.folder)
            if (matched := _NAME.fullmatch(name)) is not None
        ]
        kept, upto = [], -1
        for first, last, name in sorted(found):
            if -last <= upto:  # a merged file has its commits
                continue
            segment = self._segment(name, first, -last)
            if segment is not None:
                kept.append(segment)
                upto = -last
        names = {one.path.name for one in kept} | {name for _, _, name in found}
        self._known = {name: one for name, one in self._known.items() if name in names}
        return tuple(one for one in kept if one.path.name not in self._dying)

    def _segment(self, name: str, first: int, last: int) -> Segment | None:
        known = self._known.get(name)
        if known is None and name not in self.damaged:
            path = self.folder / name
            try:
                known = self._known[name] = _read(path, first, last)
            except FileNotFoundError:
                return None
            except (CorruptDataError, OSError) as error:
                self.damaged[name] = str(error)
        return known

    def commit(self, number: int, rows: pa.Table, facts: SegmentFacts) -> Segment:
        """Publish rows together with how far the stream has been read.

        Raises:
            NotOwnerError: another process has written this commit.
            OSError: of the disk; nothing was committed.
        """
        return self._publish(number, number, rows, facts)

    def _publish(self, first: int, last: int, rows: pa.Table, facts: SegmentFacts) -> Segment:
        path = self.folder / file_name(first, last)
        sink = pa.BufferOutputStream()
        table = rows.replace_schema_metadata({_KEY: msgspec.json.encode(facts)})
        rising = dict.fromkeys((TIME, OFFSET), "DELTA_BINARY_PACKED")
        pq.write_table(
            table,
            sink,
            compression=COMPRESSION,
            row_group_size=ROW_GROUP,
            use_dictionary=[name for name in repeating(table) if name not in rising],
            column_encoding=rising,
        )
        self._files.make_folder(self.folder, 0o700)
        if not self._files.publish(path, memoryview(sink.getvalue())):  # type: ignore[arg-type]
            raise NotOwnerError(
                f"file {path} was written by another process; one process tails the streams of a "
                "home: this one stops"
            )
        made = _read(path, first, last)
        self._known[path.name] = made
        return made

    def merge(self, parts: Sequence[Segment]) -> Segment:
        """Publish one file in the place of adjacent ones; these are removed after a while."""
        tables = [pq.read_table(one.path) for one in parts if one.facts.rows]
        rows = pa.concat_tables(
            [one.replace_schema_metadata(None) for one in tables] or [_no_rows()],
            promote_options="permissive",
        )
        merged = self._publish(
            parts[0].first, parts[-1].last, _by_time(rows), _joined([p.facts for p in parts])
        )
        self.remove(parts)
        return merged

    def remove(self, segments: Iterable[Segment]) -> None:
        """Drop files: queries that begin from now on do not see them."""
        now = self._clock.now_ms()
        for one in segments:
            self._dying.setdefault(one.path.name, now)

    def sweep(self, grace_ms: int = GRACE_MS) -> None:
        """Remove the files that were replaced or dropped a while ago."""
        now = self._clock.now_ms()
        for name in [n for n, at in self._dying.items() if now - at >= grace_ms]:
            self._files.remove(self.folder / name)
            del self._dying[name]

    def clean(self) -> None:
        """Remove what a writer has left that died: merged parts and files under temporary names."""
        live = {one.path.name for one in self.refresh()} | set(self.damaged)
        with suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                is_old = _NAME.fullmatch(path.name) and path.name not in live
                if is_old or path.name.endswith(".tmp"):
                    self._files.remove(path)


def mergeable(segments: Sequence[Segment], most_span_ms: int) -> Sequence[Segment]:
    """Return adjacent files to merge: the first run of as many of one size; empty: there is none.

    Args:
        segments: in the order of their commits.
        most_span_ms: a file holds rows that came within this time, so that retention by age
            removes few rows too late.
    """
    for begin in range(len(segments) - MERGED_FILES + 1):
        run = segments[begin : begin + MERGED_FILES]
        rows = [one.facts.rows for one in run]
        if sum(rows) > MERGED_ROWS or max(rows) > max(1, sum(rows) // 2):
            continue
        if not fit_together([one.schema for one in run]):
            continue  # a column has another type since
        if run[-1].facts.read_ms - run[0].facts.read_ms <= most_span_ms:
            return run
    return ()


def fit_together(schemas: Sequence[pa.Schema]) -> bool:
    """Say whether columns of the same names have types that one type can hold."""
    first = schemas[0]
    if all(one.equals(first) for one in schemas[1:]):
        return True
    try:
        pa.unify_schemas(list(schemas), promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def repeating(table: pa.Table) -> list[str]:
    """Return the columns whose values repeat: a dictionary of others is work, and is not kept."""
    middle = max(0, (table.num_rows - LOOKED_AT) // 2)
    some = table.slice(middle, LOOKED_AT)
    found = []
    for name, column in zip(some.column_names, some.columns, strict=True):
        is_simple = not (pa.types.is_nested(column.type) or pa.types.is_null(column.type))
        if is_simple and pc.count_distinct(column).as_py() > MOST_DISTINCT * some.num_rows:
            continue
        found.append(name)
    return found


def _by_time(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their times, which many streams have already."""
    times = rows.column(TIME).to_numpy()
    return rows if bool(np.all(times[1:] >= times[:-1])) else rows.sort_by(TIME)


def _joined(facts: Sequence[SegmentFacts]) -> SegmentFacts:
    begins = [one.first_ms for one in facts if one.first_ms is not None]
    ends = [one.last_ms for one in facts if one.last_ms is not None]
    held = [one for one in facts if one.rows]
    return SegmentFacts(
        facts[-1].identity,
        facts[-1].offsets,
        sum(one.rows for one in facts),
        sum(one.weight for one in facts),
        min((one.least_rate for one in held), default=1),
        max((one.greatest_rate for one in held), default=1),
        min(begins, default=None),
        max(ends, default=None),
        facts[-1].read_ms,
        sum(one.skipped for one in facts),
        sum(one.lost for one in facts),
    )


def _no_rows() -> pa.Table:
    return pa.schema(list(zip(OWN, OWN_TYPES, strict=True))).empty_table()


def _read(path: Path, first: int, last: int) -> Segment:
    """Return what a file is, by its footer."""
    size = path.stat().st_size
    try:
        schema = pq.read_schema(path)
        facts = msgspec.json.decode((schema.metadata or {})[_KEY], type=SegmentFacts)
    except (pa.ArrowInvalid, KeyError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"file {path} has no footer of a segment: {error}") from error
    return Segment(path, first, last, size, facts, schema.remove_metadata())
