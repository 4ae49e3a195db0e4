"""What stands for the streams of a job: fixed when a run begins, kept beside its manifests.

A file is cut into units: row groups of Parquet, batches of Arrow, stretches of lines of text. A
partition is a list of units one after the other, so that a row's offset is its place among the
rows of all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.bus import StreamSpec
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.records.schema import schema_from_text, schema_to_text

NAME = "sources.json"
FORMAT = 1
ROW_GROUP = -1
ARROW = "arrow"
"""The form of files that rows of a Spark DataFrame were written to when the run began."""


class FileSplit(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a file: row group or batch by its number, or the bytes from ``begin`` to ``end``.

    ``line`` is how many lines are before them; ``ROW_GROUP``: it is Parquet or Arrow.
    """

    file: int
    begin: int
    end: int
    line: int
    rows: int


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """A file by its address, how long it was, and of CSV and Arrow its columns.

    ``header`` is the line of names of CSV, or the names of what an Arrow file has, one a line.
    """

    address: str
    bytes: int
    header: str = ""


class BoundedSource(msgspec.Struct, frozen=True):
    """What stands for one stream.

    ``said`` is what the settings say, in words: another saying is another source. ``columns``,
    ``time``, ``key`` and ``compact`` are as of a stream. Of a range of a stream, ``stream``,
    ``begins`` and ``ends`` are given, of a log that is not of the bus its ``address`` and how many
    partitions it had as ``count``, of files the others. A log that matched the pattern of an input
    has this as ``pattern``. Rows with event times outside of ``begin_ms`` and ``end_ms`` are left
    out. With ``is_filled`` a column that a file lacks is null.
    """

    said: str
    columns: str
    time: str | None
    key: tuple[str, ...] = ()
    compact: bool = False
    stream: str = ""
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    form: str = ""
    files: tuple[SourceFile, ...] = ()
    partitions: tuple[tuple[FileSplit, ...], ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None
    is_filled: bool = False
    address: str = ""
    count: int = 0
    pattern: str = ""

    @property
    def is_dataframe(self) -> bool:
        """Whether its files have the rows of a Spark DataFrame."""
        return self.form == ARROW

    @property
    def held_columns(self) -> tuple[str, ...] | None:
        """The columns that files of a DataFrame have; ``None``: it has no rows."""
        return tuple(self.files[0].header.split("\n")) if self.files else None

    @property
    def rows(self) -> int:
        """How many rows it has, those that are left out among them."""
        if self.stream:
            return sum(self.ends) - sum(self.begins)
        return sum(unit.rows for units in self.partitions for unit in units)

    def spec(self, name: str) -> StreamSpec:
        """Return it as a stream of that name."""
        count = self.count or (len(self.ends) if self.stream else len(self.partitions))
        schema = schema_from_text(self.columns)
        return StreamSpec(name, count, schema, self.time, self.key, compact=self.compact)


def stream_of(spec: StreamSpec) -> dict[str, Any]:
    """Return what a source has of the stream that it stands for."""
    columns = schema_to_text(spec.schema)
    return {"columns": columns, "time": spec.time, "key": spec.key, "compact": spec.compact}


class SourceListing(msgspec.Struct, frozen=True):
    """The sources of a job, by the streams that they stand for."""

    format: int
    sources: dict[str, BoundedSource]


def load_listing(storage: Path) -> dict[str, BoundedSource] | None:
    """Return the sources that a job's run began with; ``None``: it has none.

    Raises:
        CorruptDataError: the file cannot be read.
    """
    path = storage / NAME
    try:
        return msgspec.json.decode(Files(sync=False).read(path), type=SourceListing).sources
    except (FileNotFoundError, NotADirectoryError):  # the check of the storage itself reports it
        return None
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"{path} cannot be read: {error}", file=str(path)) from error


def save_listing(storage: Path, sources: dict[str, BoundedSource], files: Files) -> None:
    """Keep the sources of a run, durably and in one step."""
    files.make_missing(storage, 0o700)
    files.replace(storage / NAME, msgspec.json.encode(SourceListing(FORMAT, sources)))
