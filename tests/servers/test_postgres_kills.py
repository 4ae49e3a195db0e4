"""Driver and server killed for real, in the middle of a commit too: each row is there once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.servers.conftest import ask
from tests.servers.test_postgres_sink import numbered
from tests.support.changes import context_of
from tests.support.processes import Deadline, SystemClock, kill, until, wait_until
from tests.support.runs import JobControl
from tests.support.servers import PostgresServer
from tests.support.soak import more

import headrace as hr
from headrace import Job
from headrace.bus import open_bus
from headrace.coordinator.deployment import deploy
from headrace.coordinator.driver_loop import RetryPolicy, run_epochs, start_driver
from headrace.testing import TestDriver, each_at

POINTS = ["commit.published", "sink.sent", "sink.committed"]
FOREVER = "synchronous_standby_names = 'nobody'"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def killed() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def server(killed: PostgresServer) -> PostgresServer:
    """A server as it was at first, though the test before has set it and killed it."""
    killed.kill()
    go_on(killed)
    killed.start()
    ask(killed.url, "DROP SCHEMA public CASCADE")
    ask(killed.url, "CREATE SCHEMA public")
    return killed


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


def hang_in_commit(url: str) -> None:
    """Let each commit wait, once it is on disk, for a standby that never comes."""
    ask(url, f"ALTER SYSTEM SET {FOREVER}")
    ask(url, "SELECT pg_reload_conf()")
    until(lambda: ask(url, "SHOW synchronous_standby_names") == [("nobody",)], "the setting")
    # Commits wait once the checkpointer has read the setting, as it does between checkpoints.
    for _ in range(2):
        ask(url, "CHECKPOINT")


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

        away = pytest.raises(hr.sinks.ReceiverAwayError, match="does not answer")
        with each_at("sink.sent", server.kill), away:
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
        hang_in_commit(server.url)
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
from tests.servers.test_postgres_kills import hang_in_commit
from tests.servers.test_postgres_sink import numbered
from headrace.faults import injected
from headrace.testing import TestDriver
import headrace as hr

url, home, point = sys.argv[1:]

def hook(name):
    if (name, point) == ("sink.due", "hang"):
        hang_in_commit(url)
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

with injected(hook):
    job = numbered(hr.sinks.postgres(url, "rows"))
    TestDriver(job, tasks=2, home=Path(home), memory_bus=False).run()
"""


def in_a_process(server: PostgresServer, home: Path, point: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _DRIVER, server.url, str(home), point])


@pytest.mark.parametrize("point", more(["sink.sent"], POINTS))
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
    process = in_a_process(server, tmp_path, "hang")
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

    def notify(line: str) -> None:
        told.append(line)
        if "waits" in line:
            server.start()

    with started(server, tmp_path) as driver:
        feed(driver, 50)
        driver.run()
        feed(driver, 50)
        driver.coordinator.end_at_present()
        server.kill()
        control, clock = JobControl(), SystemClock()
        retry = RetryPolicy(clock, control.stop, None, notify)
        bus = open_bus(str(driver.settings.bus_dir))
        run_epochs(driver.coordinator, bus, clock, control, lambda summary: None, retry=retry)
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

    def notify(line: str) -> None:
        told.append(line)
        if "waits" in line:
            server.start()

    with started(server, tmp_path) as driver:
        feed(driver, 50)
        assert driver.advance_with_crash("commit.published")
        server.kill()
        driver.crash()
        never = JobControl().stop
        for limit, line in ((0.0, lambda text: None), (None, notify)):
            (deployment,) = deploy(driver.job.build(), context_of(driver))
            coordinator = deployment.coordinator(driver.runner, context_of(driver))
            retry = RetryPolicy(SystemClock(), never, limit, line)
            if limit is None:
                assert start_driver(coordinator, retry)
            else:
                with pytest.raises(hr.sinks.ReceiverAwayError, match="does not answer"):
                    start_driver(coordinator, retry)
            coordinator.close()
        check(server, 50)
    assert told[0].startswith("the server at postgresql://tester@/postgres, for table rows, does")
    assert told[0].endswith("the job waits for an answer")
    assert told[1].startswith("there is an answer again after")
