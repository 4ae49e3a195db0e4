"""Seed 002's metrics: failures, failovers, those not possible, and the lag of standbys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import headrace as hr
from headrace.cli.jobs.text import job_json
from headrace.config import load_settings
from headrace.control.alerts.watch import AlertWatch
from headrace.control.board import Board
from headrace.control.description import described
from headrace.control.metrics import metrics_text
from headrace.control.views import stage_infos, task_infos
from headrace.coordinator.inspection.job_list import view_job
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.files import Files
from headrace.testing import TestDriver


class Sum:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    g.input("events").partition_by("id").process(Sum, stores={"n": int}, name="sum")


def samples(driver: TestDriver) -> Iterator[Sample]:
    board = Board("sums", driver.settings, Control(), driver.clock)
    board.ready(JoinedParts(driver.parts))
    for family in text_string_to_metric_families(metrics_text(board).decode()):
        yield from family.samples


def metrics(driver: TestDriver) -> dict[str, float]:
    """The values of a job without other labels, and the sum of each of those with more."""
    found: dict[str, float] = {}
    for sample in samples(driver):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def failures(found: dict[str, float]) -> tuple[float, ...]:
    names = ("active_failures", "standby_failures", "failovers", "failovers_impossible")
    return tuple(found[f"headrace_{name}_total"] for name in names)


def told(driver: TestDriver) -> dict[str, int]:
    view = view_job(driver.settings, "sums", driver.bus, driver.clock)
    counts: dict[str, int] = job_json(described(view))["failures"]
    return counts


def run(driver: TestDriver, epochs: int) -> None:
    for _ in range(epochs):
        driver.feed("events", [{"id": n} for n in range(60)])
        driver.run()


def lose_home(driver: TestDriver) -> str:
    """Lose the host with most tasks; return it."""
    homes = [task.host for task in driver.coordinator.state.tasks.values()]
    lost = max(sorted(set(homes)), key=homes.count)
    number = next(
        n
        for n in range(driver._hosts)
        if n not in driver.runner.down and driver.runner.host(n).host == lost
    )
    driver.lose_host(number)
    return lost


def test_failures_and_failovers_are_counted_for_every_reader(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": 6, "slots": 3, "hosts": 3, "standby_copies": 1}
    with TestDriver(sums, home=tmp_path, **options) as driver:
        driver.create("events", {"id": pa.int64()})
        run(driver, 4)
        assert failures(metrics(driver)) == (0, 0, 0, 0)
        assert told(driver) == {}
        before = driver.coordinator.state
        lost = lose_home(driver)
        tasks = sum(task.host == lost for task in before.tasks.values())
        standbys = sum(s.host == lost for found in before.standbys.values() for s in found)
        run(driver, 1)
        counted = failures(metrics(driver))
        assert counted == (tasks, standbys, tasks, 0)
        lost = lose_home(driver)  # before its tasks have standbys that hold anything
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
        board = Board("sums", driver.settings, Control(), driver.clock)
        board.ready(JoinedParts(driver.parts))
        (stage,) = stage_infos(board)
        assert stage.standby_epochs_behind == max(behind.values())
        tasks = [task for task in task_infos(board) if task.standbys]  # not those of the source
        assert {one.task: one.epoch - one.standbys[0].epoch for one in tasks} == behind
        (view,) = view_job(driver.settings, "sums", driver.bus, driver.clock).stages
        assert view.standby is not None
        assert view.standby.epochs == max(behind.values())
        assert view.standby.size == found["headrace_standby_behind_bytes"]


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
        assert found["headrace_tasks_homeless_total"] == 2
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
        board, told = Board("sums", settings, Control(), driver.clock), list[str]()
        board.ready(JoinedParts(driver.parts))
        (stage,) = stage_infos(board)
        assert (stage.standbys, stage.standbys_wanted, stage.standbys_filled) == (0, 4, 0)
        given: dict[str, Any] = {"storage": driver.storage, "files": Files(sync=False)}
        AlertWatch(board, driver.bus, clock=driver.clock, tell=told.append, **given).look()
        assert told == [
            "alert copies: job sums: a standby more than 1 epochs behind; it is 3 now",
        ]
