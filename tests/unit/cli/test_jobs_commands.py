"""``headrace jobs``: what is told of jobs, and jobs that are set back, stopped, deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import lock_holder, locked, storages
from tests.support.cli import done, headrace, refused
from tests.support.watching import described

import headrace as hr
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: Any) -> None:
    orders = g.input("orders", time="at", out_of_orderness="1s")
    orders.partition_by("user").aggregate(name="spent", n=hr.agg.count()).send_to(g.output("spent"))


@hr.job("shop")
def other_shop(g: Any) -> None:
    orders = g.input("orders", time="at", out_of_orderness="1s").filter(lambda order: order.n > 1)
    orders.partition_by("n").aggregate(name="by_n", rows=hr.agg.count()).send_to(g.output("by_n"))


COLUMNS = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}


def orders(*users: str) -> list[dict[str, Any]]:
    return [{"user": user, "n": at, "at": 1_000_000 + at} for at, user in enumerate(users)]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, tasks=2, home=tmp_path, memory_bus=False, key_groups=8) as made:
        made.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        made.feed("orders", orders("ann", "bob", "ann"))
        made.run()
        made.feed("orders", orders("bob", "cat"))
        made.run()
        yield made


def jobs(driver: TestDriver, *words: object) -> Any:
    return json.loads(done("jobs", *words, "--json", "--home", driver.home))


def again(driver: TestDriver, job: Any = shop) -> None:
    """Go on with another driver, as the next ``headrace run`` would."""
    driver.crash()
    driver.job = job
    driver.run()


def counts(driver: TestDriver) -> dict[str, int]:
    """The last count of each user."""
    return {row["user"]: row["n"] for row in driver.output("spent")}


def test_a_job_that_is_about_to_start_hides_no_other(driver: TestDriver) -> None:
    (driver.home / "jobs" / "another" / "manifests").mkdir(parents=True)
    assert jobs(driver, "ls")["job"] == "shop"


def test_a_stopped_job_is_told(driver: TestDriver) -> None:
    found = jobs(driver, "describe", "shop")
    assert (found["job"], found["status"], found["process"]) == ("shop", "stopped", None)
    assert (found["rows"], found["lag"]) == (5, 0)
    assert found["inputs"][0]["stream"] == "orders"
    assert sum(found["inputs"][0]["offsets"]) == 5
    assert found["stages"][0]["tasks"] == 2
    assert found["outputs"] == ["spent"]
    assert found["state_bytes"] > 0
    driver.feed("orders", orders("eve"))
    assert jobs(driver, "ls")["lag"] == 1
    text = done("jobs", "ls", "--home", driver.home)
    assert text.splitlines()[1].split()[:2] == ["shop", "stopped"]
    assert "kept from 0" in done("jobs", "describe", "shop", "--home", driver.home)


def test_state_is_told_from_the_first_epoch_on(tmp_path: Path) -> None:
    with TestDriver(shop, tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", COLUMNS, time="at", key=["user"])
        driver.feed("orders", orders("ann", "bob"))
        summary = driver.advance()
        assert summary is not None
        assert jobs(driver, "describe", "shop")["state_bytes"] == summary.state_bytes > 0


def test_the_size_of_the_state_follows_epochs_and_rescales(tmp_path: Path) -> None:
    """A driver counts only those tasks again that have changed."""
    with TestDriver(shop, tasks=4, home=tmp_path, memory_bus=False) as driver:
        driver.create("orders", COLUMNS, time="at", key=["user"])
        for users, tasks in (("abcdefgh", 4), ("a", 4), ("ah", 1), ("ij", 2), ("a", 2)):
            driver.feed("orders", orders(*users))
            driver.coordinator.rescale(tasks)
            summary = driver.advance()
            assert summary is not None
            assert jobs(driver, "describe", "shop")["state_bytes"] == summary.state_bytes > 0


def test_a_home_without_jobs(tmp_path: Path) -> None:
    assert "no jobs in" in done("jobs", "ls", "--home", tmp_path)
    assert "no committed epoch of job 'x'" in refused("jobs", "describe", "x", "--home", tmp_path)


def test_a_damaged_job_is_told_and_can_be_deleted(driver: TestDriver) -> None:
    for path in (driver.storage / "manifests").iterdir():
        path.write_bytes(b"no manifest")
    driver.crash()
    found = jobs(driver, "ls")
    assert found["status"] == "damaged"
    assert "does not match its digest" in found["problem"]
    assert "problem" in done("jobs", "describe", "shop", "--home", driver.home)
    jobs(driver, "delete", "shop", "--yes")
    assert not driver.storage.exists()


def test_a_running_job_is_told_and_not_touched(driver: TestDriver) -> None:
    driver.crash()
    with locked(driver, real_clock=True):
        found = jobs(driver, "ls")
        assert found["status"] == "running"
        assert found["process"] is not None
        for words in (["reset"], ["rewind", "--to", 1], ["delete", "--yes"]):
            name, *options = words
            told = refused("jobs", name, "shop", *options, "--home", driver.home, code=4)
            assert "stop it first: headrace jobs stop shop" in told
    assert jobs(driver, "ls")["status"] == "stopped"


def test_reset_reads_all_again_without_state(driver: TestDriver) -> None:
    before = driver.coordinator.state
    told = jobs(driver, "reset", "shop")
    assert told["inputs"] == {"orders": [0, 0]}
    assert told["epoch"] == before.epoch + 1
    assert jobs(driver, "ls")["status"] == "reset"
    again(driver)
    assert driver.coordinator.state.lineage != before.lineage
    assert counts(driver) == {"ann": 2, "bob": 2, "cat": 1}
    assert jobs(driver, "ls")["rows"] == 5


def test_reset_to_the_end_and_to_an_offset(driver: TestDriver) -> None:
    jobs(driver, "reset", "shop", "--from", "latest")
    again(driver)
    driver.feed("orders", orders("ann"))
    driver.run()
    assert counts(driver)["ann"] == 1
    ends = driver.bus.stream("orders").ends()
    partition = ends.index(max(ends))
    driver.crash()
    at = f"orders/{partition}={ends[partition] - 1}"
    told = jobs(driver, "reset", "shop", "--from", "latest", "--offset", at)
    assert told["inputs"]["orders"][partition] == ends[partition] - 1
    again(driver)
    assert driver.coordinator.state.counts["in"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "soon"], "--from 'soon' cannot be read; expected earliest, latest, or a time"),
        (["--offset", "orders"], "expected INPUT/PARTITION=N, such as orders/0=1000"),
        (["--offset", "other/0=1"], "no input 'other'; found orders"),
        (["--offset", "orders/7=1"], "input 'orders' has partitions 0 to 1"),
        (["--offset", "orders/0=99"], "expected an offset from 0 to"),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    driver: TestDriver, words: list[str], message: str
) -> None:
    epoch = driver.coordinator.state.epoch
    driver.crash()
    assert message in refused("jobs", "reset", "shop", *words, "--home", driver.home)
    assert jobs(driver, "ls")["epoch"] == epoch


def test_a_reset_job_may_have_another_graph(driver: TestDriver) -> None:
    driver.crash()
    jobs(driver, "reset", "shop")
    again(driver, other_shop)
    assert [(row["n"], row["rows"]) for row in driver.output("by_n")] == [(2, 1)]
    assert jobs(driver, "describe", "shop")["outputs"] == ["by_n"]


def test_rewind_takes_state_and_inputs_back(driver: TestDriver) -> None:
    state = driver.coordinator.state
    driver.crash()
    told = jobs(driver, "rewind", "shop", "--to", "-1")
    assert told == {"job": "shop", "epoch": state.epoch + 1, "rewound_to": state.epoch - 1}
    assert jobs(driver, "describe", "shop")["lag"] == 2
    again(driver)
    assert counts(driver) == {"ann": 2, "bob": 2, "cat": 1}
    assert jobs(driver, "rewind", "shop", "--to", state.epoch)["rewound_to"] == state.epoch
    again(driver)
    assert jobs(driver, "describe", "shop")["lag"] == 0


def test_a_reset_can_be_taken_back(driver: TestDriver) -> None:
    epoch = driver.coordinator.state.epoch
    driver.crash()
    jobs(driver, "reset", "shop")
    jobs(driver, "rewind", "shop", "--to", epoch)
    again(driver)
    assert jobs(driver, "describe", "shop")["rows"] == 5
    driver.feed("orders", orders("ann"))
    driver.run()
    assert counts(driver)["ann"] == 3


def test_rewind_to_a_time(driver: TestDriver) -> None:
    state = driver.coordinator.state
    driver.crash()
    when = datetime.fromtimestamp(driver.clock.now_ms() / 1000, UTC).isoformat()
    assert jobs(driver, "rewind", "shop", "--to", when)["rewound_to"] == state.epoch
    told = refused("jobs", "rewind", "shop", "--to", "2001-01-01", "--home", driver.home)
    assert "the oldest epoch of job 'shop' that is kept, 0, was committed after that" in told
    told = refused("jobs", "rewind", "shop", "--to", "99", "--home", driver.home)
    assert "epoch 99 of job 'shop' is not committed" in told
    told = refused("jobs", "rewind", "shop", "--to", "noon", "--home", driver.home)
    assert "--to 'noon' cannot be read; expected an epoch, -5, or a time" in told


def test_delete_asks_first_and_leaves_the_streams(driver: TestDriver) -> None:
    """The next job of the name counts its drivers on, for streams know those of before."""
    again(driver)
    driver.crash()
    assert "add --yes" in refused("jobs", "delete", "shop", "--home", driver.home)
    jobs(driver, "delete", "shop", "--yes")
    assert storages(driver) == []
    assert list(driver.settings.jobs_dir.iterdir()) == []
    assert "there are no jobs yet" in refused("jobs", "delete", "shop", "-y", "--home", driver.home)
    again(driver)
    assert driver.coordinator.state.counts["in"] == 5


def test_stop_waits_until_the_driver_is_gone(driver: TestDriver) -> None:
    """The process stands for a driver: it has the lock, and lets go of it on SIGTERM."""
    epoch = driver.coordinator.state.epoch
    driver.crash()
    with lock_holder(driver) as process:
        told = jobs(driver, "stop", "shop")
        stopped = {"job": "shop", "process": process.pid, "epoch": epoch}
        assert told == {**stopped, "by": "signal", "goes_on_in": []}
        assert process.wait(10) == 0
    assert described(driver).process is None
    told = refused("jobs", "stop", "shop", "--home", driver.home)
    assert "job 'shop' does not run; its status is stopped" in told


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[TestDriver]:
    """A job whose epochs commit to this host's disk; who changes it need not say so."""
    with TestDriver(
        shop, tasks=2, home=tmp_path, memory_bus=False, key_groups=8, durability="backup(30s)"
    ) as made:
        # Where commands look for it.
        made.state_dir = lambda host: tmp_path / "state"  # type: ignore[method-assign]
        state = replace(made.settings.state, dir=tmp_path / "state")
        made.settings = replace(made.settings, state=state)
        made.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        made.feed("orders", orders("ann", "bob", "ann"))
        made.run()
        made.copy()
        yield made


def test_a_job_that_commits_to_this_host_is_rescaled_there(copying: TestDriver) -> None:
    """Also with a copy that is up to the last epoch, which is not what is rescaled."""
    before = copying.coordinator.state
    copying.crash()
    told = jobs(copying, "rescale", "shop", "--tasks", 3)
    assert (told["before"], told["epoch"]) == (before.task_counts, before.epoch + 1)
    again(copying)
    assert set(copying.coordinator.state.task_counts.values()) == {3}
    copying.feed("orders", orders("bob", "cat"))
    copying.run()
    assert counts(copying) == {"ann": 2, "bob": 2, "cat": 1}


def test_a_running_job_that_commits_to_this_host_is_asked(copying: TestDriver) -> None:
    """Its driver is not fenced by who finds nobody at the copy."""
    with locked(copying, real_clock=True):
        words = ("jobs", "rescale", "shop", "--tasks", 3, "--wait", 0, "--home", copying.home)
        assert "the driver did not take the request" in refused(*words, code=3)
    copying.feed("orders", orders("bob"))
    copying.run()
    assert copying.copy().failures == 0


def test_a_change_that_could_not_be_copied_says_so(copying: TestDriver) -> None:
    copying.crash()
    copying.settings.jobs_dir.rename(copying.home / "away")
    ran = headrace("jobs", "reset", "shop", "--json", "--home", copying.home)
    assert ran.code == 0
    assert "no copy in" in ran.err
