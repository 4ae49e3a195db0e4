"""Merges in real worker processes, beside real epochs."""

from __future__ import annotations

import shutil

import pytest
from tests.support.jobs import counting, model
from tests.support.runs import EpochSummary, JobControl, World, run_job

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("spark")
def test_many_epochs_leave_few_files_and_a_lost_disk_comes_back_from_them(world: World) -> None:
    """Thirty epochs, half of them after all local state is gone; then the job ends."""
    world.feed(300)
    sets = ["epoch.max_rows=20", "state.keep_epochs=0"]
    control = JobControl()

    def stop_at_fifteen(summary: EpochSummary) -> None:
        if summary.epoch == 15:
            control.stop.set()

    run_job(counting(), world.settings(*sets), control=control, on_epoch=stop_at_fifteen)
    tasks = world.state("counting").tasks
    assert sum(task.shape for task in tasks.values()) > 0
    assert max(len(task.files) for task in tasks.values()) < 15
    shutil.rmtree(world.home / "state" / "counting")
    result = run_job(counting(), world.settings(*sets, "job.bounded=true"))
    assert result.state.ended
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []
