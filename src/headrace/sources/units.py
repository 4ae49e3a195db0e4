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
    """
    with open_text(address) as source:
        header = ""
        position = line = 0
        if is_csv:
            for first in _stretches(source, 1, is_csv=True):
                header = first.decode("utf-8-sig", "replace").rstrip("\r\n")
                position, line = position + len(first), line + first.count(b"\n")
                if header:
                    break
            source.seek(position)
        units = []
        for data in _stretches(source, UNIT_BYTES, is_csv=is_csv):
            end = position + len(data)
            rows = _rows(data, is_csv=is_csv)
            units.append(Unit(number, position, end, line, rows))
            position, line = end, line + data.count(b"\n")
        return [unit for unit in units if unit.rows], header


def _stretches(source: Any, wanted: int, *, is_csv: bool) -> Iterator[bytes]:
    """Yield whole lines, about so many bytes at a time; quoted fields of CSV stay whole."""
    held = b""
    while data := source.read(max(wanted, LEAST_READ)):
        held += data
        while len(held) >= wanted:
            end = _end(held, wanted, is_csv=is_csv)
            if end < 0:
                break
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _end(data: bytes, wanted: int, *, is_csv: bool) -> int:
    """The first end of a row at or after so many bytes; below 0: it is not there yet."""
    begin = wanted - 1
    while True:
        end = data.find(b"\n", begin)
        if end < 0:
            return -1
        if not is_csv or data.count(b'"', 0, end) % 2 == 0:
            return end + 1
        begin = end + 1


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
