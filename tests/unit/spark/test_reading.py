"""The source of a streaming query: its offsets are those of one stream, and go forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.bus.file import FileBus
from headrace.bus.retention import OffsetGoneError
from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.spark.frames.columns import Columns
from headrace.spark.frames.options import Place
from headrace.spark.frames.reading import Range, StreamReader

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def bus(tmp_path: Path) -> FileBus:
    bus = FileBus(tmp_path / "bus")
    for name in ("blue", "green"):
        bus.create(StreamSpec(name, 2, SCHEMA))
    bus.alias("live", "blue")
    return bus


def append(bus: FileBus, stream: str, partition: int, *ids: int) -> None:
    bus.stream(stream).append(partition, pa.record_batch({"id": pa.array(ids, pa.int64())}))


def reader(bus: FileBus, tmp_path: Path, stream: str = "live", **options: str) -> StreamReader:
    schema = Columns(bus.stream(stream).spec).schema()
    return StreamReader(Place(str(tmp_path), stream), options, schema)


def taken(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = source.partitions(start, end)
    return [
        value
        for part in parts
        if isinstance(part, Range)
        for batch in source.read(part)
        for value in batch.column("id").to_pylist()
    ]


def test_a_query_reads_on_in_the_stream_that_an_alias_meant(bus: FileBus, tmp_path: Path) -> None:
    append(bus, "blue", 0, 1, 2)
    append(bus, "green", 0, *range(100, 110))
    source = reader(bus, tmp_path)
    start = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    bus.swap({"live": "green"})
    append(bus, "blue", 0, 3)
    end = source.latestOffset(start, ReadAllAvailable())
    assert taken(source, start, end) == [3]
    with pytest.raises(InvalidInputError, match="offsets of stream 'blue', and the query reads 'g"):
        reader(bus, tmp_path).latestOffset(end, ReadAllAvailable())


def test_a_stream_that_was_made_anew_is_told(bus: FileBus, tmp_path: Path) -> None:
    append(bus, "green", 1, *range(9))
    source = reader(bus, tmp_path, "green")
    start = source.latestOffset(source.initialOffset(), ReadMaxRows(5))
    assert len(taken(source, source.initialOffset(), start)) == 5
    bus.remove("green")
    bus.create(StreamSpec("green", 2, SCHEMA))
    append(bus, "green", 1, 7)
    with pytest.raises(InvalidInputError, match=r"up to offset 5, and it ends at 1: .* anew"):
        reader(bus, tmp_path, "green").latestOffset(start, ReadAllAvailable())


def test_rows_that_were_dropped_are_told(bus: FileBus, tmp_path: Path) -> None:
    source = reader(bus, tmp_path, "green")
    start = source.initialOffset()
    append(bus, "green", 1, *range(9))
    bus.stream("green").trim(1, 9)
    end = source.latestOffset(start, ReadAllAvailable())
    with pytest.raises(OffsetGoneError):
        taken(source, start, end)


def test_partitions_that_were_added_and_offsets_of_before_are_read(
    bus: FileBus, tmp_path: Path
) -> None:
    """Checkpoints of before have no name of a stream."""
    append(bus, "green", 0, 1)
    append(bus, "green", 1, 2)
    source = reader(bus, tmp_path, "green")
    end = source.latestOffset({"0": 0}, ReadAllAvailable())
    assert taken(source, {"0": 0}, end) == [1, 2]
    assert end == {"0": 1, "1": 1, "stream": "green"}
