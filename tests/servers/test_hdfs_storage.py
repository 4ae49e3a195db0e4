"""A real HDFS holds the contracts of an object storage and of a commit log, and a job's storage."""

from __future__ import annotations

import datetime as dt
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, run

import pyarrow as pa
import pytest
from tests.sim.world import EPOCH, World, make_job
from tests.support.changes import with_settings
from tests.support.jobs import counting, model
from tests.support.runs import run_driver
from tests.support.servers import HdfsServer
from tests.support.storages import StoredWorld, forget_storages, new_name, remove_object

import headrace as hr
from headrace.cloud.hdfs import HdfsStorage
from headrace.errors import InvalidInputError
from headrace.objects import ObjectStorage, StorageAwayError
from headrace.testing import FAULT_POINTS, TestDriver
from headrace.testing.commit_log_contract import CommitLogContract
from headrace.testing.hdfs_server import DATA, NAMES
from headrace.testing.object_storage_contract import ObjectStorageContract

BOUNDED = ("job.bounded=true", "control.enabled=false", "epoch.max_rows=200")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


@pytest.fixture(autouse=True)
def hdfs(server: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> HdfsServer:
    forget_storages()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


class TestHdfsStorage(ObjectStorageContract):
    @pytest.fixture(autouse=True)
    def name(self, hdfs: HdfsServer) -> None:
        self.hdfs = hdfs

    @pytest.fixture
    def folder(self) -> str:
        return f"tests/contract/{new_name()}"

    def open(self) -> ObjectStorage:
        return HdfsStorage("hdfs", self.hdfs.name)


@pytest.mark.soak
class TestCommitLog(CommitLogContract):
    """Each process has a folder of its own; what they share is HDFS."""

    opener = "tests.support.logs:open_log"

    @pytest.fixture(autouse=True)
    def shared(self, hdfs: HdfsServer) -> None:
        self.environment, self.name = hdfs.environment, hdfs.name

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "_remote" / "hdfs" / self.name / "tests" / tmp_path.name / "log")


def test_calls_wait_for_servers_that_come_back(hdfs: HdfsServer) -> None:
    storage, folder = HdfsStorage("hdfs", hdfs.name), f"tests/{new_name()}"
    assert storage.put_new(f"{folder}/a", b"a")
    hdfs.kill(NAMES)
    hdfs.pause(DATA)
    again = threading.Thread(target=hdfs.start)
    again.start()
    assert storage.put_new(f"{folder}/b", b"b")
    again.join()
    assert not storage.put_new(f"{folder}/a", b"c")
    assert storage.get(f"{folder}/a") == b"a"
    assert storage.entries(folder) == ["a", "b"]


def test_a_storage_that_stays_away_says_so(hdfs: HdfsServer) -> None:
    away = HdfsStorage("hdfs", "127.0.0.1:1", retry_timeout_s=0.5)
    with pytest.raises(
        StorageAwayError, match=r"hdfs://127\.0\.0\.1:1 does not answer for tests/a"
    ):
        away.put_new("tests/a", b"")


def test_a_rename_whose_answer_was_lost_is_ones_own(
    hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, folder = HdfsStorage("hdfs", hdfs.name), f"tests/{new_name()}"
    client = storage._client
    lost: list[object] = []

    class Losing:
        def __getattr__(self, name: str) -> object:
            return getattr(client, name)

        def rename(self, *words: object) -> None:
            client.rename(*words)
            if not lost:
                lost.append(words)
                raise OSError("connection reset by peer")

    monkeypatch.setattr(storage, "_client", Losing())
    assert storage.put_new(f"{folder}/a", b"mine")
    assert lost
    assert not storage.put_new(f"{folder}/a", b"another")
    assert storage.get(f"{folder}/a") == b"mine"
    assert [one.name for one in storage.objects(folder)] == [f"{folder}/a"]
    assert len(list(client.list_status(f"/{folder}"))) == 1, "nothing is left beside it"


def test_folders_go_with_their_last_object(hdfs: HdfsServer) -> None:
    storage, folder = HdfsStorage("hdfs", hdfs.name), f"tests/{new_name()}"
    storage.put(f"{folder}/b/c/d", b"x")
    storage.delete(f"{folder}/b/c/d")
    assert storage.entries(folder) == []
    assert storage.info(f"{folder}/b/c") is None
    assert storage._status(f"/{folder}/b") is None


def test_a_driver_that_is_killed_is_followed_by_one_with_another_disk(
    hdfs: HdfsServer, tmp_path: Path
) -> None:
    """It dies between commit and publication; the next one has HDFS and the streams."""
    world = StoredWorld(tmp_path / "home", f"hdfs://{hdfs.name}/tests/{new_name()}/jobs")
    world.feed(300)
    first = (*BOUNDED, f"state.dir={tmp_path / 'first'}")
    said = run_driver("counting", world, *first, die_at=("commit.published", 2), way="standalone")
    assert said["code"] == -signal.SIGKILL, said["story"]
    assert 0 < world.read_so_far("counting") < 600
    result = hr.run(counting(), world.settings(*BOUNDED, f"state.dir={tmp_path / 'second'}"))
    assert result.state.ended
    assert model(world.log) == world.found()
    assert sorted(path.name for path in world.home.iterdir()) == ["bus"]


@pytest.mark.soak
def test_tables_and_copies_of_state_survive_the_loss_of_all_disks(
    hdfs: HdfsServer, tmp_path: Path
) -> None:
    """Epochs commit to the disk of one host; the copy, and the table of all rows, are in HDFS."""
    place = f"hdfs://{hdfs.name}/tests/{new_name()}"

    @hr.job("history")
    def history(g: hr.Graph) -> None:
        events = g.input("in", time="at").partition_by("n")
        events.aggregate(name="totals", c=hr.agg.count())
        events.send_to(g.output_table("history"))

    with TestDriver(
        history, tasks=2, hosts=2, durability="backup(30s)", storage=f"{place}/jobs"
    ) as driver:
        with_settings(driver, "warehouse", address=f"{place}/warehouse")
        driver.create("in", {"at": pa.timestamp("us", "UTC"), "n": pa.int64()})
        for n in range(6):
            at = dt.datetime(2013, 1, 1 + n % 2, tzinfo=dt.UTC)
            driver.feed("in", [{"at": at, "n": n}])
            driver.advance()
            if n == 3:
                assert driver.copy().failures == 0
        found = hr.warehouse.Table(driver.settings.warehouse_dir / "history")
        assert sorted(found.to_arrow().column("n").to_pylist()) == list(range(6))
        driver.crash(lose_hosts=[0, 1])
        remove_object(f"{place}/jobs/history/lease.json")
        driver.start()
        assert driver.coordinator.state.counts["in"] == 4
        driver.finish()
        found.refresh()
        assert set(found.to_arrow().column("n").to_pylist()) == set(range(6))
        assert [day.is_complete for day in found.days] == [True, True]


@pytest.mark.soak
def test_whatever_dies_and_whichever_disk_is_lost_hdfs_has_it_all(hdfs: HdfsServer) -> None:
    """Each step of an epoch is the last of a process once; every third time all disks go."""
    points = [one for one in FAULT_POINTS if one.startswith(EPOCH)]
    job = make_job("rocksdb", "columnar", small=True)
    address = f"hdfs://{hdfs.name}/tests/{new_name()}"
    storage, bus = f"{address}/jobs", f"{address}/bus"
    with TestDriver(job, tasks=3, hosts=2, max_rows=60, storage=storage, bus=bus) as driver:
        world, died = World(driver, random.Random(7)), 0
        for number, point in enumerate(points):
            world.feed(20)
            died += driver.advance_with_crash(point)
            if number % 3 == 0:
                driver.crash(lose_hosts=(0, 1))
        assert died > len(points) // 2
        driver.finish()
        world.check()


def test_mistakes_have_plain_messages(
    hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = f"from headrace.cloud.hdfs import *; HdfsStorage('hdfs', '{hdfs.name}').put('a', b'')"
    stranger = {**os.environ, "HADOOP_USER_NAME": "nobody"}
    found = run([sys.executable, "-c", used], env=stranger, text=True, stderr=PIPE, check=False)
    assert re.search(r"refuses a: .*Permission denied: user=nobody", found.stderr)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(InvalidInputError, match=r"does not set dfs.datanode.synconclose=true"):
        HdfsStorage("hdfs", hdfs.name)
    assert os.listdir(tmp_path) == []
