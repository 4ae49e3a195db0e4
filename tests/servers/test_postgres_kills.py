"""Driver and server killed for real, in the middle of a commit too: each row is there once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from tests.servers.test_postgres_sink import ask, numbered

import headrace as hr
from headrace.bus.address import open_bus
from headrace.clock import Deadline, SystemClock
from headrace.coordinator.deploy import deploy
from headrace.coordinator.loop import Control, begin, drive
from headrace.coordinator.patience import Patience
from headrace.faults import injected
from headrace.graph.jobs import Job
from headrace.testing import TestDriver
from headrace.testing.postgres import PostgresServer
from headrace.testing.processes import kill, wait_until

FOREVER = "synchronous_standby_names = 'nobody'"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def job_of(server: PostgresServer) -> Job:
    return numbered(hr.sinks.postgres(server.url, "rows"))


def started(server: PostgresServer, home: Path) -> TestDriver:
    driver = TestDriver(job_of(server), tasks=2, home=home, memory_bus=False)
    if "in" not in driver.bus.names():
        driver.create("in", {"id": pa.int64()}, key=["id"])
    return driver


def feed(driver: TestDriver, rows: int) -> None:
    driver.feed("in", [{"id": number % 5} for number in range(rows)])


def check(server: PostgresServer, rows: int) -> None:
    """Each message made one row, numbered without a gap."""
    found = sorted(ask(server.url, "SELECT * FROM rows"))
    assert len(found) == rows
    assert found == sorted((one, n) for one in range(5) for n in range(1, rows // 5 + 1))


def hang_in_commit(server: PostgresServer) -> None:
    """Let each commit wait, once it is on disk, for a standby that never comes."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {FOREVER}")
        connection.execute("SELECT pg_reload_conf()")


def go_on(server: PostgresServer) -> None:
    path = server.folder / "data" / "postgresql.auto.conf"
    path.write_text("")


def is_committing(server: PostgresServer) -> bool:
    return bool(ask(server.url, WAITING))


def until_committing(server: PostgresServer) -> None:
    deadline = Deadline(SystemClock(), 30)
    wait_until(lambda: is_committing(server), deadline, "a commit that waits")


def test_a_server_killed_before_the_commit_has_nothing_of_the_epoch(
    server: PostgresServer, tmp_path: Path
) -> None:
    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
        feed(driver, 50)

        def hook(point: str) -> None:
            if point == "sink.sent":
                server.kill()

        with injected(hook), pytest.raises(hr.sinks.ReceiverAwayError, match="does not answer"):
            driver.advance()
        with pytest.raises(hr.sinks.ReceiverAwayError, match="check that it runs"):
            driver.advance()
        server.start()
        check(server, 50)
        driver.run()
        check(server, 100)


def test_a_server_killed_in_mid_commit_has_the_epoch_once(
    server: PostgresServer, tmp_path: Path
) -> None:
    """The commit is on its disk, but nobody was told so: the number of the epoch tells."""
    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
        hang_in_commit(server)
        feed(driver, 50)

        def end() -> None:
            until_committing(server)
            server.kill()

        killer = threading.Thread(target=end)
        killer.start()
        with pytest.raises(hr.sinks.ReceiverAwayError):
            driver.advance()
        killer.join()
        go_on(server)
        server.start()
        check(server, 100)
        driver.run()
        check(server, 100)
        feed(driver, 50)
        driver.run()
        check(server, 150)


_DRIVER = """
import os, signal, sys
from pathlib import Path
from tests.servers.test_postgres_sink import numbered
from headrace.faults import injected
from headrace.testing import TestDriver
import headrace as hr

url, home, point = sys.argv[1:]

def hook(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

with injected(hook):
    job = numbered(hr.sinks.postgres(url, "rows"))
    TestDriver(job, tasks=2, home=Path(home), memory_bus=False).run()
"""


def in_a_process(server: PostgresServer, home: Path, point: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _DRIVER, server.url, str(home), point])


@pytest.mark.parametrize("point", ["commit.published", "sink.sent", "sink.committed"])
def test_a_driver_that_is_killed_is_followed_by_one_that_ends_its_epoch(
    server: PostgresServer, tmp_path: Path, point: str
) -> None:
    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
    with started(server, tmp_path) as driver:
        feed(driver, 50)
    assert in_a_process(server, tmp_path, point).wait(60) == -9
    assert len(ask(server.url, "SELECT * FROM rows")) == (100 if point == "sink.committed" else 50)
    with started(server, tmp_path) as driver:
        driver.start()
        check(server, 100)
        feed(driver, 50)
        driver.run()
        check(server, 150)


def test_a_driver_killed_in_mid_commit_is_followed_by_one_that_sends_nothing_twice(
    server: PostgresServer, tmp_path: Path
) -> None:
    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
        feed(driver, 50)
    hang_in_commit(server)
    process = in_a_process(server, tmp_path, "")
    until_committing(server)
    kill(process.pid)
    process.wait()
    go_on(server)
    ask(server.url, "SELECT pg_reload_conf()")
    deadline = Deadline(SystemClock(), 30)
    wait_until(lambda: not is_committing(server), deadline, "the end of the commit")
    with started(server, tmp_path) as driver:
        driver.start()
        check(server, 100)
        feed(driver, 50)
        driver.run()
        check(server, 150)


def test_a_running_job_says_that_it_waits_and_goes_on(
    server: PostgresServer, tmp_path: Path
) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if "waits" in line:
            server.start()

    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
        feed(driver, 50)
        driver.coordinator.end_at_present()
        server.kill()
        control, clock = Control(), SystemClock()
        patience = Patience(clock, control.stop, None, tell)
        bus = open_bus(str(driver.settings.bus_dir))
        drive(driver.coordinator, bus, clock, control, lambda summary: None, patience=patience)
        bus.close()
        assert driver.coordinator.has_ended
        check(server, 100)
    first, last = told
    assert first.startswith("the server at postgresql://tester@/postgres, for table rows, does not")
    assert first.endswith("the job waits for an answer")
    assert last.startswith("there is an answer again after")


def test_a_job_that_starts_while_the_server_is_away_waits_for_it(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Also with an epoch that is committed and not handed on; past the limit that is an error."""
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if "waits" in line:
            server.start()

    with started(server, tmp_path) as driver:
        feed(driver, 50)
        assert driver.advance_with_crash("commit.published")
        server.kill()
        driver.crash()
        never = Control().stop
        for limit, line in ((0.0, lambda text: None), (None, tell)):
            (deployment,) = deploy(
                driver._job.build(), driver.bus, driver.settings, driver.clock, driver._files
            )
            coordinator = deployment.coordinator(
                driver.runner, driver.bus, driver.clock, driver.settings
            )
            patience = Patience(SystemClock(), never, limit, line)
            if limit is None:
                assert begin(coordinator, patience)
            else:
                with pytest.raises(hr.sinks.ReceiverAwayError, match="does not answer"):
                    begin(coordinator, patience)
            coordinator.close()
        check(server, 50)
    assert told[0].startswith("the server at postgresql://tester@/postgres, for table rows, does")
    assert told[0].endswith("the job waits for an answer")
    assert told[1].startswith("there is an answer again after")
