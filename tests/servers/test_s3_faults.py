"""An S3 server that is away, or whose answers get lost: whose was the object, and who waits."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from tests.sim.world import EPOCH, World, make_job
from tests.support.jobs import Count
from tests.support.processes import REAL_CLOCK
from tests.support.runs import Driver, until
from tests.support.s3_proxy import Fault, FaultyProxy
from tests.support.servers import S3Server, free_port
from tests.support.storages import StoredWorld, forget_storages, give_up_soon, new_name, objects_of

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.cloud.storage import CloudStorage
from headrace.coordinator.commands import CommandQueue
from headrace.coordinator.driver_loop import wait_for_news
from headrace.errors import InvalidInputError
from headrace.objects import StorageAwayError
from headrace.testing import FAULT_POINTS, TestDriver


@pytest.fixture
def proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Between the server and all that this test opens."""
    made = FaultyProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
    forget_storages()
    yield made
    made.close()


@pytest.mark.parametrize(
    "fault", ["lose request", "lose answer", "late answer", "cut body", "unavailable"]
)
def test_a_create_whose_answer_is_lost_is_known_to_be_ones_own(
    proxy: FaultyProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the server has it or not, once or three times: true, and the object is there."""
    if fault == "late answer":
        monkeypatch.setattr("headrace.cloud.storage.REQUEST_S", 1.0)
    storage, name = CloudStorage("s3", "tests"), f"{new_name()}/a"
    assert storage.put_new(f"{name}-first", b"x")
    proxy.once(fault, "PUT", name, times=3)
    assert storage.put_new(name, b"mine" * 1000)
    assert proxy.done if fault == "late answer" else len(proxy.done) == 3
    assert storage.get(name) == b"mine" * 1000


def test_a_create_that_lost_to_another_knows_it_although_its_answer_is_lost(
    proxy: FaultyProxy,
) -> None:
    storage, name = CloudStorage("s3", "tests"), f"{new_name()}/a"
    assert storage.put_new(name, b"other's")
    proxy.once("lose answer", "PUT", name)
    assert not storage.put_new(name, b"other's")
    assert proxy.done


def test_an_upload_in_parts_that_is_broken_off_shows_nothing(
    proxy: FaultyProxy, tmp_path: Path
) -> None:
    """The end of a large file never gets there: no object, and the one of before stays."""
    storage, name = CloudStorage("s3", "tests", retry_timeout_s=1.0), f"{new_name()}/large"
    (tmp_path / "file").write_bytes(bytes(20 << 20))
    proxy.once("unavailable", "PUT", "partNumber=3", times=1000)
    with pytest.raises(StorageAwayError, match="does not answer"):
        storage.put_file(name, tmp_path / "file")
    proxy.choose = lambda method, path: None
    assert storage.info(name) is None
    storage.put_file(name, tmp_path / "file")
    found = storage.info(name)
    assert found is not None
    assert found.size == 20 << 20


def test_a_wrong_login_says_which_variables_to_set(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(InvalidInputError, match=r"refuses a: .*AWS_SECRET_ACCESS_KEY to a login"):
        CloudStorage("s3", s3.bucket).put("a", b"x")


def test_what_is_missing_is_named(s3: S3Server) -> None:
    with pytest.raises(FileNotFoundError, match="no such object: 's3://tests/nothing'"):
        CloudStorage("s3", s3.bucket).get("nothing")


def test_a_storage_that_is_away_is_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    storage = CloudStorage("s3", s3.bucket, retry_timeout_s=0.5)
    for name in ("a", "a-501"):  # a number in the message is no status of the server
        with pytest.raises(StorageAwayError, match=f"s3://tests does not answer for {name}"):
            storage.put(name, b"x")


@pytest.mark.parametrize("fault", ["no condition", "not implemented"])
def test_a_storage_without_conditional_puts_is_refused(
    proxy: FaultyProxy, address: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ignores the condition, or does not know it: by its name, before a job is there."""
    proxy.choose = lambda method, path: fault if "/.probe-" in path else None
    give_up_soon(monkeypatch)
    with TestDriver(counting, storage=address) as driver:
        driver.create("events", {"id": pa.int64()})
        with pytest.raises(InvalidInputError, match="commit the same epoch; use S3 itself") as said:
            driver.start()
    assert str(said.value).startswith("storage s3://tests does not refuse to create an object")
    assert not [name for name in objects_of(address) if "/plans/" not in name]


def test_a_job_loses_nothing_over_a_bad_line(proxy: FaultyProxy, address: str) -> None:
    """One in ten requests gets lost, or its answer, or is answered 503."""
    rng, lock = random.Random(5), threading.Lock()

    def choose(method: str, path: str) -> Fault | None:
        with lock:
            if rng.random() > 0.1:
                return None
            return rng.choice(["lose request", "lose answer", "unavailable"])

    job = make_job("rocksdb", "columnar", small=True)
    with TestDriver(job, tasks=3, hosts=2, storage=address) as driver:
        world = World(driver, random.Random(7))
        proxy.choose = choose
        for _ in range(4):
            world.feed(30)
            driver.run()
        driver.finish()
        world.check()
    assert len(proxy.done) > 20


def test_lists_that_lag_lose_and_double_nothing(proxy: FaultyProxy, address: str) -> None:
    """Every other list is of before, while steps of epochs are the last of a process."""
    rng, lock = random.Random(3), threading.Lock()

    def choose(method: str, path: str) -> Fault | None:
        with lock:
            is_list = method == "GET" and "list-type" in path
            return "old answer" if is_list and rng.random() < 0.5 else None

    points = [one for one in FAULT_POINTS if one.startswith(EPOCH)][::4]
    job, bus = make_job("rocksdb", "columnar", small=True), address.replace("/jobs", "/bus")
    with TestDriver(job, tasks=3, hosts=2, max_rows=60, storage=address, bus=bus) as driver:
        world, died = World(driver, random.Random(7)), 0
        proxy.choose = choose
        for number, point in enumerate(points):
            world.feed(20)
            died += driver.advance_with_crash(point)
            if number % 3 == 0:
                driver.crash(lose_hosts=(0, 1))
        driver.finish()
        proxy.choose = lambda method, path: None
        world.check()
    assert died > len(points) // 2
    assert len(proxy.done) > 100


@hr.job("counting")
def counting(g: hr.Graph) -> None:
    g.input("events").partition_by("id").process(
        Count, stores=(hr.store("n", int),), returns={"id": int, "n": int}
    ).send_to(g.output("counts"))


@pytest.mark.parametrize("tasks", [2, 64])
def test_requests_of_an_epoch_are_of_slots_and_not_of_tasks(
    tasks: int, proxy: FaultyProxy, address: str
) -> None:
    """As the guide to storage has them; a slot writes one segment and one file of outputs."""
    asked: Counter[str] = Counter()

    def count(method: str, path: str) -> Fault | None:
        is_list = method == "GET" and "list-type" in path
        folder = path.rpartition("/")[0].rpartition("/")[2]
        asked["LIST" if is_list else f"{method} {folder}"] += 1
        return None

    with TestDriver(counting, tasks=tasks, slots=2, hosts=2, storage=address) as driver:
        driver.create("events", {"id": pa.int64()}, partitions=2)
        for _ in range(3):
            for partition in range(2):
                driver.feed("events", [{"id": n} for n in range(300)], partition)
            asked.clear()
            proxy.choose = count
            driver.advance()
            proxy.choose = lambda method, path: None
    assert asked == {
        "PUT segment": 2,
        "PUT output": 2,
        "PUT manifests": 1,
        "LIST": 5,
        "HEAD segment": 2,
        "HEAD output": 2,
        "HEAD fence": 1,
        "GET output": 1,
        "GET generations": 1,
    }


@pytest.mark.parametrize("partitions", [1, 2])
def test_requests_of_streams_in_an_epoch(partitions: int, proxy: FaultyProxy, address: str) -> None:
    """As the guide has them: of an input, and of an output with rows for two partitions."""
    asked: Counter[str] = Counter()

    def count(method: str, path: str) -> Fault | None:
        _, is_stream, rest = path.partition("/bus/streams/")
        if is_stream:
            asked[f"{method} {rest.split('/')[0]}"] += 1
        elif "fences" in path:
            asked["LIST fences"] += 1
        return None

    bus = address.replace("/jobs", "/bus")
    with TestDriver(counting, tasks=2, slots=2, hosts=2, storage=address, bus=bus) as driver:
        driver.create("events", {"id": pa.int64()}, partitions=partitions)
        for _ in range(3):
            for partition in range(partitions):
                driver.feed("events", [{"id": n} for n in range(300)], partition)
            asked.clear()
            proxy.choose = count
            driver.advance()
            proxy.choose = lambda method, path: None
    assert asked == {
        "PUT counts": 2,
        "LIST fences": 2,
        "GET counts": 6,
        "GET events": 13 if partitions == 1 else 21,
    }


@dataclass
class IdleRequests:
    """Counts the requests of a driver by folder, between two of its looks for commands."""

    first: int
    last: int
    looks: int = 0
    moments: list[float] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)

    def choose(self, method: str, path: str) -> Fault | None:
        is_list = method == "GET" and "list-type" in path
        folder = unquote(path).rstrip("/").split("/")[-1 if is_list else -2]
        self.looks += is_list and folder == "requests"
        if self.first < self.looks <= self.last:
            self.moments.append(REAL_CLOCK.monotonic())
            kind = f"{'LIST' if is_list else method} {folder}"
            self.asked["GET input" if "/streams/events/" in path else kind] += 1
        return None


def test_requests_of_an_idle_driver(proxy: FaultyProxy, address: str, tmp_path: Path) -> None:
    """As often as the guide says, with an input of two partitions; and none of other kinds."""
    often = {"LIST requests": 2, "GET input": 16, "LIST generations": 1, "GET generations": 1}
    seldom = {"GET requests": 1, "LIST recovery": 0.2, "LIST _drained": 0.2}
    of_processes = {"PUT counting": 0.5, "HEAD counting": 0.5, "LIST alerts.json": 0.5}
    bus = f"bus.address={address.replace('/jobs', '/bus')}"
    world = StoredWorld(tmp_path / "home", address, bus)
    world.feed(50)
    with Driver("counting", world, way="standalone") as driver:
        until(lambda: world.read_so_far("counting") == 100, "all rows", driver)
        found = IdleRequests(first=3, last=13)
        proxy.choose = found.choose
        until(lambda: found.looks > found.last, "looks of an idle driver", driver)
        driver.terminate()
        driver.wait()
    spent_s = found.moments[-1] - found.moments[0]
    assert set(often) <= set(found.asked) <= {*often, *seldom, *of_processes}
    for kind, rate in {**often, **seldom, **of_processes}.items():
        assert found.asked[kind] <= rate * (spent_s + 1) + 1, kind


@pytest.mark.parametrize("streams", [1, 2])
def test_who_waits_for_streams_has_just_looked_and_looks_again_after(
    streams: int, proxy: FaultyProxy, address: str
) -> None:
    """However often a job with several inputs looks at those of a disk."""
    looks: Counter[str] = Counter()

    def count(method: str, path: str) -> Fault | None:
        looks[path] += "/rows/" in path
        return None

    with open_bus(address) as bus:
        names = [f"events-{number}" for number in range(streams)]
        ends = {}
        for name in names:
            stream = bus.create(StreamSpec(name, 1, pa.schema({"id": pa.int64()})))
            stream.append(0, pa.record_batch({"id": [1, 2]}))
            ends[name] = stream.ends()
        proxy.choose = count
        began = REAL_CLOCK.monotonic()
        wait_for_news(bus, ends, None, REAL_CLOCK, 1, CommandQueue(REAL_CLOCK))
        assert REAL_CLOCK.monotonic() - began > 0.4  # and not the millisecond of a disk
    assert looks.total() <= 1  # a slow machine may find that the last look was long ago


def test_a_server_that_is_killed_and_comes_back_has_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call waits for it; the epoch under way goes on where it was."""
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        forget_storages()
        job = make_job("rocksdb", "columnar", small=True)
        with TestDriver(job, tasks=3, storage="s3://tests/jobs") as driver:
            world = World(driver, random.Random(7))
            for _ in range(2):
                world.feed(30)
                driver.advance()
                server.kill()
                starting = threading.Thread(target=server.start)
                starting.start()
                world.feed(30)
                driver.run()
                starting.join()
            driver.finish()
            world.check()
    forget_storages()
