"""Torn tails are left behind, damage is found: byte by byte, on the files of a real bus."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.bus import BusOptions, FileBus, Fsync, Stream, StreamSpec
from headrace.bus.index_table import ENTRY, ENTRY_BYTES
from headrace.errors import CorruptDataError

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
OPTIONS = BusOptions(fsync=Fsync.NEVER)
BEFORE = 2
"""Entries that an index file has before those of appends."""


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([ids, [f"n{number}" for number in ids]], schema=SCHEMA)


def ids_of(stream: Stream) -> list[int]:
    return [n for part in stream.read(0, 0) for n in part.batch.column("id").to_pylist()]


class Partition:
    """A partition of three appends whose files can be damaged and put back."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "bus"
        with FileBus(self.root, OPTIONS) as bus:
            stream = bus.create(StreamSpec("s", 1, SCHEMA))
            for first in (0, 2, 4):
                stream.append(0, rows(first, 2))
        self.folder = self.root / "streams" / "s" / "p-00000"
        self.index = self.folder / "index-000000.log"
        (self.segment,) = self.folder.glob("*.seg")
        self._good = folder / "good"
        shutil.copytree(self.folder, self._good)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._good, self.folder)

    def read_good_size(self) -> int:
        return (self._good / self.segment.name).stat().st_size

    def read(self) -> list[int]:
        with FileBus(self.root, OPTIONS) as bus:
            return ids_of(bus.stream("s"))

    def append_and_read(self) -> list[int]:
        with FileBus(self.root, OPTIONS) as bus:
            stream = bus.stream("s")
            stream.append(0, rows(100, 1))
            stream.append(0, rows(101, 1))
            return ids_of(stream)


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flips(path: Path, begin: int, end: int) -> Iterator[int]:
    """Each byte in turn holds something else."""
    good = path.read_bytes()
    for at in range(begin, end):
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.write_bytes(bad)
        yield at
    path.write_bytes(good)


def test_an_index_cut_at_any_byte_of_its_last_entry_ends_before_it(partition):
    whole = partition.index.stat().st_size
    for size in range(whole - ENTRY_BYTES, whole):
        cut(partition.index, size)
        assert partition.read() == [0, 1, 2, 3]
        assert partition.append_and_read() == [0, 1, 2, 3, 100, 101]
        assert partition.read() == [0, 1, 2, 3, 100, 101]
        is_torn = size > whole - ENTRY_BYTES
        assert is_torn == (partition.folder / "index-000001.log").exists()
        partition.restore()


def test_zeros_at_the_end_of_an_index_are_a_torn_tail(partition):
    for zeros in (1, ENTRY_BYTES, 3 * ENTRY_BYTES + 5):
        with open(partition.index, "ab") as file:
            file.write(bytes(zeros))
        assert partition.read() == [0, 1, 2, 3, 4, 5]
        assert partition.append_and_read() == [0, 1, 2, 3, 4, 5, 100, 101]
        partition.restore()


def test_an_open_reader_goes_on_behind_a_torn_tail(partition):
    with FileBus(partition.root, OPTIONS) as reader:
        stream = reader.stream("s")
        assert ids_of(stream) == [0, 1, 2, 3, 4, 5]
        with open(partition.index, "ab") as file:
            file.write(b"torn")
        assert stream.ends() == [6]
        partition.append_and_read()
        assert stream.ends() == [8]
        assert ids_of(stream)[4:] == [4, 5, 100, 101]


def test_every_flip_of_a_middle_index_entry_is_found(partition):
    for _ in flips(partition.index, 2 * ENTRY_BYTES, 3 * ENTRY_BYTES):
        with pytest.raises(CorruptDataError, match=r"index-000000\.log is damaged at byte 256"):
            partition.read()


def test_every_flip_of_the_header_and_the_last_index_entry_is_found(partition):
    whole = partition.index.stat().st_size
    for begin in (0, whole - ENTRY_BYTES):
        for _ in flips(partition.index, begin, begin + ENTRY_BYTES):
            with pytest.raises(CorruptDataError, match=f"is damaged at byte {begin}:"):
                partition.read()


def test_damage_of_the_index_stops_appends_too(partition):
    for _ in flips(partition.index, 2 * ENTRY_BYTES + 8, 2 * ENTRY_BYTES + 9):
        with pytest.raises(CorruptDataError, match="is damaged at byte 256"):
            partition.append_and_read()


def test_a_segment_cut_at_any_byte_of_its_last_frame_is_found(partition):
    whole = partition.segment.stat().st_size
    for size in range(whole * 2 // 3, whole):
        cut(partition.segment, size)
        with pytest.raises(CorruptDataError, match=rf"{partition.segment.name} is damaged"):
            partition.read()
        partition.restore()


def test_every_flip_of_the_last_frame_is_found(partition):
    whole = partition.segment.stat().st_size
    for _ in flips(partition.segment, whole * 2 // 3, whole):
        with pytest.raises(CorruptDataError, match=rf"{partition.segment.name} is damaged at byte"):
            partition.read()


def test_a_frame_without_its_index_entry_is_left_behind_however_torn(partition):
    index, segment = partition.index.stat().st_size, partition.segment.stat().st_size
    for size in range(segment * 2 // 3, segment + 1):
        cut(partition.index, index - ENTRY_BYTES)
        cut(partition.segment, size)
        assert partition.read() == [0, 1, 2, 3]
        assert partition.append_and_read() == [0, 1, 2, 3, 100, 101]
        partition.restore()


def test_a_frame_behind_torn_bytes_begins_at_a_multiple_of_64(partition):
    with open(partition.segment, "ab") as file:
        file.write(b"torn")
    assert partition.append_and_read() == [0, 1, 2, 3, 4, 5, 100, 101]
    entries = np.frombuffer(partition.index.read_bytes(), ENTRY)
    assert set(entries["position"] % 64) == {0}
    assert entries["position"][-2] > partition.read_good_size()


def test_a_missing_segment_is_found_by_readers_and_appenders(partition):
    partition.segment.unlink()
    with pytest.raises(CorruptDataError, match=r"\.seg is missing, though it is named"):
        partition.read()
    with pytest.raises(CorruptDataError, match=r"\.seg is missing, though the index names it"):
        partition.append_and_read()


def test_an_index_that_shrinks_under_a_reader_is_found(partition):
    with FileBus(partition.root, OPTIONS) as bus:
        stream = bus.stream("s")
        assert stream.ends() == [6]
        cut(partition.index, 2 * ENTRY_BYTES)
        with pytest.raises(CorruptDataError, match=r"has shrunk: found 256 bytes, .* 640"):
            stream.ends()


def test_an_index_that_another_takes_the_place_of_is_found_by_a_reader(partition, tmp_path):
    """As when the folder of a partition is put back from where less had been appended."""
    with FileBus(tmp_path / "other", OPTIONS) as bus:
        bus.create(StreamSpec("s", 1, SCHEMA)).append(0, rows(0, 2))
    with FileBus(partition.root, OPTIONS) as bus:
        stream = bus.stream("s")
        assert stream.ends() == [6]
        shutil.copy(tmp_path / "other/streams/s/p-00000/index-000000.log", partition.folder)
        with pytest.raises(CorruptDataError, match=r"has lost index entries: .* at 6 or later"):
            stream.ends()


@pytest.mark.parametrize("left", [1, 3])
def test_an_index_file_that_does_not_end_where_the_next_begins_is_found_by_a_reader(
    partition, left
):
    """The next one counts two appends; the reader finds fewer, or more, before it."""
    whole = partition.index.read_bytes()
    cut(partition.index, (BEFORE + 2) * ENTRY_BYTES)
    with open(partition.index, "ab") as file:
        file.write(b"torn")
    assert partition.append_and_read() == [0, 1, 2, 3, 100, 101]
    following = partition.folder / "index-000001.log"
    counted = following.read_bytes()
    following.unlink()
    cut(partition.index, BEFORE * ENTRY_BYTES)
    with FileBus(partition.root, OPTIONS) as reader:
        stream = reader.stream("s")
        assert stream.ends() == [0]
        partition.index.write_bytes(whole[: (BEFORE + left) * ENTRY_BYTES])
        following.write_bytes(counted)
        with pytest.raises(CorruptDataError, match=r"index-000001\.log does not follow"):
            stream.ends()


def test_an_index_entry_that_is_gone_leaves_a_gap_that_is_found(partition):
    data = partition.index.read_bytes()
    partition.index.write_bytes(data[: 3 * ENTRY_BYTES] + data[4 * ENTRY_BYTES :])
    with pytest.raises(CorruptDataError, match="found an append at offset 4, expected 2"):
        partition.read()


def test_an_index_of_another_partition_is_found(tmp_path):
    with FileBus(tmp_path, OPTIONS) as bus:
        bus.create(StreamSpec("s", 2, SCHEMA)).append(0, rows(0, 1))
    folder = tmp_path / "streams" / "s"
    shutil.copy(folder / "p-00000" / "index-000000.log", folder / "p-00001")
    with (
        FileBus(tmp_path, OPTIONS) as bus,
        pytest.raises(CorruptDataError, match="not of partition 1"),
    ):
        bus.stream("s").ends()


@pytest.mark.parametrize("left", [0, 1])
def test_segments_beyond_the_index_are_never_swept(tmp_path, left):
    """An index that is lost, or its end, must not make the data behind it look like rubbish."""
    options = BusOptions(fsync=Fsync.NEVER, segment_bytes=1)
    with FileBus(tmp_path, options) as bus:
        stream = bus.create(StreamSpec("s", 1, SCHEMA))
        for first in (0, 1, 2):
            stream.append(0, rows(first, 1))
    folder = tmp_path / "streams" / "s" / "p-00000"
    if left:
        cut(folder / "index-000000.log", (BEFORE + left) * ENTRY_BYTES)
    else:
        (folder / "index-000000.log").unlink()
    with FileBus(tmp_path, options) as bus, pytest.raises(CorruptDataError, match="has lost index"):
        bus.stream("s").append(0, rows(9, 1))
    assert len(list(folder.glob("*.seg"))) == 3


def test_damage_of_the_stream_file_is_found(partition):
    path = partition.root / "streams" / "s" / "stream.json"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"partitions": 1', b'"partitions": 2'))
    with pytest.raises(CorruptDataError, match=r"stream\.json is damaged: its checksum"):
        partition.read()
    path.write_bytes(good[:50])
    with pytest.raises(CorruptDataError, match=r"stream\.json is damaged: it cannot be read"):
        partition.read()
