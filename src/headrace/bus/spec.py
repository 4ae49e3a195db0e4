"""What a stream is: its specification, its schema versions, and what appends and reads return.

Plain frozen data, the same for every bus. A frame carries the number of the schema that it was
written in, so nothing that was appended is ever rewritten: older rows have an added column's
default, and ``SchemaVersions`` reads them so. The errors about names that do not exist, or that
are taken, are worded here for all buses. Read ``bus`` next for what can be done with a stream.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError
from headrace.records.evolution import (
    cast_column,
    default_column,
    default_scalar,
    is_wider,
    with_defaults,
)
from headrace.records.frame import Frame, read_frame
from headrace.records.schema import (
    normalise,
    normalise_schema,
    schema_from_text,
    schema_to_text,
    type_text,
)


class StreamReplacedError(InvalidInputError):
    """A stream is not the one that was read before: it was removed and created again."""

    code = "HR116"
    move = "start over, or read the new stream: headrace jobs accept-streams JOB"


def stream_replaced(name: str, found: str, expected: str, who: str, move: str) -> HeadraceError:
    """Return the error for offsets of a stream that another one of its name does not have.

    Args:
        name: of the stream.
        found: the identity of the one that is there.
        expected: that of the one which was read.
        who: has read it, in words.
        move: what to do, in words.
    """
    return StreamReplacedError(
        f"stream {name!r} is another one than {who} has read: found identity {found}, expected "
        f"{expected}: it was removed and created again since, and offsets of the old one mean "
        f"nothing in it; {move}",
        stream=name,
    )


def unknown_stream(name: str, names: Sequence[str]) -> InvalidInputError:
    """Return the error for a stream that is not there, with those that may be meant."""
    near = difflib.get_close_matches(name, names, 3)
    found = f"found {list(names)[:10]};" if names else "there are none yet;"
    there = f"did you mean {' or '.join(map(repr, near))}?" if near else found
    how = f'headrace bus create {name} --schema "column:type,..."'
    return InvalidInputError(f"no stream {name!r}; {there} to create it: {how}", stream=name)


def stream_removed(name: str) -> InvalidInputError:
    """Return the error for a stream that is used although it is gone."""
    return InvalidInputError(
        f"stream {name!r} was removed since it was opened; open it again by its name, which may be "
        "that of another one by now",
        stream=name,
    )


def alias_taken(name: str, stream: str) -> InvalidInputError:
    """Return the error for a new stream with the name of an alias."""
    return InvalidInputError(
        f"{name!r} is an alias of stream {stream!r} and cannot name a new stream; use another "
        "name, or remove the alias",
        stream=name,
    )


def check_expected(found: Mapping[str, str | None], expected: Mapping[str, str] | None) -> None:
    """Refuse to set aliases that somebody else has set meanwhile.

    Args:
        found: what they stand for.
        expected: what the caller has seen some of them stand for.

    Raises:
        InvalidInputError: one stands for another stream by now.
    """
    for alias, stream in (expected or {}).items():
        if found.get(alias) != stream:
            raise InvalidInputError(
                f"alias {alias!r} points to {found.get(alias)!r}, expected {stream!r}: another "
                "process has changed it; see which streams the aliases name, and try again"
            )


def stream_taken(name: str) -> InvalidInputError:
    """Return the error for an alias with the name of a stream."""
    return InvalidInputError(
        f"{name!r} is a stream and cannot be an alias too; use another name", stream=name
    )


MAX_PARTITIONS = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_JOB = re.compile(r"[A-Za-z0-9][^/\0]{0,249}")


def check_name(name: str) -> None:
    """Refuse what cannot name a stream.

    Raises:
        InvalidInputError: too long, empty, or with other characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot name a stream; use up to 200 letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit"
        )


@dataclass(frozen=True)
class StreamSpec:
    """A stream: a named, partitioned, durable, ordered log of rows of one schema.

    Args:
        name: letters, digits, ``.``, ``_`` and ``-``, at most 200, starting with a letter or
            digit.
        partitions: from 1 to 65,536.
        schema: columns; kept in stored form (``headrace.records.schema``).
        time: the event-time column, int64 milliseconds or a timestamp; ``None`` for none.
        key: columns whose values place a row in a partition; may be empty.
        compact: only the last row of each key is kept.
        added: columns that were added since the stream was created, with their values in older
            rows; do not set it.
        address: of the log elsewhere that carries its rows; empty: the bus has them itself.

    Raises:
        InvalidInputError: one of these is violated.
    """

    name: str
    partitions: int
    schema: pa.Schema
    time: str | None = None
    key: tuple[str, ...] = ()
    compact: bool = False
    added: tuple[tuple[str, Any], ...] = ()
    address: str = ""

    def __post_init__(self) -> None:
        """Check everything, and bring the schema into stored form."""
        check_name(self.name)
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidInputError(
                f"found {self.partitions} partitions, expected 1 to {MAX_PARTITIONS}",
                stream=self.name,
            )
        if not len(self.schema):
            raise InvalidInputError("a stream needs at least one column", stream=self.name)
        object.__setattr__(self, "schema", normalise_schema(self.schema))
        object.__setattr__(self, "key", tuple(self.key))
        self._check_time()
        self._check_key()
        if self.compact and not self.key:
            raise InvalidInputError(
                "a compacted stream keeps the last record of each key, and has none; give key=, "
                "the columns that identify records",
                stream=self.name,
            )

    def _check_time(self) -> None:
        if self.time is None:
            return
        kind = self._column(self.time, "event-time")
        if kind != pa.int64() and not pa.types.is_timestamp(kind):
            raise InvalidInputError(
                f"event-time column {self.time!r} is {kind}, expected int64 or a timestamp",
                stream=self.name,
            )

    def _check_key(self) -> None:
        if len(set(self.key)) < len(self.key):
            raise InvalidInputError(f"key {list(self.key)} holds a column twice", stream=self.name)
        for name in self.key:
            kind = self._column(name, "key")
            if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind):
                raise InvalidInputError(
                    f"key column {name!r} is {kind}; expected an integer, string, binary, float, "
                    "boolean, date or timestamp",
                    stream=self.name,
                )

    def _column(self, name: str, role: str) -> pa.DataType:
        if name not in self.schema.names:
            raise InvalidInputError(
                f"{role} column {name!r} is not in the schema; found {self.schema.names}",
                stream=self.name,
            )
        return self.schema.field(name).type


@dataclass(frozen=True)
class Producer:
    """The source of appends; they are idempotent under (producer, sequence) in each partition.

    Args:
        name: the same after restarts, such as a job and its output.
        lineage: changes when sequences start over.
    """

    name: str
    lineage: str

    def __post_init__(self) -> None:
        """Refuse what would make two producers look like one."""
        if not self.name or "\0" in self.name or "\0" in self.lineage:
            raise InvalidInputError(
                f"found producer {self.name!r} of lineage {self.lineage!r}; expected a name, and "
                "neither with a zero byte"
            )

    @classmethod
    def of_job(cls, job: str, lineage: str) -> Producer:
        """Return the producer of a job's outputs.

        If it appends under a ``Fence`` of the job, its newest lineage is never forgotten and
        replaces those before it: no generation appends under an older lineage any more.
        """
        return cls(f"job/{job}", lineage)

    def is_of(self, fence: Fence) -> bool:
        """Say whether it belongs to the job of a fence."""
        return self.name == f"job/{fence.job}"

    def digest(self) -> bytes:
        """Return the 16 bytes that identify this producer on disk."""
        return xxh3_128_digest(f"{self.name}\0{self.lineage}".encode())


@dataclass(frozen=True)
class Fence:
    """The job for which a stream is changed, in one generation of its driver.

    A bus refuses requests of generations older than the newest that it knows; see ``Bus.fence``.

    Args:
        job: its name; for a job in parts, that of the part. Unique on the bus.
        generation: from 1; each driver, and each command that acts for the job, has a higher one
            than those before.
    """

    job: str
    generation: int

    def __post_init__(self) -> None:
        """Refuse what cannot name a file, or is no generation."""
        if not _JOB.fullmatch(self.job) or self.generation < 1:
            raise InvalidInputError(
                f"found job {self.job!r} in generation {self.generation}; expected a name that "
                "begins with a letter or digit and has no '/', and a generation from 1 on"
            )


class Appended(NamedTuple):
    """The result of an append: offsets from ``first_offset`` to before ``next_offset``.

    ``duplicate``: an earlier append had the same sequence; the offsets are those of the earlier
    append, or both the partition's end if they are no longer known.
    """

    first_offset: int
    next_offset: int
    duplicate: bool


class AppendedUpTo(NamedTuple):
    """The end of a partition as of a sequence of a producer.

    ``next_offset`` is where the producer's first append above that sequence begins, or the end of
    the partition if there is none. What the producer appended up to
    ``sequence``, and nothing later, is before that offset; -1: it has appended nothing.
    """

    next_offset: int
    sequence: int


class Stored(NamedTuple):
    """The size of a partition: rows, and bytes of their frames."""

    rows: int
    bytes: int


class Compacted(NamedTuple):
    """The result of a compaction: everything below offset ``upto`` is compacted now."""

    upto: int
    rows_before: int
    rows: int
    bytes_before: int
    bytes: int


class OffsetBatch(NamedTuple):
    """Rows that were read: all rows from ``first_offset`` up to ``next_offset``.

    Row ``i`` has the offset ``first_offset + i``, unless ``places`` has the offset of each row
    because a compaction has removed others. Then there may be no row at all, and ``behind`` is the
    offset to read next.
    """

    first_offset: int
    batch: pa.RecordBatch
    places: npt.NDArray[np.int64] | None = None
    behind: int | None = None

    @property
    def next_offset(self) -> int:
        """The offset to read next."""
        if self.behind is not None:
            return self.behind
        return self.first_offset + int(self.batch.num_rows)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each row; shape (n,)."""
        if self.places is not None:
            return self.places
        return np.arange(self.first_offset, self.first_offset + self.batch.num_rows)

    def head(self, rows: int) -> OffsetBatch:
        """Return the first rows only; the rest is read next."""
        if rows >= self.batch.num_rows:
            return self
        batch = self.batch.slice(0, rows)
        if self.places is None:
            return OffsetBatch(self.first_offset, batch)
        return OffsetBatch(self.first_offset, batch, self.places[:rows], int(self.places[rows]))


@dataclass(frozen=True)
class ColumnChange:
    """One step from a schema to the next.

    Args:
        column: added at the end, or there already.
        type: of the column from now on.
        default: what older rows have in an added column; ``None``: null.
    """

    column: str
    type: pa.DataType
    default: Any = None

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON."""
        schema = pa.schema([(self.column, self.type)])
        return {
            "column": self.column,
            "type": type_text(self.type),
            "schema": schema_to_text(schema),
            "default": self.default,
        }

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> ColumnChange:
        """Read what ``to_plain`` made."""
        field = schema_from_text(content["schema"]).field(0)
        return cls(field.name, field.type, content["default"])


class SchemaVersion(NamedTuple):
    """A schema and its number; the one that the stream was created with is 0."""

    number: int
    schema: pa.Schema


class SchemaVersions:
    """Every schema of a stream. Safe for many threads.

    Args:
        stream: its name, for errors.
        created: the first schema.
        refresh: looks whether somebody changed the schema, and calls ``follow``.
    """

    def __init__(self, stream: str, created: pa.Schema, refresh: Callable[[], object]) -> None:
        self._stream, self._refresh = stream, refresh
        self._lock = threading.Lock()
        self._versions = (created,)
        self.defaults: dict[str, Any] = {}

    @property
    def newest(self) -> SchemaVersion:
        """The newest schema that is known here."""
        versions = self._versions
        return SchemaVersion(len(versions) - 1, versions[-1])

    @property
    def all(self) -> tuple[pa.Schema, ...]:
        """All of them, the first one first."""
        return self._versions

    def follow(self, changes: Sequence[ColumnChange]) -> None:
        """Take over all changes since the stream was created."""
        with self._lock:
            versions = list(self._versions)
            defaults = dict(self.defaults)
            for change in changes[len(versions) - 1 :]:
                before = versions[-1]
                field = pa.field(change.column, change.type)
                at = before.get_field_index(change.column)
                versions.append(before.append(field) if at < 0 else before.set(at, field))
                if at < 0:
                    defaults[change.column] = change.default
            self.defaults = defaults
            self._versions = tuple(versions)

    def looked(self) -> SchemaVersion:
        """Return the newest schema that there is by now, though another changed it."""
        self._refresh()
        return self.newest

    def schema(self, number: int, origin: str) -> pa.Schema:
        """Return the schema of a number.

        Raises:
            CorruptDataError: the stream does not know it; names ``origin``.
        """
        if number >= len(self._versions):
            self._refresh()
        if number >= len(self._versions):
            raise CorruptDataError(
                f"{origin} has rows of schema {number}, but the settings of stream "
                f"{self._stream!r} name {len(self._versions) - 1} changes: settings are lost",
                file=origin,
            )
        return self._versions[number]

    def fitted(self, batch: pa.RecordBatch | pa.Table) -> tuple[pa.RecordBatch, int]:
        """Return a batch in a schema of the stream, and the number of that.

        An added column that it lacks gets its default.

        Raises:
            InvalidInputError: it does not fit.
        """
        known = self.newest
        if not batch.schema.equals(known.schema):
            self._refresh()
            known = self.newest
            batch = with_defaults(batch, known.schema, self.defaults)
        return normalise(batch, known.schema), known.number

    def read(
        self,
        data: pa.Buffer,
        frame: Frame,
        origin: str,
        columns: Sequence[int] | None,
        version: SchemaVersion,
    ) -> pa.RecordBatch:
        """Return the rows of a frame as a schema has them, whichever it was written in.

        Args:
            data: the mapped file.
            frame: its header.
            origin: name of the file, for errors.
            columns: indices in the schema wanted; all when ``None``.
            version: the schema wanted.

        Raises:
            CorruptDataError: damaged bytes.
            InvalidInputError: a value of a column that was made wider since is too large.
        """
        if frame.version == version.number:
            return read_frame(data, frame, version.schema, origin, columns)
        written = self.schema(frame.version, origin)
        wanted = range(len(version.schema)) if columns is None else columns
        there = [index for index in wanted if index < len(written)]
        batch = read_frame(data, frame, written, origin, there)
        arrays = iter(batch.columns)
        fields = [version.schema.field(index) for index in wanted]
        return pa.RecordBatch.from_arrays(
            [
                self._as(next(arrays), field)
                if index < len(written)
                else default_column(field.name, field.type, self.defaults[field.name], frame.rows)
                for index, field in zip(wanted, fields, strict=True)
            ],
            schema=pa.schema(fields),
        )

    def _as(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return cast_column(column, field.type)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"column {field.name!r} of stream {self._stream!r} was made wider, to "
                f"{column.type}, and has values that {field.type} cannot hold; read it again",
                stream=self._stream,
            ) from error


def changes_to(
    spec: StreamSpec, wanted: pa.Schema, defaults: Mapping[str, Any]
) -> list[ColumnChange]:
    """Return the steps from a stream's schema to another one.

    Args:
        spec: of the stream as it is.
        wanted: every column of the stream and more, or of wider types; in any order.
        defaults: what older rows have in added columns; null where nothing is said.

    Raises:
        InvalidInputError: what cannot be, and what to do instead.
    """
    wanted = normalise_schema(wanted)
    known = spec.schema.names
    added = [field for field in wanted if field.name not in known]
    _check_kept(spec, wanted, [field.name for field in added])
    changes = []
    for field in spec.schema:
        kind = wanted.field(field.name).type
        if not kind.equals(field.type):
            _check_type(spec, field, kind)
            changes.append(ColumnChange(field.name, kind))
    for field in added:
        default = defaults.get(field.name)
        if field.name.startswith("__"):
            raise _refused_change(
                spec, f"column {field.name!r} begins with '__', which Headrace keeps; rename it"
            )
        default_scalar(field.name, field.type, default)
        changes.append(ColumnChange(field.name, field.type, default))
    unknown = sorted(set(defaults) - {field.name for field in added})
    if unknown:
        raise _refused_change(
            spec, f"defaults are for columns that are added, and {unknown} are not; leave them out"
        )
    return changes


def _check_kept(spec: StreamSpec, wanted: pa.Schema, added: list[str]) -> None:
    gone = [name for name in spec.schema.names if name not in wanted.names]
    if not gone:
        return
    role = next((f", its {what}," for what, names in _roles(spec) if gone[0] in names), "")
    same = [name for name in added if wanted.field(name).type == spec.schema.field(gone[0]).type]
    near = difflib.get_close_matches(gone[0], same, 1, 0.3) or same[:1]
    renamed = f" (a column cannot be renamed to {near[0]!r} either)" if near else ""
    raise _refused_change(
        spec,
        f"column {gone[0]!r}{role} cannot be taken out{renamed}: rows and readers have it; keep "
        f"it, or {_ANEW}",
    )


def _check_type(spec: StreamSpec, field: pa.Field, kind: pa.DataType) -> None:
    was, now = type_text(field.type), type_text(kind)
    for what, names in _roles(spec):
        if field.name in names:
            raise _refused_change(
                spec, f"column {field.name!r} is its {what} and stays {was}; found {now}: {_ANEW}"
            )
    if not is_wider(field.type, kind):
        raise _refused_change(
            spec,
            f"column {field.name!r} is {was} and cannot become {now}: a type can only be made "
            f"wider, such as int32 to int64. Add a column beside it: headrace bus configure "
            f'{spec.name} --add-column "{field.name}_2:{now}"',
        )


def _roles(spec: StreamSpec) -> list[tuple[str, tuple[str, ...]]]:
    return [("key", spec.key), ("event time", () if spec.time is None else (spec.time,))]


_ANEW = "create another stream and swap an alias to it: headrace bus alias ALIAS STREAM"


def _refused_change(spec: StreamSpec, text: str) -> InvalidInputError:
    return InvalidInputError(f"stream {spec.name!r}: {text}", stream=spec.name)
