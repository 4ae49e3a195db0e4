"""Reads one unit of a file as rows of a stream; the last ones read are kept."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bus.spec import StreamSpec
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.schema import normalise
from headrace.sources.addresses import open_address, open_text
from headrace.sources.compressed import PlainBytes, codec_of
from headrace.sources.line_source import LineSource
from headrace.sources.listing import ROW_GROUP, SourceFile, Unit
from headrace.sources.text_rows import BadLine, CsvLines, JsonLines

KEPT_UNITS = 4
KEPT_OPEN = 4
"""Compressed files that stay open, so that the next stretch is not unpacked from the begin."""
Places = npt.NDArray[np.int64]


class UnitRows(NamedTuple):
    """Rows of a unit that could be read, their places in it, and the others."""

    batch: pa.RecordBatch
    places: Places
    bad: tuple[tuple[int, BadLine], ...]


class UnitReader:
    """Reads units of the files of one source, for one thread.

    Args:
        spec: of the stream that they stand for.
        form: of the files.
        files: by their numbers.
        is_filled: whether a column that a file lacks is null; else it is an error.
    """

    def __init__(
        self, spec: StreamSpec, form: str, files: Sequence[SourceFile], *, is_filled: bool
    ) -> None:
        self._spec, self._form, self._files, self._is_filled = spec, form, files, is_filled
        self._unpacking: OrderedDict[int, PlainBytes] = OrderedDict()
        self._kept: OrderedDict[tuple[int, int, tuple[str, ...]], UnitRows] = OrderedDict()

    def read(self, unit: Unit, columns: Sequence[str]) -> UnitRows:
        """Return the rows of a unit.

        Raises:
            InvalidInputError: the file's columns do not fit, or it has changed since.
            UnavailableError: it cannot be read.
        """
        key = (unit.file, unit.begin, tuple(columns))
        found = self._kept.pop(key, None)
        if found is None:
            is_parquet = unit.line == ROW_GROUP
            found = self._parquet(unit, columns) if is_parquet else self._text(unit, columns)
        self._kept[key] = found
        if len(self._kept) > KEPT_UNITS:
            self._kept.popitem(last=False)
        return found

    def _parquet(self, unit: Unit, columns: Sequence[str]) -> UnitRows:
        address = self._files[unit.file].address
        with open_address(address) as source:
            try:
                size = source.size()
                file = pq.ParquetFile(source)
                there = [name for name in columns if name in file.schema_arrow.names]
                table = file.read_row_group(unit.begin, columns=there)
            except (pa.ArrowException, OSError, IndexError) as error:
                raise CorruptDataError(
                    f"{address} cannot be read: {str(error).splitlines()[0]}", file=address
                ) from error
        if size != self._files[unit.file].bytes or table.num_rows != unit.rows:
            raise self._changed(address)
        fields = [self._spec.schema.field(name) for name in columns]
        for field in fields:
            if field.name not in table.schema.names:
                table = table.append_column(field, self._filling(field, unit.rows, address))
        try:
            batch = normalise(table.select(list(columns)), pa.schema(fields))
        except InvalidInputError as error:
            raise InvalidInputError(f"{address}: {error.message}") from error
        return UnitRows(batch, np.arange(unit.rows), ())

    def _filling(self, field: pa.Field, rows: int, address: str) -> pa.Array:
        if not self._is_filled:
            raise InvalidInputError(
                f"{address} has no column {field.name!r}; expected those of stream "
                f"{self._spec.name!r}: {', '.join(self._spec.schema.names)}"
            )
        return pa.nulls(rows, field.type)

    def _text(self, unit: Unit, columns: Sequence[str]) -> UnitRows:
        file = self._files[unit.file]
        data = self._bytes(file, unit)
        if len(data) != unit.end - unit.begin:
            raise self._changed(file.address)
        taken: list[BadLine] = []
        lines = CsvLines if self._form == "csv" else JsonLines
        reader = lines(file.address, self._spec, taken.append)
        before = unit.line
        if self._form == "csv":
            data, before = file.header.encode() + b"\n" + data, before - 1
        chunks = list(reader.chunks(LineSource(io.BytesIO(data)), 1 << 30))
        numbers = [number for chunk in chunks for number in chunk.numbers]
        if len(numbers) != unit.rows:
            raise self._changed(file.address)
        batches = [reader.batch(chunk) for chunk in chunks]
        batch = pa.concat_batches(batches)
        row_of = {number: row for row, number in enumerate(numbers)}
        bad = tuple(
            (row_of[one.line], one._replace(line=one.line + before)) for one in sorted(taken)
        )
        places = np.delete(np.arange(unit.rows), [row for row, _ in bad])
        return UnitRows(batch.select(list(columns)), places, bad)

    def _bytes(self, file: SourceFile, unit: Unit) -> bytes:
        """Read a stretch of text; a compressed file stays open where it was read to."""
        if codec_of(file.address) is None:
            with open_address(file.address) as source:
                if source.size() < unit.end:  # some file systems refuse to seek behind the end
                    raise self._changed(file.address)
                source.seek(unit.begin)
                data: bytes = source.read(unit.end - unit.begin)
                return data
        opened = self._unpacking.pop(unit.file, None)
        if opened is None:
            with open_address(file.address) as source:
                if source.size() != file.bytes:
                    raise self._changed(file.address)
            opened = open_text(file.address)
        self._unpacking[unit.file] = opened
        if len(self._unpacking) > KEPT_OPEN:
            self._unpacking.popitem(last=False)[1].close()
        opened.seek(unit.begin)
        found: bytes = opened.read(unit.end - unit.begin)
        return found

    @staticmethod
    def _changed(address: str) -> InvalidInputError:
        return InvalidInputError(
            f"{address} has changed since the run began, which goes by the rows that it had; put "
            "it back, or begin anew"
        )


Taker = Callable[[int, bytes, InvalidInputError], None]
