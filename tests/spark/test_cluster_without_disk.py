"""A cluster whose hosts have a network and a bucket in common, and no folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.hosts import feed_until, homes, small_executors
from tests.support.changes import begin_beside
from tests.support.cli import done
from tests.support.jobs import counting, flights, model, pairs_of, radar, radar_mistakes
from tests.support.processes import REAL_CLOCK, kill
from tests.support.runs import Driver, until
from tests.support.servers import S3Server
from tests.support.storages import StoredWorld, exchange_servers, forget_storages, new_name

import headrace as hr
from headrace.testing.cluster import SparkCluster
from headrace.testing.host_network import HostNetwork, can_make_networks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.skipif(not can_make_networks(), reason="makes networks, which only root may"),
]

JOB = "counting"
AWAY_S = 20.0
SHARE = 50
"""CI runs four hosts, which take minutes, once in fifty times."""


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    with HostNetwork() as made:
        yield made


@pytest.fixture
def server(
    tmp_path: Path, network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    """A bucket that all hosts reach, with the login in the environment."""
    with S3Server(tmp_path / "s3", host=network.gateway) as running:
        forget_storages()
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SPARK_LOCAL_IP", network.gateway)
        yield running
        forget_storages()


@pytest.fixture
def cluster(
    tmp_path: Path, network: HostNetwork, server: S3Server, request: pytest.FixtureRequest
) -> Iterator[SparkCluster]:
    """Two hosts, or as many as a test says: of this test's folders, each has but its own."""
    hidden = [tmp_path / name for name in ("home", "s3", "reader", "gates")]
    for folder in hidden:
        folder.mkdir(exist_ok=True)
    state, hosts = tmp_path / "state", getattr(request, "param", 2)
    with SparkCluster(
        tmp_path / "cluster",
        hosts,
        1024,
        state_dir=state,
        without=hidden,
        network=network,
    ) as running:
        yield running
    assert running.processes() == []


@pytest.fixture
def world(
    tmp_path: Path, network: HostNetwork, server: S3Server, cluster: SparkCluster
) -> StoredWorld:
    address = f"s3://{server.bucket}/{new_name()}"
    return StoredWorld(
        tmp_path / "home",
        f"{address}/jobs",
        f"bus.address={address}/bus",
        f"state.dir={tmp_path / 'state'}",
        f"spark.master={cluster.url}",
        f"spark.conf.spark.driver.host={network.gateway}",
        f"spark.conf.spark.driver.bindAddress={network.gateway}",
        "control.enabled=false",
        "job.tasks=4",
        "placement.wait_s=0.5",
        *small_executors(),
    )


def feed(world: StoredWorld, driver: Driver, count: int) -> None:
    """Append rows, and wait until they are committed."""
    world.feed(count)
    rows = sum(map(len, world.log))
    until(lambda: world.read_so_far(JOB) == rows, f"{rows} rows", driver)


def hosts_of(world: StoredWorld) -> set[str]:
    return set(homes(world, JOB).values())


def end(world: StoredWorld, job: hr.Job, tmp_path: Path) -> None:
    """End a job on a disk of its own."""
    last = world.settings("job.bounded=true", f"state.dir={tmp_path / 'last'}")
    assert hr.run(job, last).state.ended


def test_a_job_survives_a_server_of_exchange_files_and_then_a_host(
    tmp_path: Path, world: StoredWorld, cluster: SparkCluster
) -> None:
    with Driver(JOB, world) as driver:
        feed(world, driver, 40)
        feed_until(lambda: len(hosts_of(world)) == 2, lambda: feed(world, driver, 10))
        one = cluster.of("worker-1")
        feed_until(lambda: bool(exchange_servers(one)), lambda: feed(world, driver, 10))
        servers = exchange_servers(one)
        for process in servers:
            kill(process)
        feed(world, driver, 40)
        world.feed(100)
        cluster.kill_worker(1)
        feed(world, driver, 40)
        assert len(hosts_of(world)) == 1
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    end(world, counting(), tmp_path)
    assert model(world.log) == world.found()


@pytest.mark.soak(share=10)
@pytest.mark.timeout(600)
def test_epochs_commit_to_the_disk_of_the_driver_and_the_bucket_has_a_copy(
    tmp_path: Path, world: StoredWorld, cluster: SparkCluster
) -> None:
    """A host is lost, then the driver, and nothing with them; then the disk as well."""
    backup = "state.durability=backup(1s)"
    with Driver(JOB, world, backup) as driver:
        feed(world, driver, 40)
        feed_until(lambda: len(hosts_of(world)) == 2, lambda: feed(world, driver, 10))
        world.feed(100)
        cluster.kill_worker(1)
        feed(world, driver, 40)
        until(lambda: len(hosts_of(world)) == 1, "one host", driver)
        world.feed(100)
        driver.kill()
    with Driver(JOB, world, backup) as driver:
        feed(world, driver, 40)
        assert world.counts() == model(world.log)["counts"]
        driver.kill()
    for folder in (tmp_path / "state").iterdir():  # it is a mount of the other hosts
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    with Driver(JOB, world, backup) as driver:
        feed(world, driver, 40)
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    assert hr.run(counting(), world.settings("job.bounded=true", backup)).state.ended
    found, expected = world.found(), model(world.log)
    assert found["store"] == expected["store"]
    assert {key: sorted(set(seen)) for key, seen in found["counts"].items()} == expected["counts"]
    assert sorted(set(found["windows"])) == expected["windows"]
    assert sorted(set(found["totals"])) == expected["totals"]


READ = """
import json
import os
import sys

import pyarrow as pa

from headrace.spark import session

home, master, conf = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = session(master, home=home, conf=conf)
table = spark.read.format("headrace").option("home", home).option("table", "events").load()
def is_away():
    return not os.listdir(home)
def away(batches):
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"away": [is_away()] * len(batch)})
assert not is_away()
print(table.rdd.getNumPartitions())
print(table.mapInArrow(away, "away boolean").where("away").count())
print(json.dumps([list(row) for row in table.select("id", "kind", "v", "at").collect()]))
"""


@pytest.mark.soak(share=10)
@pytest.mark.timeout(600)
def test_executors_write_a_table_to_the_bucket_and_read_it_there(
    tmp_path: Path, world: StoredWorld, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's slots put its files, and tasks of another application fetch them."""
    warehouse = world.settings().bus.address.removesuffix("bus") + "warehouse"
    aim = f"warehouse.address={warehouse}"
    with Driver("tabling", world, aim) as driver:
        for _ in range(3):
            world.feed(40)
            rows = sum(map(len, world.log))
            until(lambda: world.read_so_far("tabling") == rows, f"{rows} rows", driver)  # noqa: B023
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    monkeypatch.setenv("HEADRACE__WAREHOUSE__ADDRESS", warehouse)
    disk = {"spark.executorEnv.HEADRACE_STATE_DIR": str(tmp_path / "state")}
    conf = world.settings().spark.conf | disk
    words = [sys.executable, "-c", READ, str(world.home), cluster.url, json.dumps(conf)]
    read = subprocess.run(words, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    parts, away, found = map(json.loads, read.stdout.strip().splitlines()[-3:])
    wanted = [list(row.values()) for rows in world.log for row in rows]
    assert parts > 1
    assert away == len(wanted), "read where the home is"
    assert sorted(found) == sorted(wanted)


def has_standbys(world: StoredWorld) -> bool:
    """Say whether each store that is copied has a copy that holds something."""
    held = world.state(JOB).standbys.values()
    return bool(held) and all(found and found[0].epoch >= 0 for found in held)


def host_with_copied_tasks(world: StoredWorld, cluster: SparkCluster) -> int:
    """Return the number of a host whose tasks have copies elsewhere."""
    state = world.state(JOB)
    wanted = {state.tasks[name].host for name in state.standbys}
    ids = [(cluster.state_dir(at) / "host-id").read_text() for at in range(cluster.workers)]
    return next(at for at, one in enumerate(ids) if one in wanted)


@pytest.mark.soak(share=SHARE)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [4], indirect=True)
def test_hosts_the_bucket_and_the_driver_die_one_after_the_other(
    tmp_path: Path,
    world: StoredWorld,
    cluster: SparkCluster,
    server: S3Server,
) -> None:
    """Counts, windows, running totals and a join, with standbys, and rescaled while it runs."""
    copies = ("job.hotstandby.enabled=true", "job.hotstandby.replicationcount=1")
    with Driver("joining", world, *copies) as driver:
        feed(world, driver, 40)
        feed_until(
            lambda: len(hosts_of(world)) == 4 and has_standbys(world),
            lambda: feed(world, driver, 10),
        )
        lost = host_with_copied_tasks(world, cluster)
        world.feed(100)
        cluster.kill_worker(lost)
        feed(world, driver, 40)
        assert world.state(JOB).counts["standby.failover"] > 0
        cluster.start_worker(lost)
        cluster.await_worker(lost)

        world.feed(100)
        server.kill()
        REAL_CLOCK.sleep(AWAY_S)
        server.start()
        feed(world, driver, 40)

        sets = [word for one in world.sets for word in ("--set", one)]
        assert "4 to 6 tasks" in done("jobs", "rescale", JOB, "--tasks", 6, *sets)
        feed(world, driver, 100)
        away = [*sets, "--set", f"state.dir={tmp_path / 'elsewhere'}"]
        saved = json.loads(done("jobs", "savepoint", JOB, "--name", "s", "--json", *away))
        assert saved["path"].endswith("/jobs/_savepoints/counting/s")
        assert saved["path"].startswith("s3://")

        world.feed(100)
        driver.kill()
    with Driver("joining", world, *copies) as driver:
        feed(world, driver, 40)
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    end(world, counting(pairs=True), tmp_path)
    assert model(world.log) == world.found()
    said = begin_beside(world, counting(pairs=True), saved["path"], *away[-1:])
    assert f"begins with epoch {saved['epoch'] + 1:,}, from savepoint {saved['path']}" in said
    found = Counter((row["id"], row["v"], row["later"]) for row in world.rows("pairs"))
    assert pairs_of(world.log) == found


@pytest.mark.soak(share=SHARE)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cluster", [4], indirect=True)
def test_the_demo_ends_as_in_duckdb_though_a_host_and_the_driver_die(
    tmp_path: Path, world: StoredWorld, cluster: SparkCluster
) -> None:
    """The flights of a year, a twelfth at a time."""
    year = flights()
    stream, twelfth = year.create(world.bus), -(-len(year.table) // 12)

    def append(months: range, driver: Driver) -> None:
        for month in months:
            stream.append_rows(year.table.slice(month * twelfth, twelfth))
        rows = min(len(year.table), months.stop * twelfth)
        until(lambda: world.read_so_far("delay-radar") == rows, f"{rows} flights", driver)

    with Driver("radar", world) as driver:
        append(range(2), driver)
        cluster.kill_worker(2)
        append(range(2, 6), driver)
        driver.kill()
    with Driver("radar", world) as driver:
        append(range(6, 12), driver)
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    end(world, radar(), tmp_path)
    assert radar_mistakes(world.bus) == []
