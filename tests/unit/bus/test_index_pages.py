"""Index files that are not the newest are read in pages, by who looks there, and only then."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import BusOptions, FileBus, Fsync, MemoryBus, Producer, Stream, StreamSpec
from headrace.errors import CorruptDataError
from headrace.testing import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA, "at")
PAGED = BusOptions(fsync=Fsync.NEVER, segment_bytes=3000, index_entries=150)
ME = Producer("me", "")


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    """Return rows whose event times rise from before 1970 on, but for every seventh."""
    ids = list(range(first, first + count))
    return pa.record_batch(
        [ids, [100 * n - 1000 * (n % 7 == 0) - 20_000 for n in ids]], schema=SCHEMA
    )


def ids_of(stream: Stream, start: int, stop: int | None = None) -> list[int]:
    found = stream.read(0, start, stop)
    return [n for part in found for n in part.batch.column("id").to_pylist()]


def indexes(root: Path) -> list[Path]:
    return sorted((root / "streams/s/p-00000").glob("index-*.log"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of 750 appends in five index files."""
    root = tmp_path_factory.mktemp("long")
    with FileBus(root, PAGED) as bus:
        stream = bus.create(SPEC)
        for number in range(750):
            stream.append(0, rows(number), producer=ME, sequence=number)
    assert len(indexes(root)) == 5
    return root


def test_all_that_is_asked_of_pages_is_as_in_memory(long: Path) -> None:
    dice = random.Random(3)
    with FileBus(long, PAGED) as bus, MemoryBus() as memory:
        stream, expected = bus.stream("s"), memory.create(SPEC)
        for number in range(750):
            expected.append(0, rows(number))
        assert expected.ends() == stream.ends()
        assert expected.stored()[0].rows == stream.stored()[0].rows == 750
        assert expected.stored() == stream.stored()
        assert expected.time_range(0) == stream.time_range(0)
        for last in (149, 299, 449, 599):  # of an index file
            assert stream.offset_at(0, 100 * last - 20_000) == last
        for _ in range(100):
            start = dice.randrange(750)
            stop = dice.randint(start, 750)
            assert list(range(start, stop)) == ids_of(stream, start, stop)
            time_ms = dice.randrange(-22_000, 56_000)
            assert expected.offset_at(0, time_ms) == stream.offset_at(0, time_ms)


def test_who_opens_and_appends_reads_no_older_index_file(long: Path, tmp_path: Path) -> None:
    """So damage of one is found by who reads there, and by nobody else."""
    for path in indexes(long):
        target = tmp_path / path.relative_to(long)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for path in (*long.glob("streams/s/*.json"), *long.glob("streams/s/p-00000/*.seg")):
        (tmp_path / path.relative_to(long)).write_bytes(path.read_bytes())
    damaged = indexes(tmp_path)[2]
    good = damaged.read_bytes()
    damaged.write_bytes(good[:128] + bytes(reversed(good[128:])))
    with FileBus(tmp_path, PAGED) as bus:
        stream = bus.stream("s")
        assert stream.ends() == [750]
        assert stream.append(0, rows(750), producer=ME, sequence=750).first_offset == 750
        again = stream.append(0, rows(750), producer=ME, sequence=750)
        assert (again.duplicate, again.first_offset) == (True, 750)
        assert stream.stored()[0].rows == 751
        assert ids_of(stream, 600) == list(range(600, 751))
        with pytest.raises(CorruptDataError, match=damaged.name):
            ids_of(stream, 350)


def test_every_older_index_file_that_is_cut_is_found_by_who_reads_there(long: Path) -> None:
    for number, path in enumerate(indexes(long)[:-1]):
        good = path.read_bytes()
        for entries in (0, 1, 3, 75, 149):
            path.write_bytes(good[: 128 * entries])
            with FileBus(long, PAGED) as bus, pytest.raises(CorruptDataError, match=path.name):
                ids_of(bus.stream("s"), 150 * number)
        path.write_bytes(good)


def test_retention_by_age_and_bytes_trims_in_pages_as_in_memory(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    dice = random.Random(5)
    with FileBus(tmp_path, PAGED, clock=clock) as bus:
        stream = bus.create(SPEC)
        for number in range(500):
            clock.advance(10)
            stream.append(0, rows(number))
        size = stream.stored()[0].bytes // 500
        stream.configure(retain_bytes=300 * size)
        begin = stream.trim(0)
        assert 170 < begin <= 200
        assert stream.stored()[0].rows == 500 - begin
        stream.configure(retain_bytes=None, retain_ms=1500)
        aged = stream.trim(0)
        assert 320 < aged <= 350
        assert list(range(aged, 500)) == ids_of(stream, aged)
        for number in range(500, 700):
            clock.advance(10)
            stream.append(0, rows(number))
            (begin,) = stream.begins()
            assert number - 150 - 40 <= begin <= number - 150 + 1
            at = dice.randint(begin, number)
            assert ids_of(stream, at) == list(range(at, number + 1))
        assert len(indexes(tmp_path)) < 50
        kept = {int(path.name[:20]) for path in (tmp_path / "streams/s/p-00000").glob("*.seg")}
        assert min(kept) == begin
