"""The data source ``headrace``: streams for ``spark.read``, ``readStream`` and their writers.

Options of reading: ``stream`` (or what ``load`` is given), ``home``, ``start``, ``end``,
``columns``, ``where``, ``maxRows`` of a batch, ``splitRows`` of a task. Of writing: ``stream``
(or what ``save`` is given), ``home``, ``create``, ``partitions``, ``key``, ``time``, ``writeId``.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.errors import InvalidInputError
from headrace.spark.frames.columns import Columns
from headrace.spark.frames.options import READ, WRITE, Place, check_known, names_of, place_of
from headrace.spark.frames.reading import BatchReader, StreamReader
from headrace.spark.frames.writing import BatchWriter, StreamWriter, prepare_stream

NAME = "headrace"


class StreamSource(DataSource):
    """Registers as ``headrace``.

    ``folder`` and ``home`` are the working folder, and the home of the settings, of whoever
    registers it: Spark asks a source in processes of its own, which have others.
    """

    folder = home = ""

    @classmethod
    def name(cls) -> str:
        """Return the name used with ``format``."""
        return NAME

    def _place(self) -> Place:
        return place_of({"home": self.home, **self.options}, self.folder)

    def schema(self) -> StructType:
        """Return the columns of the stream, and where each row is from."""
        check_known(self.options, READ)
        place = self._place()
        with place.open() as bus:
            spec = bus.stream(place.stream).spec
        return Columns(spec, names_of(self.options, "columns")).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the stream once."""
        check_known(self.options, READ)
        return BatchReader(self._place(), self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the source of a query."""
        check_known(self.options, READ)
        return StreamReader(self._place(), self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what appends a DataFrame."""
        place = self._checked(schema, is_overwriting=overwrite)
        return BatchWriter(place, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what appends the batches of a query."""
        return StreamWriter(self._checked(schema, is_overwriting=overwrite))

    def _checked(self, schema: StructType, *, is_overwriting: bool) -> Place:
        check_known(self.options, WRITE)
        if is_overwriting:
            raise InvalidInputError(
                'a stream cannot be overwritten; append with mode("append") or outputMode("append")'
            )
        place = self._place()
        prepare_stream(place, self.options, schema)
        return place
