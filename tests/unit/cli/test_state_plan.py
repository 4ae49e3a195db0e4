"""``headrace state plan``: the cost model with a job's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver

PNG = b"\x89PNG"


class Last:
    """Keeps the last value of each key."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.store("last").put(message.k, "x" * 50)


@hr.job("keeper")
def keeper(g: hr.Graph) -> None:
    g.input("in").partition_by("k").process(Last, stores={"last": str}, name="p")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job of ten epochs, one each second, of a hundred changes."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    with TestDriver(keeper, tasks=2, key_groups=4, home=tmp_path) as driver:
        driver.create("in", {"k": pa.int64()})
        driver.start()
        for epoch in range(10):
            driver.feed("in", [{"k": k} for k in range(100)])
            driver.clock.advance(1000)
            driver.advance()
            assert driver.coordinator.state.epoch == epoch + 1
        yield driver


def plan(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("state", "plan", "keeper", "--json", *words))
    return found


def test_the_figures_are_those_of_the_manifests(ran: TestDriver) -> None:
    told = plan()
    assert (told["epoch"], told["epochs"], told["change_rate"]) == (10, 10, 100)
    assert 60 < told["entry_bytes"] < 120
    assert told["changelog_bytes_per_s"] == pytest.approx(100 * told["entry_bytes"])
    epoch = told["intervals"][0]
    assert (epoch["interval_s"], epoch["is_epoch"]) == (1.0, True)
    assert epoch["checkpoint_bytes_per_s"] == told["state_bytes"]
    assert epoch["break_even_rate"] == pytest.approx(told["state_bytes"] / told["entry_bytes"])
    tasks = ran.coordinator.state.tasks
    assert {task["task"] for task in told["tasks"]} == set(tasks)
    assert 5_000 < told["state_bytes"] < 40_000
    assert told["rebuild_bytes"] == sum(ref.bytes for task in tasks.values() for ref in task.files)
    assert told["merged_bytes"] > 0


def test_fewer_epochs_can_be_looked_at(ran: TestDriver) -> None:
    assert plan("--epochs", 4)["epochs"] == 4
    assert plan("--epochs", 4)["change_rate"] == 100


def test_people_read_the_model_and_why_things_are_as_they_are(ran: TestDriver) -> None:
    told = done("state", "plan", "keeper")
    assert "job keeper at epoch 10: figures of 10 epochs in 10 s" in told
    assert "changes      100 entries/s of" in told
    assert "1.0 s (epoch)" in told
    assert "20 min " in told
    assert "both make the same with a checkpoint each" in told
    assert "changelog: a rebuild reads" in told


def test_the_figure_is_drawn(ran: TestDriver, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    done("state", "plan", "keeper", "--chart", path)
    assert path.read_bytes().startswith(PNG)


def test_a_job_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "no committed epoch of job 'other'" in refused(
        "state", "plan", "other", "--home", tmp_path
    )


def test_a_job_of_one_epoch_has_a_plan_and_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    with TestDriver(keeper, tasks=1, home=tmp_path) as driver:
        driver.create("in", {"k": pa.int64()})
        driver.start()
        assert "0 entries/s" in done("state", "plan", "keeper")
        told = refused("state", "plan", "keeper", "--chart", tmp_path / "x.png")
        assert "no changes to draw" in told
