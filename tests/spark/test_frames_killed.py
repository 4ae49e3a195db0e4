"""Users' own PySpark programs that write to streams: each row once, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from tests.spark.frame_programs import ROWS, copy_all
from tests.support.processes import WITH_FRAMES, Deadline, SystemClock, end_group, wait_until

from headrace.bus import FileBus, StreamSpec
from headrace.spark import register

pytestmark = pytest.mark.spark

SOON_S = 240.0


@contextmanager
def copying(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program that copies a stream, in a process of its own."""
    with (home / "copying.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.frame_programs", str(home)],
            cwd=home,
            env={**os.environ, **WITH_FRAMES, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end_group(process)


def ids(home: Path, stream: str) -> list[int]:
    with FileBus(home / "bus") as bus:
        if stream not in bus.names():
            return []
        found = bus.stream(stream)
        return sorted(
            value
            for partition in range(found.spec.partitions)
            for part in found.read(partition, 0)
            for value in part.batch.column("id").to_pylist()
        )


def dying(batches: Iterator[Any]) -> Iterator[Any]:
    """Hand rows on; the first attempts of each task die when the writer has taken them."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0:
        if context.partitionId() % 2:
            raise ValueError("the first attempt fails")
        os.kill(os.getpid(), signal.SIGKILL)


def test_attempts_that_fail_and_workers_that_are_killed_append_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark, tmp_path)
    rows = spark.range(0, ROWS, 1, 2).mapInArrow(dying, "id bigint")
    options: dict[str, Any] = {"home": str(tmp_path), "create": True, "partitions": 3, "key": "id"}
    rows.write.format("headrace").mode("append").options(**options).save("written")
    assert ids(tmp_path, "written") == list(range(ROWS))
    assert not list((tmp_path / "bus" / "spark").glob("once-*"))


@pytest.mark.soak
def test_a_query_that_is_killed_goes_on_from_its_checkpoint_and_writes_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The driver and its JVM at once, when the first batch is written or a later one is."""
    schema = pa.schema({"id": pa.int64(), "kind": pa.string()})
    rows = [{"id": n, "kind": "abc"[n % 3]} for n in range(ROWS)]
    with FileBus(tmp_path / "bus") as bus:
        stream = bus.create(StreamSpec("events", 2, schema, key=("id",)))
        stream.append_rows(pa.RecordBatch.from_pylist(rows, schema))
    with copying(tmp_path) as running:

        def is_under_way() -> bool:
            assert running.poll() is None, (tmp_path / "copying.log").read_text()[-3000:]
            return bool(ids(tmp_path, "copied"))

        wait_until(is_under_way, Deadline(SystemClock(), SOON_S), "rows of a batch")
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(SOON_S)
    assert 0 < len(ids(tmp_path, "copied")) < ROWS
    register(spark, tmp_path)
    copy_all(spark, tmp_path)
    assert ids(tmp_path, "copied") == list(range(ROWS))
