"""A job with every kind of keyed state on real Spark, against its model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import counting, model
from tests.support.runs import EpochSummary, World, run_job

pytestmark = pytest.mark.spark


def open_files(home: Path) -> list[str]:
    """Return the files of a home that this process has open."""
    held = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(str(one.readlink()))
    return sorted(name for name in held if name.startswith(str(home)))


def test_bounded_run_comes_to_its_model(spark: SparkSession, world: World) -> None:
    """Outputs and stores are those of one pass in plain Python, over several epochs."""
    world.feed(300)
    epochs: list[EpochSummary] = []
    settings = world.settings("job.bounded=true", "epoch.max_rows=200")
    result = run_job(counting(), settings, on_epoch=epochs.append)
    assert result.state.ended
    assert not result.interrupted
    assert sum(epoch.rows for epoch in epochs) == 600
    assert len([epoch for epoch in epochs if epoch.rows]) >= 3
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []


def test_following_the_inputs_of_an_ended_job_changes_nothing(
    spark: SparkSession, world: World
) -> None:
    """Nothing is run, and nothing is published twice; only a bounded start begins another run."""
    world.feed(50)
    first = run_job(counting(), world.settings("job.bounded=true"))
    assert run_job(counting(), world.settings()).epochs == 0
    assert model(world.log) == world.found()
    again = run_job(counting(), world.settings("job.bounded=true"))
    assert (first.state.run, again.state.run, again.rows) == (1, 2, first.rows)


def test_a_run_gives_its_outputs_as_lazy_dataframes_of_its_own_rows(
    spark: SparkSession, world: World
) -> None:
    """A second run appends to the same streams; what an action finds is of its run alone."""
    world.feed(50)
    held = open_files(world.home)
    runs = [run_job(counting(via="bus"), world.settings("job.bounded=true")) for _ in range(2)]
    assert open_files(world.home) == held, "none of the streams that a run read and sent"
    first, second = [one.dataframes(spark) for one in runs]
    assert {"counts", "windows", "totals"} == first.keys() == second.keys()
    for stream, frame in first.items():
        whole = spark.read.format("headrace").option("home", str(world.home)).load(stream)
        assert frame.columns == whole.columns[:-3]  # without partition, offset and time
        one, other = frame.collect(), second[stream].collect()
        assert len(one) == len(other) > 0
        rows = whole.select(frame.columns).collect()
        assert sorted(map(str, [*one, *other])) == sorted(map(str, rows))
