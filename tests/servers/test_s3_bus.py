"""Streams on a real S3 server: the contracts, and what processes do to each other that stand still.

Whatever shares streams here has nothing in common but the bucket: each bus has a folder of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.test_readable_logs import SPEC as LOG_SPEC
from tests.contract.test_readable_logs import StreamContract
from tests.support.cli import done
from tests.support.processes import until
from tests.support.s3_proxy import Fault, FaultyProxy
from tests.support.servers import S3Server
from tests.support.storages import forget_storages, new_name

from headrace.bus import (
    Appended,
    Bus,
    BusOptions,
    CompactionStoppedError,
    ObjectBus,
    OffsetGoneError,
    ReadableLog,
    Stream,
    StreamSpec,
    open_bus,
)
from headrace.bus import object_log as object_log_module
from headrace.bus.object_bus import ObjectStream
from headrace.clock import Clock
from headrace.errors import InvalidInputError, UnavailableError
from headrace.objects import open_storage
from headrace.remote import bound_caches, on_host
from headrace.testing import ManualClock, call_at
from headrace.testing.bus_contract import BusContract, CompactionContract
from headrace.testing.bus_suite import (
    ME,
    SCHEMA,
    AppendingContract,
    BusSuite,
    CrashError,
    everything,
    rows,
)

SMALL = BusOptions(index_entries=4, segment_bytes=2000, batch_bytes=100_000)
ONE = StreamSpec("one", 1, SCHEMA, "at", ("id",))
PRICES = StreamSpec("prices", 1, SCHEMA, "at", ("id",), compact=True)


def root_in(folder: Path, bucket_folder: str) -> Path:
    return folder / "_remote" / "s3" / "tests" / bucket_folder


@pytest.fixture(autouse=True)
def found(s3: S3Server) -> S3Server:
    return s3


class Opening(BusSuite):
    """Each opening is that of another host, without anything on its disk."""

    @pytest.fixture(autouse=True)
    def own_folder(self) -> None:
        self.name, self.hosts = new_name(), 0

    def open_bus(self, folder: Path, options: BusOptions, clock: Clock | None = None) -> Bus:
        self.hosts += 1
        root = root_in(folder / f"host-{self.hosts}", f"{self.name}/{folder.name}")
        return ObjectBus(root, options, clock=clock)

    def reopen(
        self, bus: Bus, folder: Path, options: BusOptions, clock: Clock | None = None
    ) -> Bus:
        bus.close()
        return self.open_bus(folder, options, clock)


class TestObjectBus(Opening, BusContract):
    """With the usual sizes: nothing is sealed meanwhile."""


class TestObjectBusOfTinyObjects(Opening, AppendingContract, CompactionContract):
    """Every other append is followed by a seal, and most entries of an index are in its parts."""

    options = BusOptions(
        segment_bytes=2000,
        index_entries=2,
        open_segments=1,
        batch_bytes=100_000,
        record_bytes=20_000,
        adopt_bytes=4096,
    )


class TestObjectStream(StreamContract):
    def open_log(self, folder: Path) -> ReadableLog:
        self.bus = ObjectBus(root_in(folder, new_name()), BusOptions(segment_bytes=512))
        return self.bus.create(LOG_SPEC)


class Hosts:
    """Buses over the same streams, each with a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, new_name()
        self.buses: list[ObjectBus] = []

    def open(self, options: BusOptions = SMALL) -> ObjectBus:
        root = root_in(self._folder / f"host-{len(self.buses)}", self.name)
        self.buses.append(ObjectBus(root, options))
        return self.buses[-1]

    def objects(self, part: str) -> list[str]:
        names = (one.name for one in open_storage("s3", "tests").objects(self.name))
        return sorted(name for name in names if f"/{part}/" in name)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    for bus in made.buses:
        bus.close()


def sealed(stream: Stream) -> ObjectStream:
    assert isinstance(stream, ObjectStream)
    stream.seal(0)
    return stream


def ids(stream: Stream) -> list[int]:
    parts = stream.read(0, stream.begins()[0])
    return [number for part in parts for number in part.batch.column("id").to_pylist()]


def test_hosts_append_to_one_partition_at_once(hosts: Hosts) -> None:
    """Each append is there once, those of a host in its order, while all of them seal."""
    hosts.open().create(ONE)

    def append(host: int) -> list[Appended]:
        stream = hosts.open().stream("one")
        return [stream.append(0, rows(1000 * host + n, 2)) for n in range(0, 40, 2)]

    with ThreadPoolExecutor(3) as pool:
        answers = [one for found in pool.map(append, range(3)) for one in found]
    found = ids(hosts.open().stream("one"))
    assert sorted(one.first_offset for one in answers) == list(range(0, 120, 2))
    for host in range(3):
        mine = [number for number in found if number // 1000 == host]
        assert mine == list(range(1000 * host, 1000 * host + 40))


def test_a_host_that_stood_still_appends_behind_the_others(hosts: Hosts) -> None:
    """It puts its append under a name that was packed and removed: nobody would find it there."""
    stream = hosts.open().create(ONE)
    other = hosts.open().stream("one")
    stream.append(0, rows(0, 1))

    def sleep() -> None:
        for number in range(1, 4):
            other.append(0, rows(number, 1))
        sealed(other)

    for how in ({}, {"producer": ME, "sequence": 7}):
        end = stream.ends()[0]
        with call_at("bus.frame_written", sleep):
            answer = stream.append(0, rows(9, 1), **how)  # type: ignore[arg-type]
        assert answer == Appended(end + 3, end + 4, False)
    assert ids(hosts.open().stream("one")) == [0, 1, 2, 3, 9, 1, 2, 3, 9]


def test_what_others_have_packed_of_an_append_counts(hosts: Hosts) -> None:
    """It had its name when this host stood still, and another one packed it before it woke up."""
    stream = hosts.open().create(ONE)
    other = hosts.open().stream("one")

    def pack() -> None:
        other.append(0, rows(1, 1))
        sealed(other)

    with call_at("bus.index_written", pack):
        assert stream.append(0, rows(0, 1)) == Appended(0, 1, False)
    assert ids(hosts.open().stream("one")) == ids(stream) == [0, 1]


def test_an_append_that_was_dropped_meanwhile_is_known_by_its_sequence(hosts: Hosts) -> None:
    """Without one, nobody knows whether it was there; the caller has to say so."""
    stream = hosts.open().create(ONE)
    other = hosts.open().stream("one")

    def drop() -> None:
        other.trim(0, other.ends()[0])

    with call_at("bus.index_written", drop):
        answer = stream.append(0, rows(0, 1), producer=ME, sequence=3)
        assert answer == Appended(0, 1, False)
    with (
        call_at("bus.index_written", drop),
        pytest.raises(UnavailableError, match=r"was frozen while others .* try again"),
    ):
        stream.append(0, rows(1, 1))
    assert (stream.begins(), stream.ends()) == ([2], [2])
    assert stream.append(0, rows(0, 1), producer=ME, sequence=3).duplicate


def test_small_appends_are_packed_and_read_as_before(hosts: Hosts) -> None:
    """A few objects hold many appends; sequences, times and ends as of a sequence stay known."""
    stream = hosts.open().create(ONE)
    for number in range(40):
        stream.append(0, rows(number, 1), producer=ME, sequence=number)
    reading = stream.read(0, 0)
    first = next(reading)
    sealed(stream)
    assert [*first.batch.column("id").to_pylist()] == [0]
    assert [n for part in reading for n in part.batch.column("id").to_pylist()] == [*range(1, 40)]
    assert len(hosts.objects("rows")) < 20
    assert hosts.objects("parts")
    again = hosts.open().stream("one")
    assert ids(again) == list(range(40))
    assert again.append(0, rows(0, 1), producer=ME, sequence=11) == Appended(11, 12, True)
    assert again.as_of(ME, 20)[0].next_offset == 21
    assert (again.offset_at(0, 1017), again.time_range(0)) == (17, (1000, 1039))
    assert [n for p in again.read(0, 5, 9) for n in p.batch.column("id").to_pylist()] == [
        5,
        6,
        7,
        8,
    ]


def test_what_is_trimmed_goes_from_the_bucket(hosts: Hosts) -> None:
    """Objects of rows and parts of the index; another host learns it."""
    stream, other = hosts.open().create(ONE), hosts.open().stream
    reader = other("one")
    for number in range(40):
        stream.append(0, rows(number, 1))
    sealed(stream)
    assert reader.ends() == [40]
    before = len(hosts.objects("rows"))
    begin = stream.trim(0, 30)
    assert 20 <= begin <= 30
    assert len(hosts.objects("rows")) < before
    assert reader.begins() == [begin]
    with pytest.raises(OffsetGoneError):
        list(reader.read(0, 0, 5))
    assert ids(reader) == list(range(begin, 40))
    stream.configure(retain_bytes=1)
    for number in range(40, 48):
        stream.append(0, rows(number, 1))
    sealed(stream)
    assert reader.begins()[0] > begin
    assert ids(reader)[-1] == 47


@pytest.mark.parametrize("limits", [{"retain_ms": 5_000}, {"retain_bytes": 2_000}])
def test_those_who_append_drop_what_need_not_be_kept(
    hosts: Hosts, tmp_path: Path, limits: dict[str, Any]
) -> None:
    """By age and by bytes, without anybody who asks; its objects go as well."""
    clock = ManualClock(1_000_000)
    with ObjectBus(root_in(tmp_path / "own", hosts.name), SMALL, clock=clock) as bus:
        stream = bus.create(ONE)
        stream.configure(**limits)
        for number in range(40):
            stream.append(0, rows(number, 1))
            clock.advance(1_000)
        until(lambda: stream.begins()[0] > 20, "retention")
        found = list[int]()

        def is_read() -> bool:
            with suppress(OffsetGoneError):  # what is read may go meanwhile
                found[:] = ids(hosts.open().stream("one"))
            return bool(found)

        until(is_read, "rows")
        assert found == list(range(found[0], 40))
        assert found[0] > 20
        until(lambda: len(hosts.objects("rows")) < 30, "objects to go")
        if "retain_ms" in limits:
            clock.advance(10_000)
            assert stream.trim(0) == 40
            stream.append(0, rows(40, 1))
            assert ids(hosts.open().stream("one")) == [40]


def test_an_append_that_asks_for_no_seal_leaves_alone_what_one_that_begins_says(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it may write "queued" again after that, and nobody seals any more."""
    stream, written = hosts.open().create(ONE), list[bool]()
    stream.append(0, rows(0, 1))
    queued = property(lambda _: True, lambda _, value: written.append(value))
    monkeypatch.setattr(object_log_module.ObjectLog, "_is_queued", queued, raising=False)
    stream.append(0, rows(1, 1))
    assert written == []


def test_a_hold_that_comes_late_stops_a_compaction(hosts: Hosts) -> None:
    """Its rows are written and about to count, on a host that has not seen the hold."""
    stream = hosts.open().create(PRICES)
    other = hosts.open().stream("prices")
    for number in range(6):
        stream.append(0, rows(number % 2, 1))
    with (
        call_at("compact.segment_named", lambda: other.hold("late", [2])),
        pytest.raises(CompactionStoppedError, match="a reader began to hold it"),
    ):
        stream.compact(0)
    assert ids(other) == [0, 1, 0, 1, 0, 1]
    assert stream.compact(0).upto == 2
    other.release("late")
    assert stream.compact(0).upto == 6
    assert ids(hosts.open().stream("prices")) == [0, 1]
    sealed(stream)
    assert len(hosts.objects("rows")) == 1


def test_appends_go_on_while_a_compaction_is_written(hosts: Hosts) -> None:
    """Another host appends and seals before it counts; nothing of that is lost."""
    stream = hosts.open().create(PRICES)
    other = hosts.open().stream("prices")
    for number in range(6):
        stream.append(0, rows(number % 2, 1))

    def append() -> None:
        for number in range(7, 12):
            other.append(0, rows(number, 1))
        sealed(other)

    with call_at("compact.segment_named", append):
        assert stream.compact(0).upto == 6
    assert ids(hosts.open().stream("prices")) == [0, 1, 7, 8, 9, 10, 11]


def test_a_removal_that_died_half_way_is_completed(hosts: Hosts) -> None:
    """The stream takes no append from then on, and who opens its name finds none."""
    bus = hosts.open()
    bus.create(ONE).append(0, rows(0, 1))
    elsewhere = hosts.open().stream("one")

    def die() -> None:
        raise CrashError

    with call_at("stream.removed", die), pytest.raises(CrashError):
        bus.remove("one")
    with pytest.raises(InvalidInputError, match="was removed since it was opened"):
        elsewhere.append(0, rows(1, 1))
    assert hosts.open().create(ONE).ends() == [0]
    assert not hosts.objects("rows")


def test_what_processes_left_that_died_is_removed(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed rows that no head names, and heads that nobody looks for any more."""
    stream = hosts.open().create(ONE)
    for number in range(3):
        stream.append(0, rows(number, 1))

    [name] = hosts.objects("rows")[:1]
    open_storage("s3", "tests").put(f"{name[:-4]}-deadbeef.seg", b"left")
    sealed(stream)
    for limit in ("SLACK_S", "KEEP_HEADS_S"):
        monkeypatch.setattr(object_log_module, limit, -10.0)
    monkeypatch.setattr(object_log_module, "SWEEP_EVERY", 1)
    stream.append(0, rows(3, 1))
    sealed(stream)
    assert not [name for name in hosts.objects("rows") if "deadbeef" in name]
    assert len(hosts.objects("heads")) == 1
    assert ids(hosts.open().stream("one")) == [0, 1, 2, 3]


def test_a_host_keeps_no_more_than_its_bound(hosts: Hosts, tmp_path: Path) -> None:
    """Copies of rows go, the longest unused first, and come again when they are read."""
    stream = hosts.open(BusOptions()).create(StreamSpec("wide", 1, pa.schema([("t", pa.string())])))
    bound_caches(1 << 20)
    try:
        for number in range(8):
            stream.append(0, pa.table({"t": [f"{number}" * 400_000]}))
        reader = hosts.open(BusOptions(open_segments=1)).stream("wide")
        for _ in range(2):
            assert [row["t"][0] for row in everything(reader)] == [str(n) for n in range(8)]
        for number in range(2):
            files = (tmp_path / f"host-{number}").rglob("*.seg")
            assert sum(path.stat().st_size for path in files) <= (1 << 20) + 450_000
    finally:
        bound_caches(4 << 30)


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    made = FaultyProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
    forget_storages()
    yield made
    made.close()


@pytest.mark.parametrize("fault", ["lose request", "lose answer", "unavailable"])
def test_an_append_whose_answer_is_lost_is_there_once(
    hosts: Hosts, proxy: FaultyProxy, fault: Fault
) -> None:
    """With a sequence and without one: the object says whose it is."""
    stream = hosts.open().create(ONE)
    stream.append(0, rows(0, 1))
    for number, how in enumerate(({}, {"producer": ME, "sequence": 1}), 1):
        proxy.once(fault, "PUT", "/rows/", times=2)
        answer = stream.append(0, rows(number, 1), **how)  # type: ignore[arg-type]
        assert answer == Appended(number, number + 1, False)
        assert proxy.done
    assert ids(hosts.open().stream("one")) == [0, 1, 2]


def test_lists_that_lag_hide_and_double_no_stream(hosts: Hosts, proxy: FaultyProxy) -> None:
    """Hosts that create, open and remove it see lists of before, of what is gone as well."""
    rng, made = random.Random(2), 0

    def choose(method: str, path: str) -> Fault | None:
        is_list = method == "GET" and "list-type" in path
        return "old answer" if is_list and rng.random() < 0.5 else None

    proxy.choose = choose
    for number in range(9):
        stream = hosts.open().create(ONE, exist_ok=True)
        assert ids(stream) == list(range(made))
        stream.append(0, rows(made, 1))
        made += 1
        if number % 3 == 2:
            hosts.buses[0].remove("one")
            made = 0
    assert len(proxy.done) > 9


def test_an_address_opens_the_streams_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"s3://tests/{new_name()}"
    with open_bus(address) as bus:
        assert isinstance(bus, ObjectBus)
        bus.create(ONE).append(0, rows(0, 2))
        with open_bus(on_host(bus.root, tmp_path / "other")) as other:
            assert ids(other.stream("one")) == [0, 1]
    assert (tmp_path / "cache" / "headrace").is_dir()


def test_commands_use_the_bucket_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two homes: what one creates and fills, the other lists, compacts, trims and tails."""
    monkeypatch.setenv("HEADRACE__BUS__ADDRESS", f"s3://tests/{new_name()}/bus")
    first, second = ("--home", tmp_path / "first"), ("--home", tmp_path / "second")
    schema = ("--schema", "id:int64,v:int64", "--key", "id", "--compact")
    done("bus", "create", "prices", *schema, *first)
    for value in (1, 2):
        text = f'{{"id": 7, "v": {value}}}\n'
        assert "1 row appended" in done("bus", "append", "prices", "-", *first, stdin=text)
    [row] = json.loads(f"[{done('bus', 'ls', '--json', *second)}]")
    assert (row["name"], row["rows"]) == ("prices", 2)
    done("bus", "compact", "prices", *second)
    assert done("bus", "tail", "prices", "--json", *first).count('"v"') == 1
    assert not (tmp_path / "first" / "bus").exists()
