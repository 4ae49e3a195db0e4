"""Seed 002's metrics: failures, failovers, those not possible, and the lag of standbys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.homes import load_settings
from tests.support.hosts import homes, lose_home
from tests.support.watching import (
    alerts,
    described,
    described_json,
    live_job,
    metrics,
    samples,
)

import headrace as hr
from headrace.testing import TestDriver


class Sum:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    g.input("events").partition_by("id").process(Sum, stores={"n": int}, name="sum")


def failures(found: dict[str, float]) -> tuple[float, ...]:
    names = ("active_failures", "standby_failures", "failovers", "failovers_impossible")
    return tuple(found[f"headrace_{name}_total"] for name in names)


def told(driver: TestDriver) -> dict[str, int]:
    counts: dict[str, int] = described_json(described(driver))["failures"]
    return counts


def run(driver: TestDriver, epochs: int) -> None:
    for _ in range(epochs):
        driver.feed("events", [{"id": n} for n in range(60)])
        driver.run()


def test_failures_and_failovers_are_counted_for_every_reader(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": 6, "slots": 3, "hosts": 3, "standby_copies": 1}
    with TestDriver(sums, home=tmp_path, **options) as driver:
        driver.create("events", {"id": pa.int64()})
        run(driver, 4)
        assert failures(metrics(driver)) == (0, 0, 0, 0)
        assert told(driver) == {}
        before, homes_before = driver.coordinator.state, homes(driver)
        lost = homes_before[lose_home(driver)[0]]
        tasks = sum(task.host == lost for task in before.tasks.values())
        standbys = sum(s.host == lost for found in before.standbys.values() for s in found)
        run(driver, 1)
        counted = failures(metrics(driver))
        assert counted == (tasks, standbys, tasks, 0)
        lose_home(driver)  # before its tasks have standbys that hold anything
        run(driver, 1)
        counts = driver.coordinator.state.counts
        assert failures(metrics(driver)) == (
            counts["standby.active_lost"],
            counts["standby.lost"],
            counts["standby.failover"],
            counts.get("standby.no_failover", 0),
        )
        assert counts["standby.active_lost"] > tasks
        every = failures(metrics(driver))
        assert every[0] == every[2] + every[3]
        driver.start()  # another driver learns them from the manifest
        assert failures(metrics(driver)) == every
        found = told(driver)
        assert (found["active_lost"], found["lost"], found["failover"]) == every[:3]


def test_the_lag_of_standbys_is_told_by_stage_and_task(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": 4, "slots": 2, "hosts": 2, "standby_copies": 1}
    with TestDriver(sums, home=tmp_path, **options) as driver:
        driver.create("events", {"id": pa.int64()})
        run(driver, 5)
        found = metrics(driver)
        state = driver.coordinator.state
        behind = {
            name: task.epoch - state.standbys[name][0].epoch for name, task in state.tasks.items()
        }
        assert found["headrace_standbys"] == 4
        assert found["headrace_standby_behind_epochs"] == max(behind.values())
        assert found["headrace_task_standby_behind_epochs"] == sum(behind.values())
        live = live_job(driver)
        (stage,) = live.stages
        assert stage.copies.epochs == max(behind.values())
        tasks = [task for task in live.tasks() if task.standbys]
        assert {one.task: one.epoch - one.standbys[0].epoch for one in tasks} == behind
        (seen,) = described(driver).stages
        assert seen.standby is not None
        assert seen.standby.epochs == max(behind.values())
        assert seen.standby.size == found["headrace_standby_behind_bytes"]


def test_what_standbys_cost_and_what_moved_are_metrics_of_their_own_and_no_rows(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"tasks": 6, "slots": 3, "hosts": 3, "standby_copies": 1}
    with TestDriver(sums, home=tmp_path, **options) as driver:
        driver.create("events", {"id": pa.int64()})
        run(driver, 4)
        lose_home(driver)
        run(driver, 1)
        (gone,) = driver.runner.down
        driver.bring_back(gone % 3)
        run(driver, 3)
        found, state = metrics(driver), driver.coordinator.state
        assert state.counts["follow.bytes.events.by_id"] > 0
        for name, counted, unit in (
            ("headrace_standby_read_bytes_total", "follow.bytes.", 1),
            ("headrace_standby_busy_seconds_total", "follow.ms.", 1000),
        ):
            assert found[name] * unit == state.counts[f"{counted}events.by_id"]
        assert found["headrace_tasks_unassigned_total"] == 2
        assert found["headrace_tasks_homeless_total"] == 2  # its name until the next release
        assert found["headrace_tasks_interrupted_total"] == 2
        assert found["headrace_standbys_interrupted_total"] == 2
        assert found["headrace_tasks_moved_total"] == 2  # back to the host, where it is again
        kinds = {one.labels["what"] for one in samples(driver) if one.name == "headrace_rows_total"}
        assert "in" in kinds
        assert [what for what in kinds if "." in what] == []


def test_standbys_that_there_is_no_host_for_are_told_to_every_reader(tmp_path: Path) -> None:
    """Nor is that a job of which no standby is behind."""
    rule = json.dumps([{"name": "copies", "kind": "standby_behind", "above": 1}])
    with TestDriver(sums, home=tmp_path, tasks=4, slots=2, hosts=1, standby_copies=1) as driver:
        driver.create("events", {"id": pa.int64()})
        run(driver, 3)
        found = metrics(driver)
        assert (found["headrace_standbys"], found["headrace_standbys_wanted"]) == (0, 4)
        settings = load_settings(overrides=[f"alerts.rules={rule}"], environ={})
        live = live_job(driver, settings)
        (stage,) = live.stages
        assert (stage.copies.standbys, stage.copies.wanted, stage.copies.filled) == (0, 4, 0)
        assert alerts(driver, live) == [
            "alert copies: job sums: a standby more than 1 epochs behind; it is 3 now",
        ]
