"""Two processes' buses over one folder while the columns of a stream change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import BusOptions, FileBus, Fsync, Stream, StreamSpec
from headrace.bus.log_stream import LogStream
from headrace.bus.stream_stores import StreamSettings
from headrace.errors import InvalidInputError
from headrace.records.evolution import with_defaults
from headrace.records.frame import iterate_frames

CREATED = pa.schema([("id", pa.int64()), ("n", pa.int32())])
WIDER = CREATED.set(1, pa.field("n", pa.int64()))
NOTED = WIDER.append(pa.field("note", pa.string()))
Pair = tuple[Stream, Stream]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The same stream, as two processes have it open."""
    options = BusOptions(fsync=Fsync.NEVER)
    with FileBus(tmp_path, options) as one, FileBus(tmp_path, options) as other:
        stream = one.create(StreamSpec("s", 1, CREATED))
        append(stream, CREATED, {"id": 1, "n": 1})
        yield stream, other.stream("s")


def append(stream: Stream, schema: pa.Schema, *rows: dict[str, Any]) -> None:
    stream.append(0, pa.RecordBatch.from_pylist(list(rows), schema))


def read(stream: Stream, **how: Any) -> list[dict[str, Any]]:
    return [row for part in stream.read(0, 0, **how) for row in part.batch.to_pylist()]


def test_who_does_not_know_of_a_change_appends_and_reads_on(pair: Pair) -> None:
    one, other = pair
    one.evolve(NOTED, {"note": "-"})
    append(other, CREATED, {"id": 2, "n": 2})
    append(one, NOTED, {"id": 3, "n": 2**40, "note": "x"})

    assert [row["id"] for row in read(other, columns=["id"])] == [1, 2, 3]
    assert [row["note"] for row in read(other)] == ["-", "-", "x"]
    assert read(one) == read(other)
    append(other, NOTED, {"id": 4, "n": 4, "note": "y"})
    assert read(one)[-1]["note"] == "y"


def test_a_read_that_has_begun_keeps_its_columns(pair: Pair) -> None:
    one, other = pair
    append(other, CREATED, {"id": 2, "n": 2})
    begun = other.read(0, 0, 3 if one.ends()[0] == 3 else None)
    first = next(begun)
    one.evolve(NOTED)
    assert [first.batch.schema, *(part.batch.schema for part in begun)] == [CREATED, CREATED]


def test_a_read_that_has_begun_takes_wider_values_that_fit(pair: Pair) -> None:
    """Rows of a later schema than the one that was asked for are read as that one."""
    one, other = pair
    assert isinstance(other, LogStream)
    version = other.schemas.newest
    one.evolve(NOTED)
    append(one, NOTED, {"id": 2, "n": 2, "note": "x"})
    log = other._log(0)
    entry = list(log.view().between(0))[1]
    data, origin = log.data(entry)
    (frame,) = iterate_frames(data, entry.position, entry.position + entry.length, origin)

    found = other.schemas.read(data, frame, origin, None, version)
    assert found.to_pylist() == [{"id": 2, "n": 2}]
    assert found.schema == CREATED

    append(one, NOTED, {"id": 3, "n": 2**40, "note": "x"})
    entry = list(log.view().between(0))[2]
    data, origin = log.data(entry)
    (frame,) = iterate_frames(data, entry.position, entry.position + entry.length, origin)
    with pytest.raises(InvalidInputError, match="was made wider, to int64, and has values that"):
        other.schemas.read(data, frame, origin, None, version)


def test_changes_of_several_at_once_are_all_done(pair: Pair) -> None:
    begin = threading.Barrier(4)

    def add(number: int) -> None:
        stream = pair[number % 2]
        begin.wait()
        for at in range(5):
            while True:
                wanted = stream.spec.schema.append(pa.field(f"c{number}_{at}", pa.int8()))
                try:
                    stream.evolve(wanted, {f"c{number}_{at}": number})
                except InvalidInputError:  # somebody added one since the columns were asked for
                    _ = stream.settings
                    continue
                break

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = {f"c{number}_{at}": number for number in range(4) for at in range(5)}
    for stream in pair:
        assert read(stream) == [{"id": 1, "n": 1, **expected}]


def test_a_change_between_the_look_and_the_number_is_not_written_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, which has the same settings in its hands."""
    stream, other = pair
    assert isinstance(stream, LogStream)
    store = stream._settings
    current, publish = store.current, store.publish
    meanwhile: list[threading.Thread] = []

    def change_once() -> StreamSettings:
        found = current()
        if not meanwhile:
            meanwhile.append(threading.Thread(target=lambda: stream.configure(retain_ms=1000)))
            meanwhile[0].start()
            meanwhile[0].join()
        return found

    def publish_late(before: StreamSettings, after: StreamSettings) -> bool:
        monkeypatch.setattr(store, "current", change_once)
        return publish(before, after)

    monkeypatch.setattr(store, "publish", publish_late)
    stream.evolve(NOTED)
    for each in (stream, other):
        assert each.settings.retain_ms == 1000
        assert each.spec.schema == NOTED


def test_a_default_that_just_came_is_no_matter_of_an_older_schema(pair: Pair) -> None:
    """A thread may have the schema of before in its hands when another one follows."""
    stream, _ = pair
    assert isinstance(stream, LogStream)
    before = stream.schemas.newest
    stream.evolve(NOTED, {"note": "-"})
    rows = pa.RecordBatch.from_pylist([{"id": 1, "n": 1}], CREATED)
    assert with_defaults(rows, before.schema, stream.schemas.defaults).schema == CREATED
