"""Segments of streams in files that were moved to a real S3 server, and are read from there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done
from tests.support.processes import until
from tests.support.s3_proxy import FaultyProxy
from tests.support.servers import S3Server
from tests.support.storages import (
    bucket_of,
    caching,
    forget_storages,
    give_up_soon,
    new_name,
    objects_of,
)

from headrace.bus import (
    Bus,
    BusOptions,
    FileBus,
    Offloaded,
    OffsetGoneError,
    Stream,
    StreamSpec,
)
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.testing import ManualClock, call_at
from headrace.testing.bus_contract import CompactionContract
from headrace.testing.bus_suite import (
    SCHEMA,
    AppendingContract,
    CrashError,
    ReadingContract,
    everything,
    rows,
)

JOB = """
import headrace as hr

@hr.job("sums")
def sums(g: hr.Graph) -> None:
    clicks = g.input("clicks").partition_by("user")
    clicks.aggregate(total=hr.agg.sum("n")).send_to(g.output("totals"))
"""
ONE = StreamSpec("one", 1, SCHEMA, "at", ("id",))
PRICES = StreamSpec("one", 1, SCHEMA, "at", ("id",), compact=True)


@pytest.fixture(autouse=True)
def found(s3: S3Server) -> S3Server:
    return s3


def small(address: str) -> BusOptions:
    return BusOptions(segment_bytes=2000, batch_bytes=100_000, offload_address=address)


class MovingBus(FileBus):
    """Moves what is sealed at once."""

    def create(self, *args: Any, **how: Any) -> Stream:
        stream = super().create(*args, **how)
        stream.configure(local_retain_bytes=1)
        return stream


class TestAFileBusThatMovesAll(AppendingContract, ReadingContract, CompactionContract):
    """Each append begins a segment, and what is sealed is moved in the background."""

    options = BusOptions(
        segment_bytes=1,
        batch_bytes=100_000,
        record_bytes=20_000,
        adopt_bytes=4096,
        open_segments=2,
    )

    @pytest.fixture(autouse=True)
    def own_address(self) -> None:
        self.address = f"s3://tests/{new_name()}"

    def open_bus(self, folder: Path, options: BusOptions, clock: Any = None) -> Bus:
        options = replace(options, offload_address=f"{self.address}/{folder.name}")
        return MovingBus(folder, options, clock=clock)

    def reopen(self, bus: Bus, folder: Path, options: BusOptions, clock: Any = None) -> Bus:
        bus.close()
        return self.open_bus(folder, options, clock)


class Place:
    """A bus in a folder, and where its older segments go."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.address = folder, f"s3://tests/{new_name()}/streams"
        self.options = BusOptions(
            segment_bytes=2000, batch_bytes=100_000, offload_address=self.address, **options
        )

    def open(self) -> FileBus:
        return FileBus(self.folder, self.options)

    @property
    def here(self) -> list[str]:
        """The segments on the disk, but for copies."""
        found = (self.folder / "streams").rglob("*.seg")
        return sorted(path.name for path in found)

    @property
    def notes(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "streams").rglob("*.far"))

    @property
    def far(self) -> list[str]:
        """The segments in the storage."""
        return sorted(name.rpartition("/")[2] for name in objects_of(self.address))

    def copies(self) -> list[Path]:
        return list((self.folder / "copies").rglob("*.seg"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "bus")


def rows_from(stream: Stream, begin: int, end: int | None = None) -> list[dict[str, Any]]:
    return [row for part in stream.read(0, begin, end) for row in part.batch.to_pylist()]


def moved(bus: FileBus) -> Offloaded:
    [found] = bus.offload("one")
    return found


def _die() -> None:
    raise CrashError


def filled(stream: Stream, appends: int, begin: int = 0) -> None:
    """Append so many times 50 rows, each of which fills more than a third of a segment."""
    for number in range(begin, begin + appends):
        stream.append(0, rows(number * 50, 50))


def test_what_the_disk_need_not_keep_is_moved_and_read_from_there(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 40)
        expected, segments = everything(stream), place.here
        with pytest.raises(InvalidInputError, match="keeps all segments on the disk"):
            moved(bus)
        stream.configure(local_retain_bytes=5000)
        assert moved(bus).segments == len(place.far) > 5
        assert sorted(place.here + place.far) == segments
        assert (
            sum(
                (place.folder / "streams/one/p-00000" / one).stat().st_size
                for one in place.here[:-1]
            )
            <= 5000
        )
        assert everything(stream) == expected
        assert rows_from(stream, 510, 590) == expected[510:590]
        assert moved(bus) == (0, 0)
        stream.configure(local_retain_bytes=1)
        assert moved(bus).segments >= 1
    with place.open() as bus:
        assert everything(bus.stream("one")) == expected
        assert bus.stream("one").offset_at(0, expected[777]["at"]) == 777


def test_those_who_append_move_segments_by_themselves(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        stream.configure(local_retain_bytes=1)
        filled(stream, 40)
        until(lambda: len(place.far) > 5, "segments to move")
    with place.open() as bus:
        assert len(everything(bus.stream("one"))) == 2000


def test_segments_are_moved_by_age(place: Place) -> None:
    clock = ManualClock(1_000_000)
    with FileBus(place.folder, place.options, clock=clock) as bus:
        stream = bus.create(ONE)
        stream.configure(local_retain_ms=60_000)
        filled(stream, 20)
        clock.advance(50_000)
        filled(stream, 20, 20)
        first = place.here
        assert moved(bus) == (0, 0)
        clock.advance(20_000)
        assert 3 < moved(bus).segments < len(first) - 3
        assert place.far == first[: len(place.far)]


def test_what_is_dropped_is_gone_from_the_storage(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 40)
        stream.configure(local_retain_bytes=1)
        moved(bus)
        before = place.far
        begin = stream.trim(0, 1000)
        moved(bus)
        assert place.far == [name for name in before if int(name[:20]) >= begin]
        assert place.notes == [name.removesuffix(".seg") for name in place.far]
        with pytest.raises(OffsetGoneError):
            rows_from(stream, 0)
        assert len(rows_from(stream, begin)) == 2000 - begin
        bus.remove("one")
        assert place.far == []
        assert everything(bus.create(ONE)) == []


@pytest.mark.parametrize("limits", [{"retain_ms": 60_000}, {"retain_bytes": 12_000}])
def test_retention_takes_moved_segments(place: Place, limits: dict[str, Any]) -> None:
    clock = ManualClock(1_000_000)
    with FileBus(place.folder, place.options, clock=clock) as bus:
        stream = bus.create(ONE)
        stream.configure(local_retain_bytes=1, **limits)
        filled(stream, 20)
        moved(bus)
        before = place.far
        clock.advance(70_000)
        filled(stream, 20, 20)
        moved(bus)
        begin = stream.begins()[0]
        assert begin >= 900
        assert place.far
        assert not set(place.far) & {name for name in before if int(name[:20]) < begin}
        assert [row["id"] for row in rows_from(stream, begin)] == list(range(begin, 2000))


def test_compacted_rows_of_moved_segments_stay(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(PRICES)
        stream.configure(local_retain_bytes=1)
        for number in range(30):
            stream.append(0, rows(number % 3 * 50, 50))
        moved(bus)
        last = {row["id"]: row for row in everything(stream)}
        stream.compact(0)
        assert {row["id"]: row for row in everything(stream)} == last
        before = place.far
        moved(bus)
        assert not set(place.far) & set(before)
        filled(stream, 40)
        moved(bus)
        assert place.far
        last |= {row["id"]: row for row in everything(stream)}
        stream.compact(0)
        assert {row["id"]: row for row in everything(stream)} == last


@pytest.mark.parametrize("point", ["offload.noted", "offload.put", "offload.file_removed"])
@pytest.mark.parametrize("is_trimmed", [False, True])
def test_who_dies_while_moving_loses_nothing_and_leaves_nothing(
    place: Place, point: str, *, is_trimmed: bool
) -> None:
    """Also where the segment is dropped, or the stream removed, before another moves it."""
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 40)
        expected = everything(stream)
        stream.configure(local_retain_bytes=1)
        with call_at(point, _die), pytest.raises(CrashError):
            moved(bus)
    with place.open() as bus:
        stream = bus.stream("one")
        assert everything(stream) == expected
        if is_trimmed:
            assert stream.trim(0, 300)
        moved(bus)
        assert len(place.here) == 1
        assert [f"{one}.seg" for one in place.notes] == place.far
        assert rows_from(stream, stream.begins()[0]) == expected[stream.begins()[0] :]


def test_what_is_put_after_it_was_dropped_is_removed(place: Place) -> None:
    with place.open() as bus, place.open() as other:
        stream = bus.create(ONE)
        filled(stream, 40)
        stream.configure(local_retain_bytes=1)
        same = other.stream("one")

        def drop(end: int) -> None:
            same.trim(0, end)
            moved(other)

        with call_at("offload.noted", lambda: drop(300)):
            moved(bus)
        begin = stream.begins()[0]
        assert begin
        assert all(int(name[:20]) >= begin for name in place.far)

        # Who was frozen longer puts it when nothing notes it any more.
        folder = objects_of(place.address)[0].rpartition("/")[0]
        bucket_of(place.address).put(f"{folder}/{0:020d}-00000001.seg", b"late")
        moved(bus)
        assert [f"{one}.seg" for one in place.notes] == place.far
        assert len(rows_from(stream, begin)) == 2000 - begin


@pytest.mark.parametrize("is_dropped", [False, True])
def test_who_moves_late_harms_nobody(place: Place, *, is_dropped: bool) -> None:
    """One that is frozen before it removes the file, while others are done with the segment."""
    with place.open() as bus, place.open() as other:
        stream = bus.create(ONE)
        filled(stream, 40)
        stream.configure(local_retain_bytes=1)

        def meanwhile() -> None:
            moved(other)
            if is_dropped:
                other.stream("one").trim(0, 1500)
                moved(other)

        with call_at("offload.put", meanwhile):
            moved(bus)
        moved(bus)
        assert [f"{one}.seg" for one in place.notes] == place.far
    with place.open() as bus:
        begin = bus.stream("one").begins()[0]
        assert bool(begin) == is_dropped
        assert len(rows_from(bus.stream("one"), begin)) == 2000 - begin


def test_a_segment_that_may_grow_stays(tmp_path: Path) -> None:
    """Also where another process continues in it, which had it open before."""
    place = Place(tmp_path / "bus")
    place.options = replace(place.options, segment_bytes=1 << 20)
    with place.open() as bus, place.open() as other:
        stream, same = bus.create(ONE), other.stream("one")
        stream.configure(local_retain_bytes=1)
        filled(same, 4)
        assert moved(bus) == (0, 0)
        stream.append(0, rows(200, 1))
        same.append(0, rows(201, 1))
        assert moved(bus) == (0, 0)
        assert [row["id"] for row in everything(stream)] == list(range(202))
        assert len(place.here) == 1


def test_a_lost_object_is_named(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 20)
        stream.configure(local_retain_bytes=1)
        moved(bus)
        bucket_of(place.address).delete(objects_of(place.address)[0])
        with pytest.raises(CorruptDataError, match=r"file s3://.*\.seg is missing, though"):
            everything(stream)


def test_two_at_once_move_each_segment_once(place: Place) -> None:
    with place.open() as bus, place.open() as other:
        stream, same = bus.create(ONE), other.stream("one")
        filled(stream, 40)
        stream.configure(local_retain_bytes=1)
        expected, sealed = everything(stream), len(place.here) - 1
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(moved, (bus, other)))
        assert len(place.far) == sealed <= sum(one.segments for one in done)
        assert everything(stream) == everything(same) == expected


def test_while_the_storage_is_away_all_but_moved_rows_are_there(
    place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 20)
        expected = everything(stream)
        stream.configure(local_retain_bytes=1)
        moved(bus)
        last = int(place.far[-1][:20])
        stream.configure(local_retain_bytes=10**9)
        filled(stream, 20, 20)
    proxy = FaultyProxy(s3.port)
    try:
        proxy.choose = lambda *_: "unavailable"
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        give_up_soon(monkeypatch)
        with place.open() as bus:
            stream = bus.stream("one")
            assert len(rows_from(stream, 1050)) == 950
            with pytest.raises(UnavailableError, match=r"s3|tests"):
                everything(stream)
            stream.configure(local_retain_bytes=1)
            with pytest.raises(UnavailableError):
                moved(bus)
            filled(stream, 5, 40)
            begin = stream.trim(0, last + 1)  # its objects are removed later
            assert begin > 0
    finally:
        proxy.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment()["AWS_ENDPOINT_URL"])
    forget_storages()
    with place.open() as bus:
        stream = bus.stream("one")
        assert rows_from(stream, begin)[: 1000 - begin] == expected[begin:]
        filled(stream, 1, 45)
        moved(bus)
        assert [f"{one}.seg" for one in place.notes] == place.far
        assert all(int(name[:20]) >= begin for name in place.far)


def test_a_stream_is_removed_while_the_storage_is_away_and_its_objects_later(
    place: Place, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 20)
        stream.configure(local_retain_bytes=1)
        moved(bus)
    address = s3.environment()["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    give_up_soon(monkeypatch)
    with place.open() as bus:
        bus.remove("one")
        assert bus.names() == []
        assert everything(bus.create(ONE)) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    forget_storages()
    assert place.far
    with place.open() as bus:
        bus.remove("one")
    assert place.far == []
    assert not list(place.folder.glob(".removed-*"))


def test_copies_of_what_was_read_are_bounded(place: Place) -> None:
    with place.open() as bus:
        stream = bus.create(ONE)
        filled(stream, 60)
        stream.configure(local_retain_bytes=1)
        moved(bus)
        assert not place.copies()
        with caching(6000):
            assert len(everything(stream)) == 3000
        assert 0 < sum(path.stat().st_size for path in place.copies()) < 12_000


def test_a_job_reads_what_commands_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"s3://tests/{new_name()}"
    monkeypatch.setenv("HEADRACE__BUS__OFFLOAD_ADDRESS", address)
    monkeypatch.setenv("HEADRACE__BUS__SEGMENT_BYTES", "4096")
    home = ("--home", tmp_path)
    done("bus", "create", "clicks", "--schema", "user:int64,n:int64", *home)

    def append(begin: int) -> None:
        lines = "".join(f'{{"user": {one % 5}, "n": {one}}}\n' for one in range(begin, begin + 500))
        done("bus", "append", "clicks", "-", "--batch-rows", "50", *home, stdin=lines)

    append(0)
    assert "local_retain_bytes 4096" in done(
        "bus", "configure", "clicks", "--local-retain-bytes", "4096", *home
    )
    assert "moved" in done("bus", "offload", "clicks", *home)
    [found] = json.loads(f"[{done('bus', 'offload', 'clicks', '--json', *home)}]")
    assert found == {"stream": "clicks", "segments": 0, "bytes": 0}
    assert objects_of(address)
    append(500)
    done("bus", "offload", *home)
    (tmp_path / "sums.py").write_text(JOB)
    done("run", tmp_path / "sums.py", "--standalone", "--bounded", *home)
    lines = done("bus", "tail", "totals", "--from", "earliest", "--json", *home).splitlines()
    totals = {row["row"]["user"]: row["row"]["total"] for row in map(json.loads, lines)}
    assert totals == {user: sum(range(user, 1000, 5)) for user in range(5)}
