"""The schemas that a stream has had: columns were added at the end, or made wider.

A frame carries the number of the schema that it was written in, so nothing that was appended is
ever rewritten: older rows have an added column's default. ``Schemas`` reads them so.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.bus.spec import StreamSpec
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.evolution import default_scalar, is_wider, recast, repeated, with_defaults
from headrace.records.frame import Frame, read_frame
from headrace.records.schema import normalise, normalise_schema, schema_from_text, schema_to_text
from headrace.records.type_words import words_of_type


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
            "type": words_of_type(self.type),
            "schema": schema_to_text(schema),
            "default": self.default,
        }

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> ColumnChange:
        """Read what ``to_plain`` made."""
        field = schema_from_text(content["schema"]).field(0)
        return cls(field.name, field.type, content["default"])


class Version(NamedTuple):
    """A schema and its number; the one that the stream was created with is 0."""

    number: int
    schema: pa.Schema


class Schemas:
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
    def newest(self) -> Version:
        """The newest schema that is known here."""
        versions = self._versions
        return Version(len(versions) - 1, versions[-1])

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

    def looked(self) -> Version:
        """Return the newest schema that there is by now, whoever changed it."""
        self._refresh()
        return self.newest

    def schema(self, number: int, origin: str) -> pa.Schema:
        """Return the schema of a number.

        Raises:
            CorruptDataError: the stream does not tell of it; names ``origin``.
        """
        if number >= len(self._versions):
            self._refresh()
        if number >= len(self._versions):
            raise CorruptDataError(
                f"{origin} has rows of schema {number}, but the settings of stream "
                f"{self._stream!r} tell of {len(self._versions) - 1} changes: settings are lost",
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
        version: Version,
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
                else repeated(field.name, field.type, self.defaults[field.name], frame.rows)
                for index, field in zip(wanted, fields, strict=True)
            ],
            schema=pa.schema(fields),
        )

    def _as(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return recast(column, field.type)
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
            raise _refused(
                spec, f"column {field.name!r} begins with '__', which Headrace keeps; rename it"
            )
        default_scalar(field.name, field.type, default)
        changes.append(ColumnChange(field.name, field.type, default))
    unknown = sorted(set(defaults) - {field.name for field in added})
    if unknown:
        raise _refused(
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
    raise _refused(
        spec,
        f"column {gone[0]!r}{role} cannot be taken out{renamed}: rows and readers have it; keep "
        f"it, or {_ANEW}",
    )


def _check_type(spec: StreamSpec, field: pa.Field, kind: pa.DataType) -> None:
    was, now = words_of_type(field.type), words_of_type(kind)
    for what, names in _roles(spec):
        if field.name in names:
            raise _refused(
                spec, f"column {field.name!r} is its {what} and stays {was}; found {now}: {_ANEW}"
            )
    if not is_wider(field.type, kind):
        raise _refused(
            spec,
            f"column {field.name!r} is {was} and cannot become {now}: a type can only be made "
            f"wider, such as int32 to int64. Add a column beside it: headrace bus configure "
            f'{spec.name} --add-column "{field.name}_2:{now}"',
        )


def _roles(spec: StreamSpec) -> list[tuple[str, tuple[str, ...]]]:
    return [("key", spec.key), ("event time", () if spec.time is None else (spec.time,))]


_ANEW = "create another stream and swap an alias to it: headrace bus alias ALIAS STREAM"


def _refused(spec: StreamSpec, text: str) -> InvalidInputError:
    return InvalidInputError(f"stream {spec.name!r}: {text}", stream=spec.name)
