"""The source of a streaming query: its offsets are those of one stream, and go forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.bus import StreamReplacedError
from headrace.bus.file import FileBus
from headrace.bus.log import OffsetGoneError
from headrace.bus.log_stream import LogStream
from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.spark.data_source import BatchReader, OffsetRange, StreamReader
from headrace.spark.source_options import ReadColumns, StreamLocation, names_of

SCHEMA = pa.schema([("id", pa.int64())])
WIDE = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("n", pa.int64()), ("at", pa.int64())])


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
    schema = ReadColumns(bus.stream(stream).spec).schema()
    return StreamReader(StreamLocation(str(tmp_path), stream), options, schema)


def taken(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = source.partitions(start, end)
    return [
        value
        for part in parts
        if isinstance(part, OffsetRange)
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
    ranges = source.partitions(start, source.latestOffset(start, ReadAllAvailable()))
    for count in (1, 20):
        bus.remove("green")
        bus.create(StreamSpec("green", 2, SCHEMA))
        append(bus, "green", 1, *range(count))
        for one in (source, reader(bus, tmp_path, "green")):
            with pytest.raises(StreamReplacedError, match="begin with a new checkpoint"):
                one.latestOffset(start, ReadAllAvailable())
        for wanted in ranges:
            with pytest.raises(StreamReplacedError, match="than the query has read"):
                list(source.read(wanted))
    old = {name: at for name, at in start.items() if name != "identity"}  # of an older version
    assert taken(source, old, source.latestOffset(old, ReadAllAvailable())) == [*range(5, 20)]


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
    identity = bus.stream("green").identity
    assert end == {"0": 1, "1": 1, "stream": "green", "identity": identity}


@pytest.fixture
def wide(bus: FileBus) -> FileBus:
    stream = bus.create(StreamSpec("wide", 1, WIDE, time="at"))
    for at in range(0, 100, 10):
        rows = [{"id": i, "kind": "ab"[i % 2], "n": i, "at": i} for i in range(at, at + 10)]
        stream.append(0, pa.RecordBatch.from_pylist(rows, WIDE))
    return bus


def batch_reader(bus: FileBus, tmp_path: Path, **options: str) -> BatchReader:
    columns = ReadColumns(bus.stream("wide").spec, names_of(options, "columns"))
    return BatchReader(StreamLocation(str(tmp_path), "wide"), options, columns.schema())


@pytest.mark.parametrize(
    ("options", "columns", "offsets", "found"),
    [
        ({"columns": "id"}, {"id"}, (0, 100), list(range(100))),
        ({"columns": "id,offset"}, {"id"}, (0, 100), list(range(100))),
        (
            {"columns": "id", "start": '{"0": 35}', "end": '{"0": 38}'},
            {"id"},
            (35, 38),
            [35, 36, 37],
        ),
        (
            {"columns": "id", "where": "kind = 'a' and n < 5"},
            {"id", "kind", "n"},
            (0, 100),
            [0, 2, 4],
        ),
        ({"columns": "id", "where": "1 = 1"}, {"id"}, (0, 100), list(range(100))),
        (
            {
                "columns": "id",
                "start": "1970-01-01T00:00:00.055",
                "end": "1970-01-01T00:00:00.057",
            },
            {"id", "at"},
            (55, 100),  # what is before comes late, and may be anywhere behind
            [55, 56],
        ),
    ],
)
def test_only_what_is_asked_for_is_read_of_the_stream(
    options: dict[str, str],
    columns: set[str],
    offsets: tuple[int, int],
    found: list[int],
    wide: FileBus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Columns and offsets get as far as the files; what conditions need is read, and not sent."""
    real, asked = LogStream.read, list[tuple[set[str], int, int | None]]()

    def read(stream: LogStream, partition: int, start: int, stop: Any, **how: Any) -> Any:
        asked.append((set(how["columns"]), start, stop))
        return real(stream, partition, start, stop, **how)

    monkeypatch.setattr(LogStream, "read", read)
    source = batch_reader(wide, tmp_path, **options)
    batches = [batch for part in source.partitions() for batch in source.read(part)]
    assert asked == [(columns, *offsets)]
    assert [value for batch in batches for value in batch.column("id").to_pylist()] == found
    assert {name for batch in batches for name in batch.schema.names} == set(
        options["columns"].split(",")
    )


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("n + 1", "it is Int64, not true or false"),
        ("kind > 5", "cannot compare string with numeric"),
        ("m > 5", "option where reads 'm'"),
        ("n >>> 1", "such as: delay > 30"),
        ("n > avg(n)", "it takes several rows together"),
        ("n > 1 and count(*) > 3", "it takes several rows together"),
        ("row_number() over (partition by kind order by n) = 1", "several rows together"),
        ("rank() over (order by n) = 1", "several rows together"),
        ("n > lag(n) over (order by id)", "several rows together"),
    ],
)
def test_what_is_no_condition_is_refused_before_anything_is_read(
    where: str, told: str, wide: FileBus, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        batch_reader(wide, tmp_path, where=where)


@pytest.mark.parametrize(
    "where",
    [
        *("true", "n in (1, 2)", "abs(n) % 2 = 0", "kind like 'a%' or kind is null"),
        *("case when n > 1 then true else false end", "coalesce(n, 1) between 1 and 2"),
        *("upper(kind) = 'A'", "substr(kind, 1, 1) = 'a'", "greatest(n, id) > 3"),
    ],
)
def test_what_each_row_tells_by_itself_is_a_condition(
    where: str, wide: FileBus, tmp_path: Path
) -> None:
    batch_reader(wide, tmp_path, where=where)
