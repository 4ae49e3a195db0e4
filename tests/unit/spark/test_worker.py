"""What a worker process of Spark keeps, without Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator.worker_host import WorkerSettings
from headrace.spark import worker
from headrace.testing import TestDriver

closed: list[str] = []


class Connected:
    """Holds something that has to be let go of."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.store("n").put(message.id, 1)

    def close(self) -> None:
        closed.append("closed")


@hr.job("connected")
def connected(g: hr.Graph) -> None:
    stores = (hr.store("n", int),)
    g.input("in").partition_by("id").process(Connected, stores=stores)


def settings(folder: Path) -> WorkerSettings:
    return WorkerSettings(
        job="other",
        slot=0,
        storage=str(folder / "jobs" / "other"),
        bus=str(folder / "bus"),
        state_dir=str(folder / "state"),
        paths=(),
        adopt_bytes=1 << 20,
        cache_bytes=1 << 20,
        block_cache_bytes=8 << 20,
        write_buffer_bytes=8 << 20,
    )


def test_a_worker_that_turns_to_another_job_lets_go_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processors are closed as at any end, and its stores may be opened elsewhere."""
    with TestDriver(connected, tasks=1, slots=1) as driver:
        driver.create("in", {"id": pa.int64()})
        driver.feed("in", [{"id": 1}])
        driver.run()
        before = driver.runner.host(0)
        assert before.runtimes
        assert len(before.registry) == 1
        monkeypatch.setattr(worker, "_hosts", {(os.getpid(), "connected"): before})
        closed.clear()
        other = worker._host(settings(tmp_path))
        assert closed == ["closed"]
        assert before.runtimes == {}
        assert len(before.registry) == 0
        assert worker._host(settings(tmp_path)) is other
