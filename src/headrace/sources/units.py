"""Cuts files into units: what is read at once, and counted from the beginning of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import InvalidInputError
from headrace.sources.addresses import open_address, open_text
from headrace.sources.listing import ROW_GROUP, Unit

UNIT_BYTES = 4 << 20
LEAST_READ = 1 << 16
MOST_BYTES = 16 << 20
"""Of a stretch that ends within a quoted field: behind it, a quote was not meant to open one."""


def parquet_units(number: int, address: str) -> tuple[list[Unit], pa.Schema]:
    """Return the row groups of a file, and its columns.

    Raises:
        InvalidInputError: it is no Parquet.
    """
    with open_address(address) as source:
        try:
            file = pq.ParquetFile(source)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInputError(f"{address} cannot be read as Parquet: {reason}") from error
        meta = file.metadata
        units = [
            Unit(number, group, group + 1, ROW_GROUP, meta.row_group(group).num_rows)
            for group in range(meta.num_row_groups)
        ]
        return units, file.schema_arrow


def text_units(number: int, address: str, *, is_csv: bool) -> tuple[list[Unit], str]:
    """Return stretches of whole rows of a file, by its plain bytes, and of CSV its line of names.

    Raises:
        CorruptDataError: it is compressed, and cannot be unpacked.
        InvalidInputError: of CSV, a quote opens a field that does not end.
    """
    header, units = "", []
    position = line = 0
    with open_text(address) as source:
        try:
            if is_csv:
                for first in _stretches(source, 1, is_csv=True):
                    header = first.decode("utf-8-sig", "replace").rstrip("\r\n")
                    position, line = position + len(first), line + first.count(b"\n")
                    if header:
                        break
                source.seek(position)
            for data in _stretches(source, UNIT_BYTES, is_csv=is_csv):
                end = position + len(data)
                rows = _rows(data, is_csv=is_csv)
                units.append(Unit(number, position, end, line, rows))
                position, line = end, line + data.count(b"\n")
        except _EndlessError as error:
            raise error.told(address, line) from None
    return [unit for unit in units if unit.rows], header


class _Ends:
    """Finds where rows end in bytes that grow, each looked through once.

    Args:
        is_csv: a line end within a quoted field ends no row.
    """

    def __init__(self, *, is_csv: bool) -> None:
        self._is_csv = is_csv
        self._seen, self.is_open = 0, False

    def find(self, data: bytes, wanted: int) -> int:
        """Return the first end of a row at or after so many bytes; below 0: it is not there yet."""
        while True:
            end = data.find(b"\n", max(wanted - 1, self._seen))
            if end < 0:
                return -1
            if self._is_csv:
                self.is_open ^= data.count(b'"', self._seen, end) % 2 == 1
            self._seen = end + 1
            if not self.is_open:
                self._seen = 0
                return end + 1


def _stretches(source: Any, wanted: int, *, is_csv: bool) -> Iterator[bytes]:
    """Yield whole lines, about so many bytes at a time; quoted fields of CSV stay whole.

    Raises:
        _EndlessError: a quoted field is longer than any is, or the file ends in it.
    """
    held, ends = b"", _Ends(is_csv=is_csv)
    while data := source.read(max(wanted, LEAST_READ)):
        held += data
        while len(held) >= wanted:
            end = ends.find(held, wanted)
            if end < 0:
                break
            yield held[:end]
            held = held[end:]
        if ends.is_open and len(held) > MOST_BYTES:
            raise _EndlessError(held)
    if is_csv and held.count(b'"') % 2:
        raise _EndlessError(held)
    if held:
        yield held


class _EndlessError(Exception):
    """A quote opens a field of CSV that does not end.

    Args:
        data: whole rows up to that one, and what is behind it.
    """

    def __init__(self, data: bytes) -> None:
        self.behind, is_open = 0, False
        for at, line in enumerate(data.split(b"\n")):
            if line.count(b'"') % 2:
                self.behind = self.behind if is_open else at
                is_open = not is_open
        super().__init__()

    def told(self, address: str, line: int) -> InvalidInputError:
        """Return what to tell of a file, when so many lines of it are before the data."""
        return InvalidInputError(
            f"{address} line {line + self.behind + 1}: a quote opens a field that is not closed; "
            'write the field in quotes, with each quote in it doubled: "5"" pipe"'
        )


def _rows(data: bytes, *, is_csv: bool) -> int:
    lines = data.split(b"\n")
    if not is_csv:
        return sum(1 for line in lines if line.strip())
    if b'"' not in data:
        return sum(1 for line in lines if line.removesuffix(b"\r"))
    rows = quotes = 0
    for line in lines:
        if quotes % 2 == 0 and not line.removesuffix(b"\r"):
            continue
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            rows += 1
    return rows + (quotes % 2)
