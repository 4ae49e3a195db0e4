"""Streams in a folder whose sealed segments are in a bucket: read as before, also after crashes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.servers import S3Server
from tests.support.storages import bucket_of, caching, new_name, objects_of

from headrace.bus import BusOptions, FileBus, Fsync, Stream, StreamSpec
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.testing import ManualClock, call_at

SCHEMA = pa.schema([("id", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA)
PAIRS = pa.schema([("k", pa.int64()), ("id", pa.int64())])
KEYED = StreamSpec("s", 1, PAIRS, key=("k",), compact=True)
ONE_EACH = BusOptions(fsync=Fsync.NEVER, segment_bytes=1, index_entries=4)

LARGE = BusOptions(fsync=Fsync.NEVER)


class CrashError(Exception):
    """Raised where a process would have died."""


class Rig:
    """A bus in a folder, and a place in a bucket."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self.folder, self.clock = folder, ManualClock(1_000_000)
        self.address = f"s3://{s3.bucket}/{new_name()}"
        self._buses: list[FileBus] = []

    def open(self, spec: StreamSpec = SPEC, options: BusOptions = ONE_EACH) -> Stream:
        """Open the stream as another process does."""
        bus = FileBus(self.folder, options, clock=self.clock)
        self._buses.append(bus)
        return bus.create(spec, exist_ok=True)

    @property
    def bus(self) -> FileBus:
        """The one that was opened last."""
        return self._buses[-1]

    def offload(self, older_ms: int = 0) -> tuple[int, int]:
        """Return how many segments were moved, and how many objects removed."""
        ((count, _, removed),) = self.bus.offload("s", self.address, older_ms=older_ms)
        return count, removed

    def files(self) -> list[str]:
        return sorted(p.name for p in self.folder.glob("streams/s/p-00000/*.seg"))

    def objects(self) -> list[str]:
        return sorted(Path(name).name for name in objects_of(self.address))

    def forget_cache(self) -> None:
        shutil.rmtree(self.folder / "_remote", ignore_errors=True)

    def close(self) -> None:
        for bus in self._buses:
            bus.close()


@pytest.fixture
def rig(tmp_path: Path, s3: S3Server) -> Iterator[Rig]:
    made = Rig(tmp_path / "bus", s3)
    yield made
    made.close()


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


def ids_of(stream: Stream) -> list[int]:
    begin = stream.begins()[0]
    return [n for part in stream.read(0, begin) for n in part.batch.column("id").to_pylist()]


def filled(rig: Rig, count: int = 10) -> Stream:
    stream = rig.open()
    for number in range(count):
        stream.append(0, rows(number))
    return stream


def test_what_was_moved_is_read_by_all_and_appended_behind(rig: Rig) -> None:
    stream, other = filled(rig), rig.open()
    before = rig.files()
    assert rig.offload() == (9, 0)
    assert rig.files() == before[-1:]
    assert rig.objects() == before[:-1]
    for each in (stream, other, rig.open()):
        assert list(range(10)) == ids_of(each)
    other.append(0, rows(10))
    assert list(range(11)) == ids_of(stream)
    assert rig.offload() == (1, 0)
    rig.forget_cache()
    assert list(range(11)) == ids_of(rig.open())


def test_a_segment_that_may_grow_stays(rig: Rig) -> None:
    """Also where another process goes on with it, which had it open before."""
    stream, other = rig.open(options=LARGE), rig.open(options=LARGE)
    for number in range(4):
        other.append(0, rows(number))
    assert rig.offload() == (0, 0)
    for each in (stream, other):
        each.append(0, rows(stream.ends()[0]))
    assert rig.offload() == (0, 0)
    assert list(range(6)) == ids_of(rig.open(options=LARGE))
    assert len(rig.files()) == 1


def test_only_what_is_old_enough_moves(rig: Rig) -> None:
    stream = rig.open()
    for number in range(6):
        stream.append(0, rows(number))
        rig.clock.advance(1000)
    assert rig.offload(older_ms=4000) == (3, 0)
    assert len(rig.files()) == 3
    assert list(range(6)) == ids_of(stream)


def test_retention_and_trims_free_the_bucket_the_next_time(rig: Rig) -> None:
    stream = filled(rig)
    rig.offload()
    assert stream.trim(0, 5) == 5
    assert list(range(5, 10)) == ids_of(rig.open())
    assert rig.offload() == (0, 5)
    assert len(rig.objects()) == 4
    assert list(range(5, 10)) == ids_of(stream)


def test_a_compaction_reads_what_was_moved(rig: Rig) -> None:
    stream = rig.open(KEYED)
    for number in range(12):
        stream.append(0, pa.record_batch([[number % 3], [number]], schema=KEYED.schema))
    rig.offload()
    compacted = stream.compact(0)
    assert (compacted.rows_before, compacted.rows) == (12, 3)
    assert ids_of(stream) == ids_of(rig.open(KEYED)) == [9, 10, 11]
    rig.offload()
    assert ids_of(rig.open(KEYED)) == [9, 10, 11]
    assert len(rig.objects()) <= 1


@pytest.mark.parametrize("point", ["offload.put", "offload.file_removed"])
@pytest.mark.parametrize("meanwhile", ["nothing", "trim", "another"])
def test_who_dies_while_moving_loses_nothing(rig: Rig, point: str, meanwhile: str) -> None:
    filled(rig)
    dying, other = rig.bus, rig.open()

    def die() -> None:
        if meanwhile == "trim":
            other.trim(0, 4)
        elif meanwhile == "another":
            rig.offload()
        raise CrashError

    with call_at(point, die, nth=2), pytest.raises(CrashError):
        dying.offload("s", rig.address)
    kept = list(range(4 if meanwhile == "trim" else 0, 10))
    assert kept == ids_of(rig.open())
    rig.offload()
    assert len(rig.files()) == 1
    assert len(rig.objects()) == len(kept) - 1
    rig.forget_cache()
    assert kept == ids_of(rig.open())


@pytest.mark.parametrize("act", ["trim", "another"])
def test_who_moves_late_harms_nobody(rig: Rig, act: str) -> None:
    """One that stands still before it removes the file, while others are done with the segment."""
    filled(rig)
    late, other = rig.bus, rig.open()

    def meanwhile() -> None:
        rig.offload()
        if act == "trim":
            other.trim(0, 8)
            rig.offload()

    with call_at("offload.put", meanwhile):
        late.offload("s", rig.address)
    rig.offload()
    kept = list(range(8 if act == "trim" else 0, 10))
    rig.forget_cache()
    assert kept == ids_of(rig.open())
    assert len(rig.objects()) == len(kept) - 1


def test_a_removed_stream_leaves_nothing_and_the_next_has_a_place_of_its_own(rig: Rig) -> None:
    filled(rig)
    rig.offload()
    rig.bus.remove("s")
    assert rig.objects() == []
    filled(rig)
    rig.offload()
    assert list(range(10)) == ids_of(rig.open())


def test_the_copies_on_disk_are_bounded(rig: Rig) -> None:
    stream = rig.open()
    for number in range(20):
        stream.append(0, rows(number * 1000, 1000))
    rig.offload()
    with caching(50_000):
        assert len(ids_of(stream)) == 20_000
        kept = [p.stat().st_size for p in (rig.folder / "_remote").rglob("*.seg")]
        assert 0 < sum(kept) <= 70_000


def test_a_lost_object_is_named(rig: Rig) -> None:
    filled(rig)
    rig.offload()
    bucket_of(rig.address).delete(objects_of(rig.address)[0])
    with pytest.raises(CorruptDataError, match="is missing, though it is named"):
        ids_of(rig.open())


def test_what_cannot_be_is_refused(rig: Rig) -> None:
    stream = filled(rig)
    with pytest.raises(InvalidInputError, match="was never offloaded; give the address"):
        rig.bus.offload("s")
    with pytest.raises(InvalidInputError, match="no storage at"):
        rig.bus.offload("s", "nowhere")
    with pytest.raises(InvalidInputError, match="unknown stream settings"):
        stream.configure(offload_to=rig.address)
    rig.offload()
    with pytest.raises(InvalidInputError, match="has segments at"):
        rig.bus.offload("s", f"{rig.address}-2")


def test_commands_move_and_read(rig: Rig, tmp_path: Path) -> None:
    rig.folder = tmp_path / "home" / "bus"
    filled(rig)
    home = ["--home", str(tmp_path / "home")]
    said = done("bus", "offload", "s", "--to", rig.address, *home)
    assert said.startswith("stream s: 9 segments")
    assert said.endswith(f"moved to {rig.address}\n")
    told = done("bus", "tail", "s", "--from", "earliest", "--json", *home)
    assert [json.loads(line)["row"]["id"] for line in told.splitlines()] == [*range(10)]
    assert json.loads(done("bus", "offload", "s", "--older", "7d", "--json", *home)) == {
        "partition": 0,
        "segments": 0,
        "bytes": 0,
        "removed": 0,
    }
    assert f"offload_to {rig.address}" in done("bus", "configure", "s", *home)
