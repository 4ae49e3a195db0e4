"""Commands of the command line to a running driver: by its API, else by request files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from tests.support.asking import requests_left
from tests.support.changes import locked
from tests.support.cli import done, refused
from tests.support.processes import until
from tests.support.watching import (
    Client,
    LiveJob,
    Rescale,
    api_server,
    new_live_job,
    serving,
    show_parts,
)
from tests.unit.control.shops import shop

from headrace.testing import TestDriver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, home=tmp_path, memory_bus=False) as made:
        made.create("orders", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        made.feed("orders", [{"user": "ann", "n": 1, "at": 1_000}])
        made.run()
        yield made


@pytest.fixture
def live(driver: TestDriver) -> Iterator[LiveJob]:
    """A driver's process: its lock, and its API, whose job is about to start."""
    made = new_live_job("shop", driver.settings)
    server = api_server(made, driver.storage)
    server.start()
    with locked(driver, real_clock=True):
        yield made
    server.stop()


def asked(driver: TestDriver, *words: object) -> Any:
    return json.loads(done(*words, "--json", "--home", driver.home))


def forbid_requests(driver: TestDriver) -> Path:
    """Let nothing be left in the folder of requests; returns what is there instead."""
    path = driver.storage / "requests"
    path.write_bytes(b"")
    return path


def test_the_api_takes_commands_and_no_request_file_is_left(
    driver: TestDriver, live: LiveJob, tmp_path: Path
) -> None:
    show_parts(live, driver)
    forbid_requests(driver)
    with serving(driver):
        found = asked(driver, "jobs", "rescale", "shop", "--tasks", 2)
        assert found["before"] == {"orders.by_user": 4}
        assert found["tasks"] == {"orders.by_user": 2}
        [host] = asked(driver, "jobs", "restart", "shop")["hosts"]
        assert host in driver.parts[0].state.hosts
        said = refused("cluster", "drain", "host-0", "--job", "shop", "--home", driver.home)
        assert "is the only one that job" in said
        saved = asked(driver, "jobs", "savepoint", "shop", "--dir", tmp_path / "saved")
        assert saved["epoch"] == driver.parts[0].state.epoch
    assert driver.parts[0].state.task_counts == {"orders.by_user": 2}


def test_what_has_not_begun_finds_a_request_file(driver: TestDriver, live: LiveJob) -> None:
    del live
    with serving(driver):
        found = asked(driver, "jobs", "rescale", "shop", "--tasks", 2)
    assert found["tasks"] == {"orders.by_user": 2}
    assert requests_left(driver.storage) == []


def test_what_is_not_taken_in_time_is_taken_back(driver: TestDriver, live: LiveJob) -> None:
    show_parts(live, driver)
    forbid_requests(driver)
    words = ("jobs", "rescale", "shop", "--tasks", 2, "--wait", 0.2)
    assert "the driver did not take the request" in refused(*words, "--home", driver.home, code=3)
    driver.parts[0].serve_requests()
    assert driver.parts[0].state.task_counts == {"orders.by_user": 4}


def test_the_command_of_a_caller_that_has_gone_is_taken_back(
    driver: TestDriver, live: LiveJob
) -> None:
    show_parts(live, driver)
    queue, place = driver.parts[0].commands, Client(driver.storage, "shop").place
    url = urlsplit(place.url)
    body = json.dumps({"part": "shop", "command": {"tasks": 2}, "wait_s": 60})
    headers = {"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"}
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        connection.request("POST", "/v1/commands/rescale", body, headers)
        until(lambda: queue.pending(Rescale), "the command to come")
    until(lambda: not queue.pending(Rescale), "it to be taken back")
    driver.parts[0].serve_requests()
    assert driver.parts[0].state.task_counts == {"orders.by_user": 4}
