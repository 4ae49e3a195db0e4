"""What only the file bus does: segments, adoption, sync policies, a full disk, its format."""

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import (
    BusOptions,
    Fence,
    FileBus,
    Fsync,
    MemoryBus,
    Producer,
    StreamSpec,
    open_bus,
)
from headrace.bus.index_table import APPEND, ENTRY, SEQUENCED, Entry
from headrace.errors import InvalidInputError, UnavailableError
from headrace.faults import injected
from headrace.files import Files
from headrace.records.frame import encode_frame

SCHEMA = pa.schema([("id", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA)


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


def ids_of(stream, start: int = 0) -> list[int]:
    return [n for part in stream.read(0, start) for n in part.batch.column("id").to_pylist()]


def segments(root: Path) -> list[Path]:
    return sorted((root / "streams" / "s" / "p-00000").glob("*.seg"))


def frame_file(path: Path, count: int) -> Path:
    Files().write_new(path, encode_frame(rows(0, count)))
    return path


def test_a_large_file_is_adopted_as_the_same_inode(tmp_path):
    source = frame_file(tmp_path / "out", 2000)
    with FileBus(tmp_path, BusOptions(adopt_bytes=4096)) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(7))
        stream.append_file(0, source)
        stream.append(0, rows(8))
        _, adopted, after = segments(tmp_path)
        assert source.stat().st_ino == adopted.stat().st_ino
        assert f"{1:020d}" == adopted.name[:20]
        assert f"{2001:020d}" == after.name[:20]
        source.unlink()
        assert [7, *range(2000), 8] == ids_of(stream)


def test_a_small_file_is_copied_into_the_segment(tmp_path):
    source = frame_file(tmp_path / "out", 2000)
    with FileBus(tmp_path) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(7))
        stream.append_file(0, source)
        assert [7, *range(2000)] == ids_of(stream)
        assert len(segments(tmp_path)) == 1


def test_of_a_large_file_only_the_ranges_that_are_named_are_appended(tmp_path):
    """The rest is of other partitions."""
    source = tmp_path / "out"
    first, second = (b"".join(map(bytes, encode_frame(rows(n, 2000)))) for n in (0, 2000))
    Files().write_new(source, [first, second, first])
    with FileBus(tmp_path, BusOptions(adopt_bytes=4096)) as bus:
        stream = bus.create(SPEC)
        stream.append_file(0, source, [(len(first), len(first) + len(second))])
        assert list(range(2000, 4000)) == ids_of(stream)


def test_a_file_of_another_disk_is_adopted_by_a_copy(tmp_path, monkeypatch):
    source = frame_file(tmp_path / "out", 2000)
    link = os.link

    def refuse(path, target):
        if str(target).endswith(".seg"):
            raise OSError(errno.EXDEV, "another device")
        link(path, target)

    monkeypatch.setattr(os, "link", refuse)
    with FileBus(tmp_path, BusOptions(adopt_bytes=0)) as bus:
        stream = bus.create(SPEC)
        stream.append_file(0, source)
        assert source.stat().st_ino != segments(tmp_path)[0].stat().st_ino
        assert list(range(2000)) == ids_of(stream)


def test_what_was_read_stays_valid_while_the_segment_grows_and_when_it_goes(tmp_path):
    with FileBus(tmp_path) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0, 1000))
        (before,) = stream.read(0, 0)
        for first in range(1000, 20_000, 1000):
            stream.append(0, rows(first, 1000))
        assert list(range(20_000)) == ids_of(stream)
        segments(tmp_path)[0].unlink()
    assert rows(0, 1000) == before.batch


def test_segments_and_index_files_roll_under_an_open_reader(tmp_path):
    options = BusOptions(fsync=Fsync.NEVER, segment_bytes=700, index_entries=4)
    with FileBus(tmp_path, options) as writer, FileBus(tmp_path) as reader:
        to = writer.create(SPEC)
        source = reader.stream("s")
        for number in range(20):
            to.append(0, rows(number))
            assert [number] == ids_of(source, number)
        assert len(segments(tmp_path)) == 7
    with FileBus(tmp_path) as again:
        assert list(range(20)) == ids_of(again.stream("s"))
    assert len(list((tmp_path / "streams/s/p-00000").glob("index-*.log"))) == 5


class WatchedFiles(Files):
    """Notes every sync of a file, and fails or stops short when told to."""

    def __init__(self) -> None:
        super().__init__(sync=True)
        self.events: list[str] = []
        self.synced = threading.Event()
        self.room = 1 << 30
        self.is_broken = False

    def sync_file(self, descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        self.events.append("sync " + name.rpartition(".")[2])
        if self.is_broken:
            raise OSError(errno.EIO, "input/output error")
        super().sync_file(descriptor)
        self.synced.set()

    def append(self, descriptor, chunks) -> None:
        data = b"".join(memoryview(chunk) for chunk in chunks)
        super().append(descriptor, [data[: self.room]])
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.room -= len(data)


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


def test_always_syncs_the_frame_before_the_entry_is_written(tmp_path, files):
    with FileBus(tmp_path, files=files) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        files.events.clear()
        with injected(files.events.append):
            stream.append(0, rows(1))
    assert files.events == ["sync seg", "bus.frame_written", "sync log", "bus.index_written"]


def test_always_answers_a_duplicate_only_when_it_is_durable(tmp_path, files):
    me = Producer("me", "")
    with FileBus(tmp_path, BusOptions(fsync=Fsync.NEVER)) as bus:
        bus.create(SPEC).append(0, rows(0), producer=me, sequence=1)
    with FileBus(tmp_path, files=files) as bus:
        assert bus.stream("s").append(0, rows(0), producer=me, sequence=1).duplicate
    assert "sync log" in files.events


def test_what_was_removed_before_it_was_synced_does_not_keep_a_bus_from_closing(tmp_path):
    options = BusOptions(fsync=Fsync.INTERVAL, fsync_interval_ms=3_600_000)
    with FileBus(tmp_path, options) as bus, FileBus(tmp_path) as other:
        bus.create(SPEC).append(0, rows(1))
        other.remove("s")
        assert bus.names() == []


def test_interval_syncs_from_a_thread(tmp_path, files):
    options = BusOptions(fsync=Fsync.INTERVAL, fsync_interval_ms=20)
    with FileBus(tmp_path, options, files=files) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        files.synced.clear()
        files.events.clear()
        stream.append(0, rows(1))
        assert files.synced.wait(30)
    assert {"sync seg", "sync log"} == set(files.events)


def test_never_syncs_no_append(tmp_path, files):
    with FileBus(tmp_path, BusOptions(fsync=Fsync.NEVER), files=files) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        files.events.clear()
        stream.append(0, rows(1))
    assert files.events == []


def test_a_failed_sync_is_never_tried_again(tmp_path, files):
    with FileBus(tmp_path, files=files) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        files.is_broken = True
        with pytest.raises(UnavailableError, match="input/output error"):
            stream.append(0, rows(1))
        files.is_broken = False
        with pytest.raises(UnavailableError, match="input/output error"):
            stream.append(0, rows(1))
        assert ids_of(stream) == [0]


@pytest.mark.parametrize("left", [0, 10, 319, 320, 330, 447])
def test_a_full_disk_refuses_and_appends_go_on_when_there_is_room(tmp_path, files, left):
    """However many bytes of frame and entry still fitted, nothing of them is seen."""
    with FileBus(tmp_path, files=files) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        files.room = left
        with pytest.raises(UnavailableError, match="no space left on device; nothing is known"):
            stream.append(0, rows(1))
        assert ids_of(stream) == [0]
        files.room = 1 << 30
        stream.append(0, rows(2))
        assert ids_of(stream) == [0, 2]
    with FileBus(tmp_path) as again:
        assert ids_of(again.stream("s")) == [0, 2]


def test_of_many_generations_of_a_job_the_newest_is_known(tmp_path):
    """Those before it go, but for a few."""
    with FileBus(tmp_path) as bus:
        for generation in range(1, 21):
            bus.fence(Fence("job", generation))
            assert bus.fenced("job") == generation
    assert 1 < len(list(tmp_path.glob("*/job/*"))) < 10


def test_few_files_stay_open_for_many_partitions(tmp_path):
    options = BusOptions(fsync=Fsync.NEVER, open_partitions=2, open_segments=2)
    with FileBus(tmp_path, options) as bus:
        stream = bus.create(StreamSpec("s", 50, SCHEMA))
        stream.append(0, rows(0))
        before = len(os.listdir("/proc/self/fd"))
        for partition in range(50):
            stream.append(partition, rows(partition))
            (*_, found) = stream.read(partition, 0)
            assert [partition] == found.batch.column("id").to_pylist()
        assert len(os.listdir("/proc/self/fd")) <= before + 6


def test_the_layout_of_an_index_entry_never_changes():
    entry = Entry(APPEND, SEQUENCED, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, bytes(range(16)), 11)
    expected = (
        "4852493102000200" + "0100000000000000" + "0200000000000000" + "0300000000000000"
        "0400000005000000" + "0600000000000000" + "0700000000000000" + "0800000000000000"
        "0900000000000000" + "0a00000000000000" + "0001020304050607" + "08090a0b0c0d0e0f"
        "0b00000000000000" + "00" * 16
    )
    data = entry.pack()
    assert expected == data[:-8].hex()
    assert (len(data), ENTRY.itemsize) == (128, 128)
    assert entry == Entry.unpack(data)


def test_addresses_name_buses(tmp_path):
    for address in (tmp_path, str(tmp_path), f"file:{tmp_path}"):
        with open_bus(address) as bus:
            assert isinstance(bus, FileBus)
            assert tmp_path == bus.root
    with open_bus("memory:") as bus:
        assert isinstance(bus, MemoryBus)
    for wrong in ("kafka:host", "file:", "memory:x"):
        with pytest.raises(InvalidInputError, match="no bus at"):
            open_bus(wrong)


def test_options_that_cannot_work_are_refused():
    with pytest.raises(InvalidInputError, match="segment_bytes is 0, expected at least 1"):
        BusOptions(segment_bytes=0)
