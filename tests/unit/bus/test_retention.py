"""What is dropped of a stream and when, whoever dies or reads meanwhile."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.soak import places

from headrace.bus import (
    BusOptions,
    FileBus,
    Fsync,
    MemoryBus,
    OffsetGoneError,
    Producer,
    Stream,
    StreamSpec,
)
from headrace.errors import CorruptDataError
from headrace.faults import injected
from headrace.testing import ManualClock

SCHEMA = pa.schema([("id", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA)
ONE_EACH = BusOptions(fsync=Fsync.NEVER, segment_bytes=1)
ME = Producer("me", "")
SECOND = 1000


class CrashError(Exception):
    """Raised where a process would have died."""


def rows(first: int, count: int = 1) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + count))], schema=SCHEMA)


def ids_of(stream: Stream) -> list[int]:
    begin = stream.begins()[0]
    return [n for part in stream.read(0, begin) for n in part.batch.column("id").to_pylist()]


def names(root: Path, ending: str) -> list[str]:
    return sorted(p.name for p in (root / "streams/s/p-00000").iterdir() if p.name.endswith(ending))


def test_appenders_keep_the_bytes_that_are_wanted(tmp_path):
    """The oldest segments go as soon as enough is left without them."""
    with FileBus(tmp_path, ONE_EACH) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0, 100))
        (segment,) = (tmp_path / "streams/s/p-00000").glob("*.seg")
        size = segment.stat().st_size
        stream.configure(retain_bytes=3 * size)
        for number in range(1, 10):
            stream.append(0, rows(100 * number, 100))
            assert len(names(tmp_path, ".seg")) == min(number + 1, 3)
        assert stream.begins() == [700]
        assert list(range(700, 1000)) == ids_of(stream)
        assert len(names(tmp_path, ".log")) <= 4


@pytest.mark.parametrize("kind", [MemoryBus, FileBus])
def test_appenders_and_trim_drop_what_is_old_enough(tmp_path, kind):
    """Age counts from the append; the newest rows go only when somebody asks."""
    clock = ManualClock(1_000_000)
    settings = BusOptions(fsync=Fsync.NEVER)
    bus = (
        kind(settings, clock=clock) if kind is MemoryBus else kind(tmp_path, settings, clock=clock)
    )
    with bus:
        stream = bus.create(SPEC)
        stream.configure(retain_ms=80 * SECOND)
        for number in range(12):
            stream.append(0, rows(number))
            clock.advance(10 * SECOND)
        begin = stream.begins()[0]
        assert 2 <= begin <= 4
        assert list(range(begin, 12)) == ids_of(stream)
        clock.advance(80 * SECOND)
        assert stream.trim(0) == 12
        stream.append(0, rows(12))
        assert ids_of(stream) == [12]


def test_a_segment_that_is_written_slowly_is_followed_by_another(tmp_path):
    """Else one that never fills would keep its first rows for ever."""
    clock = ManualClock(1_000_000)
    with FileBus(tmp_path, BusOptions(fsync=Fsync.NEVER), clock=clock) as bus:
        stream = bus.create(SPEC)
        stream.append(0, rows(0))
        clock.advance(100 * SECOND)
        stream.append(0, rows(1))
        assert len(names(tmp_path, ".seg")) == 1
        stream.configure(retain_ms=1000 * SECOND)
        stream.append(0, rows(2))
        clock.advance(30 * SECOND)
        stream.append(0, rows(3))
        assert len(names(tmp_path, ".seg")) == 2


@pytest.mark.parametrize(
    "point", ["trim.written", "trim.segment_removed", "trim.index_removed", "bus.index_written"]
)
@pytest.mark.parametrize("which", [1, 2])
def test_a_trim_that_died_anywhere_loses_nothing_that_is_kept(tmp_path, point, which):
    """Readers see the old or the new beginning, and the next appender clears up."""
    with FileBus(tmp_path, ONE_EACH) as bus:
        stream = bus.create(SPEC)
        for number in range(6):
            stream.append(0, rows(number), producer=ME, sequence=number)
            if number in (1, 3):
                stream.trim(0, number)
        begin = stream.begins()[0]
        seen = 0

        def die(at: str) -> None:
            nonlocal seen
            seen += at == point
            if at == point and seen == which:
                raise CrashError(at)

        try:
            with injected(die, (point,)):
                stream.trim(0, 5)
        except CrashError:
            assert [begin if point == "bus.index_written" else 5] == stream.begins()
        assert list(range(stream.begins()[0], 6)) == ids_of(stream)
    with FileBus(tmp_path, ONE_EACH) as bus, FileBus(tmp_path) as reader:
        stream = bus.stream("s")
        assert reader.stream("s").begins() == [5]
        assert stream.append(0, rows(9), producer=ME, sequence=4).duplicate
        assert stream.append(0, rows(6), producer=ME, sequence=6).first_offset == 6
        assert [5, 6] == ids_of(stream) == ids_of(reader.stream("s"))
        assert [int(name[:20]) for name in names(tmp_path, ".seg")] == [5, 6]


def test_a_reader_in_the_middle_is_told_what_is_gone(tmp_path):
    """Of what it has not mapped yet; what it has stays."""
    with FileBus(tmp_path, ONE_EACH) as bus, FileBus(tmp_path) as other:
        stream = bus.create(SPEC)
        for number in range(4):
            stream.append(0, rows(number))
        reading = other.stream("s").read(0, 0)
        first = next(reading)
        stream.trim(0, 3)
        with pytest.raises(OffsetGoneError, match=r"offset 1 is gone, .* is 3"):
            next(reading)
        assert rows(0) == first.batch


def test_any_order_of_appends_and_trims_is_read_alike_by_all(tmp_path):
    """One who was there all the time, one who looks in at times, and one who comes anew."""
    options = BusOptions(fsync=Fsync.NEVER, segment_bytes=900, index_entries=5)
    dice = np.random.default_rng(5)
    end = begin = 0
    with FileBus(tmp_path, options) as bus, FileBus(tmp_path) as often, FileBus(tmp_path) as seldom:
        bus.create(SPEC)
        for step in range(300):
            if dice.random() < 0.7:
                count = int(dice.integers(1, 40))
                bus.stream("s").append(0, rows(end, count), producer=ME, sequence=step)
                end += count
            else:
                begin = bus.stream("s").trim(0, int(dice.integers(begin, end + 1)))
            readers = [often, bus] + ([seldom] if step % 37 == 0 else [])
            for reader in readers:
                stream = reader.stream("s")
                assert ([begin], [end]) == (stream.begins(), stream.ends())
                assert list(range(begin, end)) == ids_of(stream)
            if step % 10 == 0:
                with FileBus(tmp_path) as anew:
                    assert list(range(begin, end)) == ids_of(anew.stream("s"))
        assert bus.stream("s").append(0, rows(0), producer=ME, sequence=0).duplicate
    assert begin > 0


def trimmed(root: Path) -> Path:
    """Make a partition of two appends, four having been dropped; returns its folder."""
    with FileBus(root, ONE_EACH) as bus:
        stream = bus.create(SPEC)
        for number in range(6):
            stream.append(0, rows(number), producer=ME, sequence=number)
            if number in (2, 4):
                stream.trim(0, number)
    return root / "streams/s/p-00000"


def test_every_flip_of_a_trimmed_index_is_found(tmp_path):
    """The entries that carry sequences and beginnings are checked like all others."""
    folder = trimmed(tmp_path)
    for path in sorted(folder.glob("index-*.log")):
        good = path.read_bytes()
        for at in places(len(good)):
            bad = bytearray(good)
            bad[at] ^= 0x10
            path.write_bytes(bad)
            with FileBus(tmp_path) as bus, pytest.raises(CorruptDataError, match="is damaged"):
                ids_of(bus.stream("s"))
        path.write_bytes(good)


def test_a_trimmed_index_that_lost_a_file_or_its_trim_is_found(tmp_path):
    """No file that is still needed can go unseen, and no header without what belongs to it."""
    folder = trimmed(tmp_path)
    paths = sorted(folder.glob("index-*.log"))
    assert len(paths) == 2
    for path in paths[:1]:
        good = path.read_bytes()
        path.unlink()
        with (
            FileBus(tmp_path) as bus,
            pytest.raises(CorruptDataError, match="has lost index entries"),
        ):
            bus.stream("s").ends()
        path.write_bytes(good)
    good = paths[-1].read_bytes()
    for size in range(128, 3 * 128):
        paths[-1].write_bytes(good[:size])
        with FileBus(tmp_path) as bus, pytest.raises(CorruptDataError, match="behind its"):
            bus.stream("s").ends()


def test_damaged_or_lost_settings_are_found(tmp_path):
    """By readers of settings, and by appenders before they append."""
    with FileBus(tmp_path) as bus:
        stream = bus.create(SPEC)
        stream.configure(retain_ms=SECOND)
        stream.configure(retain_bytes=99)
    first, second = sorted((tmp_path / "streams/s").glob("settings-*.json"))
    good = second.read_bytes()
    for at in places(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x11
        second.write_bytes(bad)
        with FileBus(tmp_path) as bus, pytest.raises(CorruptDataError, match=r"000002.json is dam"):
            bus.stream("s").append(0, rows(0))
    second.write_bytes(good)
    first.unlink()
    with FileBus(tmp_path) as bus, pytest.raises(CorruptDataError, match="has lost settings"):
        bus.stream("s").append(0, rows(0))


def test_settings_that_tell_of_partitions_are_missed(tmp_path):
    """When rows are in a partition that nobody tells of."""
    with FileBus(tmp_path) as bus:
        stream = bus.create(SPEC)
        stream.configure(partitions=2)
        stream.append(1, rows(0))
    (tmp_path / "streams/s/settings-000001.json").unlink()
    with (
        FileBus(tmp_path) as bus,
        pytest.raises(CorruptDataError, match="found rows in p-00001, expected 1 part"),
    ):
        bus.stream("s")


def test_a_follower_in_another_process_sees_added_partitions(tmp_path):
    """It waits for them, too, and is woken by their rows."""
    with FileBus(tmp_path) as bus, FileBus(tmp_path) as other:
        stream, source = bus.create(SPEC), other.stream("s")
        stream.append(0, rows(0))
        assert source.wait([0], 5.0) == [1]
        stream.configure(partitions=3)
        assert source.ends() == [1, 0, 0]
        stream.append(2, rows(7))
        assert source.wait([1], 5.0) == [1, 0, 1]
        (found,) = source.read(2, 0)
        assert found.batch == rows(7)


def test_of_two_who_change_settings_at_once_neither_is_lost(tmp_path):
    """Who loses the race takes the other's change over."""
    with FileBus(tmp_path) as one, FileBus(tmp_path) as two:
        one.create(SPEC).configure(retain_ms=SECOND)
        assert two.stream("s").configure(retain_bytes=99).retain_ms == SECOND
        assert one.stream("s").configure(retain_ms=2 * SECOND).retain_bytes == 99
        assert one.stream("s").settings == two.stream("s").settings
