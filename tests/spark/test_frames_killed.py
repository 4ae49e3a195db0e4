"""Users' own PySpark programs that write to streams: each row once, whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.frame_programs import ROWS

from headrace.bus.file import FileBus
from headrace.bus.spec import StreamSpec
from headrace.clock import Deadline, SystemClock
from headrace.testing.processes import end_group, wait_until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SOON_S = 120.0


@contextmanager
def program(name: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with (home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.frame_programs", name, str(home)],
            cwd=home,
            env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
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


def test_attempts_that_fail_and_workers_that_are_killed_append_nothing(tmp_path: Path) -> None:
    with program("attempts", tmp_path) as running:
        assert running.wait(SOON_S) == 0, (tmp_path / "attempts.log").read_text()[-3000:]
    assert ids(tmp_path, "written") == list(range(ROWS))
    assert not list((tmp_path / "bus" / "spark").glob("once-*"))


def test_a_query_that_is_killed_and_restarted_appends_each_row_once(tmp_path: Path) -> None:
    with FileBus(tmp_path / "bus") as bus:
        stream = bus.create(StreamSpec("from", 2, pa.schema([("id", pa.int64())]), key=("id",)))
        stream.append_rows(pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    for least in (1, ROWS // 4):
        with program("copying", tmp_path) as running:

            def is_under_way(least: int = least) -> bool:
                assert running.poll() is None, (tmp_path / "copying.log").read_text()[-3000:]
                return len(ids(tmp_path, "copied")) >= least

            wait_until(is_under_way, Deadline(SystemClock(), SOON_S), "some rows")
            running.kill()
        assert len(ids(tmp_path, "copied")) < ROWS
    with program("copying", tmp_path) as running:
        assert running.wait(SOON_S) == 0, (tmp_path / "copying.log").read_text()[-3000:]
    assert ids(tmp_path, "copied") == list(range(ROWS))
