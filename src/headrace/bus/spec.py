"""What a stream is, who appends to it, and what an append and a read answer.

Plain frozen data, the same for every bus. Read ``bus`` next for what can be done with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.errors import InvalidInputError
from headrace.records.schema import normalise_schema

MAX_PARTITIONS = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


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
        name: letters, digits, ``.``, ``_`` and ``-``, at most 200, not beginning with a sign.
        partitions: from 1 to 65,536.
        schema: columns; kept in stored form (``headrace.records.schema``).
        time: the event-time column, int64 milliseconds or a timestamp; ``None`` for none.
        key: columns whose values place a row in a partition; may be empty.
        compact: of rows with the same key only the last one has to be kept.
        added: columns that were added since the stream was created, with what older rows have
            in them; not to be given.

    Raises:
        InvalidInputError: one of these does not hold.
    """

    name: str
    partitions: int
    schema: pa.Schema
    time: str | None = None
    key: tuple[str, ...] = ()
    compact: bool = False
    added: tuple[tuple[str, Any], ...] = ()

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
                "the columns that tell records apart",
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
    """Who appends: appends are idempotent under (producer, sequence) in each partition.

    Args:
        name: stable over restarts, such as a job and its output.
        lineage: changes when sequences begin anew.
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

    def digest(self) -> bytes:
        """Return the 16 bytes that stand for this producer on disk."""
        return xxh3_128_digest(f"{self.name}\0{self.lineage}".encode())


class Appended(NamedTuple):
    """Where an append went: offsets from ``first_offset`` up to, not including, ``next_offset``.

    ``duplicate`` says that an earlier append had the sequence already; the offsets are those
    of the earlier one, or both the partition's end when it is no longer known.
    """

    first_offset: int
    next_offset: int
    duplicate: bool


class Stored(NamedTuple):
    """What a partition holds: how many rows, and the bytes of their frames."""

    rows: int
    bytes: int


class Compacted(NamedTuple):
    """What a compaction of a partition did: everything below offset ``upto`` is compacted now."""

    upto: int
    rows_before: int
    rows: int
    bytes_before: int
    bytes: int


class OffsetBatch(NamedTuple):
    """Rows that were read: all that there are from ``first_offset`` up to ``next_offset``.

    Row ``i`` has the offset ``first_offset + i``, unless ``places`` gives the offset of each
    row: where a compaction has removed others. Then there may be no row at all, and ``behind``
    is the offset to read next.
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
        """Return the first rows alone; the rest is to be read next."""
        if rows >= self.batch.num_rows:
            return self
        batch = self.batch.slice(0, rows)
        if self.places is None:
            return OffsetBatch(self.first_offset, batch)
        return OffsetBatch(self.first_offset, batch, self.places[:rows], int(self.places[rows]))
