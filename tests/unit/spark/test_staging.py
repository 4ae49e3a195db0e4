"""Rows that tasks have staged get into a stream once, whoever dies, however often asked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus.file import FileBus
from headrace.bus.spec import Fence, StreamSpec
from headrace.clock import SystemClock
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import injected
from headrace.files import Files
from headrace.spark import staging
from headrace.spark.source_options import StreamLocation
from headrace.spark.staging import (
    KEEP_UNUSED_MS,
    BatchWriterId,
    Committer,
    StagedPart,
    Stager,
    collect_leftovers,
)
from headrace.testing import ManualClock, call_at

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", pa.int64())])
FILES = Files(sync=False)
POINTS = ["spark.recorded", "spark.part_appended", "spark.appended"]


class Died(Exception):
    """What a test dies of."""


@pytest.fixture
def place(tmp_path: Path) -> StreamLocation:
    place = StreamLocation(str(tmp_path), "events")
    with place.open() as bus:
        bus.create(StreamSpec("events", 3, SCHEMA, time="at", key=("id",)))
    return place


def rows(first: int, count: int) -> list[pa.RecordBatch]:
    """Two batches of rows."""
    ids = range(first, first + count)
    every = pa.RecordBatch.from_pydict(
        {"id": list(ids), "v": [str(i) for i in ids], "at": list(ids)}, schema=SCHEMA
    )
    return [every.slice(0, count // 2), every.slice(count // 2)]


def staged(
    write: BatchWriterId, batch: int, task: int, first: int, count: int = 20
) -> list[StagedPart]:
    return Stager(write, batch, task, FILES).stage(rows(first, count))


def found(place: StreamLocation) -> list[int]:
    """Every id in the stream, partition by partition."""
    with FileBus(place.bus_dir) as bus:
        stream = bus.stream(place.stream)
        return [
            row
            for partition in range(stream.spec.partitions)
            for part in stream.read(partition, 0)
            for row in part.batch.column("id").to_pylist()
        ]


def dying_at(point: str, nth: int) -> Callable[[str], None]:
    passes: Counter[str] = Counter()

    def hook(name: str) -> None:
        passes[name] += 1
        if name == point and passes[name] == nth:
            raise Died(name)

    return hook


def test_what_is_staged_is_not_visible_until_it_is_committed(place: StreamLocation) -> None:
    write = BatchWriterId(place, "query a")
    parts = staged(write, 0, 0, 0) + staged(write, 0, 1, 100)
    assert found(place) == []
    assert Committer(write, FILES).commit(0, parts) == 40
    assert sorted(found(place)) == [*range(20), *range(100, 120)]


def test_rows_go_to_the_partitions_of_their_keys(place: StreamLocation) -> None:
    write = BatchWriterId(place, "query a")
    Committer(write, FILES).commit(0, staged(write, 0, 0, 0, 100))
    by_spark = found(place)
    with place.open() as bus:
        other = bus.create(StreamSpec("other", 3, SCHEMA, key=("id",)))
        other.append_rows(pa.Table.from_batches(rows(0, 100)))
    assert by_spark == found(StreamLocation(place.home, "other"))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_counts_once_whoever_commits_it_again(
    place: StreamLocation, point: str, nth: int
) -> None:
    write = BatchWriterId(place, "query a")
    Committer(write, FILES).commit(6, staged(write, 6, 0, 1000))
    first = staged(write, 7, 0, 0) + staged(write, 7, 1, 100)
    lost = staged(write, 7, 1, 200)  # of an attempt that nobody heard of
    try:
        with injected(dying_at(point, nth), (point,)):
            Committer(write, FILES).commit(7, first)
    except Died:
        # Spark runs the batch again: other files, and the rows in another order.
        again = staged(write, 7, 0, 100) + staged(write, 7, 1, 0)
        Committer(write, FILES).commit(7, again)
    with pytest.raises(InvalidInputError, match=r"batch 7 .* with other rows"):
        Committer(write, FILES).commit(7, lost)
    Committer(write, FILES).commit(8, staged(write, 8, 0, 2000))
    expected = [*range(20), *range(100, 120), *range(1000, 1020), *range(2000, 2020)]
    assert sorted(found(place)) == expected
    assert FILES.names(write.folder) == ["000000000008-record.json"]


def test_what_the_next_batch_has_staged_stays_when_one_is_committed(place: StreamLocation) -> None:
    write = BatchWriterId(place, "query a")
    parts, following = staged(write, 0, 0, 0), staged(write, 1, 0, 100)
    Committer(write, FILES).commit(0, parts)
    assert Committer(write, FILES).commit(1, following) == 20
    assert sorted(found(place)) == [*range(20), *range(100, 120)]


def test_two_queries_do_not_meet(place: StreamLocation) -> None:
    for name in ("a", "b"):
        write = BatchWriterId(place, f"query {name}")
        Committer(write, FILES).commit(0, staged(write, 0, 0, 0, 2))
    assert sorted(found(place)) == [0, 0, 1, 1]


def test_rows_that_a_stream_cannot_hold_are_refused_before_anything_is_visible(
    place: StreamLocation,
) -> None:
    stager = Stager(BatchWriterId(place, "query a"), 0, 0, FILES)
    wrong = pa.RecordBatch.from_pydict({"id": [1], "v": ["x"], "at": [10**15]}, schema=SCHEMA)
    with pytest.raises(InvalidInputError, match="event time of stream 'events' is "):
        stager.stage([wrong])
    with pytest.raises(InvalidInputError, match=r"missing \['v'\]"):
        stager.stage([wrong.select(["id", "at"])])
    assert FILES.names(BatchWriterId(place, "query a").folder) == []


def test_columns_that_were_added_may_be_missing(place: StreamLocation) -> None:
    with place.open() as bus:
        bus.stream("events").evolve(SCHEMA.append(pa.field("n", pa.int64())), {"n": 7})
    write = BatchWriterId(place, "query a")
    Committer(write, FILES).commit(0, staged(write, 0, 0, 0, 2))
    with place.open() as bus:
        read = [b.batch for p in range(3) for b in bus.stream("events").read(p, 0)]
    assert pa.Table.from_batches(read).column("n").to_pylist() == [7, 7]


def test_a_write_that_cannot_be_repeated_leaves_nothing(place: StreamLocation) -> None:
    write = BatchWriterId(place, "write x", is_once=True)
    Committer(write, FILES).commit(0, staged(write, 0, 0, 0, 2))
    assert not write.folder.exists()
    left = BatchWriterId(place, "write y", is_once=True)
    staged(left, 0, 0, 0, 2)
    kept = BatchWriterId(place, "query z")
    staged(kept, 0, 0, 0, 2)
    clock = ManualClock(SystemClock().now_ms())
    collect_leftovers(place, FILES, clock)
    assert left.folder.exists()
    clock.advance(KEEP_UNUSED_MS + 60_000)
    collect_leftovers(place, FILES, clock)
    assert not left.folder.exists()
    assert kept.folder.exists()


def test_large_files_are_adopted_and_not_copied(tmp_path: Path) -> None:
    place = StreamLocation(str(tmp_path), "big")
    with place.open() as bus:
        bus.create(StreamSpec("big", 1, pa.schema([("v", pa.binary())])))
    write = BatchWriterId(place, "query a")
    batch = pa.RecordBatch.from_pydict({"v": [bytes(20 << 20)]})
    parts = Stager(write, 0, 0, FILES).stage([batch])
    inode = os.stat(write.folder / parts[0].file).st_ino
    Committer(write, FILES).commit(0, parts)
    segments = (tmp_path / "bus").rglob("*.seg")
    assert [os.stat(path).st_ino for path in segments] == [inode]


def test_an_attempt_that_does_not_count_keeps_no_write_from_its_end(
    place: StreamLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculative attempts stage while the others are committed, and after that."""
    write = BatchWriterId(place, "write x", is_once=True)
    parts = staged(write, 0, 0, 0, 2)
    names = Files.names

    def and_one_more(files: Files, folder: Path | str) -> list[str]:
        listed = names(files, folder)
        if Path(folder) == write.folder:
            staged(write, 0, 0, 0, 2)
        return listed

    with monkeypatch.context() as patched:
        patched.setattr(Files, "names", and_one_more)
        assert Committer(write, FILES).commit(0, parts) == 2
    assert sorted(found(place)) == [0, 1]
    clock = ManualClock(SystemClock().now_ms() + 2 * KEEP_UNUSED_MS)
    collect_leftovers(place, FILES, clock)
    assert not write.folder.exists()


def test_a_write_that_fails_leaves_nothing(place: StreamLocation) -> None:
    write = BatchWriterId(place, "write x", is_once=True)
    parts = staged(write, 0, 0, 0, 2)
    staged(write, 0, 1, 0, 2)  # of a task that Spark has given up
    Committer(write, FILES).abort(parts)
    assert not write.folder.exists()
    assert found(place) == []


def test_more_parts_than_a_batch_has_numbers_are_refused(
    place: StreamLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_PARTS", 3)
    write = BatchWriterId(place, "query a")
    with pytest.raises(InvalidInputError, match=r"has 6 parts, .* at most 3: coalesce"):
        Committer(write, FILES).commit(0, staged(write, 0, 0, 0) + staged(write, 0, 1, 0))
    assert found(place) == []


def test_nothing_and_nulls_are_rows_like_others(place: StreamLocation) -> None:
    write = BatchWriterId(place, "query a")
    assert Committer(write, FILES).commit(0, Stager(write, 0, 0, FILES).stage([])) == 0
    nulls = pa.RecordBatch.from_pydict({"id": [None, 1], "v": [None, None], "at": [1, 2]}, SCHEMA)
    parts = Stager(write, 1, 0, FILES).stage([nulls.slice(0, 0), nulls])
    assert Committer(write, FILES).commit(1, parts) == 2
    assert sorted(found(place), key=str) == [1, None]
    untimed = pa.RecordBatch.from_pydict({"id": [1], "v": ["x"], "at": [None]}, SCHEMA)
    with pytest.raises(InvalidInputError, match="event time of stream 'events' is null in row 0"):
        Stager(write, 2, 0, FILES).stage([untimed])


@pytest.mark.parametrize("point", ["spark.staged", "spark.recorded", "spark.part_appended"])
def test_a_driver_that_freezes_in_a_batch_appends_nothing_to_the_stream_of_the_next(
    place: StreamLocation, point: str
) -> None:
    """Although it is a new stream, which has no batch of either, and the batch was recorded."""
    old = BatchWriterId(place, "query", fence=Fence("job~frames", 1))
    new = BatchWriterId(place, "another query", fence=Fence("job~frames", 2))

    def begin_anew() -> None:
        with place.open() as bus:
            bus.fence(Fence("job~frames", 2))
            bus.remove("events", fence=new.fence)
            bus.create(StreamSpec("events", 3, SCHEMA, time="at", key=("id",)), fence=new.fence)
        Committer(new, FILES).commit(0, staged(new, 0, 0, 100))

    with call_at(point, begin_anew), pytest.raises(NotOwnerError):
        Committer(old, FILES).commit(0, staged(old, 0, 0, 0))
    assert sorted(found(place)) == list(range(100, 120))
