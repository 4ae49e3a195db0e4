"""Users' own PySpark programs that write to streams: each row once, whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.frame_programs import ROWS

from headrace.bus.file import FileBus
from headrace.testing.processes import end_group

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SOON_S = 240.0


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
