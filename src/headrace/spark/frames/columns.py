"""A stream's columns as Spark's, and rows of the one as rows of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from headrace.bus.spec import OffsetBatch, StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.schema import as_milliseconds

PARTITION, OFFSET, TIME = "partition", "offset", "time"
_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@dataclass(frozen=True)
class Columns:
    """What a read of a stream brings: columns of the stream, and where each row is from.

    Args:
        spec: of the stream.
        chosen: names in the order of the result; all when empty.
    """

    spec: StreamSpec
    chosen: tuple[str, ...] = ()

    def own(self, role: str) -> str:
        """Return the name of a column that is ours; after those of the stream, it gives way."""
        name = role
        while name in self.spec.schema.names:
            name = f"_{name}"
        return name

    @property
    def names(self) -> list[str]:
        """All that there are."""
        return [*self.spec.schema.names, *(self.own(role) for role in (PARTITION, OFFSET, TIME))]

    def schema(self) -> StructType:
        """Return the columns of the result as Spark's.

        Raises:
            InvalidInputError: a name that there is not.
        """
        every = {
            field.name: StructField(field.name, from_arrow_type(as_spark(field.type)))
            for field in self.spec.schema
        }
        every[self.own(PARTITION)] = StructField(self.own(PARTITION), LongType(), False)
        every[self.own(OFFSET)] = StructField(self.own(OFFSET), LongType(), False)
        every[self.own(TIME)] = StructField(self.own(TIME), TimestampType())
        self.check(self.chosen)
        return StructType([every[name] for name in self.chosen or self.names])

    def check(self, names: Sequence[str]) -> None:
        """Refuse columns that there are not.

        Raises:
            InvalidInputError: names the first.
        """
        for name in names:
            if name not in self.names:
                raise InvalidInputError(
                    f"no column {name!r}; expected some of {self.names}", stream=self.spec.name
                )

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the stream that a result with some columns is made of."""
        found = [name for name in names if name in self.spec.schema.names]
        is_timed = self.own(TIME) in names and self.spec.time is not None
        if is_timed and self.spec.time not in found:
            found.append(str(self.spec.time))
        return found

    def result(self, found: OffsetBatch, partition: int, target: pa.Schema) -> pa.RecordBatch:
        """Return rows that were read as Spark is told that they are.

        Raises:
            InvalidInputError: the stream's column was made wider since the query began, and holds
                what its type of then cannot.
        """
        rows = found.batch.num_rows
        arrays = []
        for field in target:
            if field.name in found.batch.schema.names and field.name in self.spec.schema.names:
                column = found.batch.column(field.name)
            elif field.name == self.own(PARTITION):
                column = pa.repeat(pa.scalar(partition, pa.int64()), rows)
            elif field.name == self.own(OFFSET):
                column = pa.array(found.offsets, pa.int64())
            elif self.spec.time is not None:
                column = event_time(found.batch.column(self.spec.time))
            else:
                column = pa.nulls(rows, field.type)
            arrays.append(self._cast(column, field))
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {field.name!r}: found {column.type}, and the query was planned with "
                f"{field.type}: {str(error).splitlines()[0]}; start it again",
                stream=self.spec.name,
            ) from error


def event_time(column: pa.Array) -> pa.Array:
    """Return an event-time column as Spark's timestamps."""
    if pa.types.is_timestamp(column.type):
        return column
    micros = pc.multiply(as_milliseconds(column), 1000)
    return micros.cast(pa.timestamp("us", tz="UTC"))


def as_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark can have values of a stored type."""
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(as_spark(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, as_spark(field.type)) for field in kind])
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form that Spark expects rows of a schema in."""
    return to_arrow_schema(schema, timezone="UTC")
