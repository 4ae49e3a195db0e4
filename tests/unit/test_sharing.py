"""What happens where a process of the tests crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sharing import Taken, next_scope, scope_of, tree_cpu_s

ROOT = Path(__file__).parents[2]
CRASHES = """
import os
def test_first(): pass
def test_crash(): os.abort()
def test_behind(): pass
"""
OTHERS = "def test_one(): pass\ndef test_two(): pass\n"
AT_ONCE = "from tests.sharing import *\n"
LATE = """
import contextlib, subprocess
from tests.sharing import *
from xdist.workermanage import WorkerController
send, known = WorkerController.send_runtest_some, set()
def send_late(self, indices):
    if self in known:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.gateway._io.popen.wait(1)
    known.add(self)
    send(self, indices)
WorkerController.send_runtest_some = send_late
"""


@pytest.mark.parametrize("sharing", [AT_ONCE, LATE], ids=["known", "found when work is sent"])
def test_a_crash_is_one_failed_test_and_the_others_run(sharing: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(sharing)
    (tmp_path / "test_a.py").write_text(CRASHES)
    (tmp_path / "test_b.py").write_text("import os\ndef test_only(): os.abort()\n")
    (tmp_path / "test_c.py").write_text(OTHERS)
    options = ["-n1", "-q", "--no-loadscope-reorder", "-pxdist.plugin", "-pno:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=alone, timeout=120, check=False
    )
    assert "2 failed, 4 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1


def test_a_process_gets_what_leaves_the_others_their_cores() -> None:
    """The first that does, which is the longest; what is new is taken for busy."""
    taken = {"a": Taken(90.0, 90.0), "b": Taken(80.0, 40.0), "c": Taken(70.0, 7.0)}
    assert next_scope("abc", "", taken, 2) == "a"
    assert next_scope("bc", "a", taken, 2) == "b"
    assert next_scope("xbc", "aa", taken, 2) == "c"
    assert next_scope("xa", "ab", taken, 2) == "x", "none fits"


def test_one_process_starts_spark_and_runs_all_that_needs_it() -> None:
    """But for clusters, which have sessions of their own and stand with Kafka."""
    spark = scope_of("tests/spark/test_tables.py::test_one")
    assert scope_of("tests/docs/test_snippets.py::test_one") == spark
    assert scope_of("tests/docs/test_links.py::test_one") != spark
    cluster = scope_of("tests/spark/test_cluster_hosts.py::test_one")
    assert cluster == scope_of("tests/servers/test_kafka_log.py::test_one") != spark


def test_cpu_is_counted_with_that_of_processes_that_have_ended_and_that_run() -> None:
    before = tree_cpu_s()
    spend = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)"
    subprocess.run([sys.executable, "-c", spend], capture_output=True, check=True)
    ended = tree_cpu_s()
    assert ended - before >= 0.25
    command = [sys.executable, "-c", f"{spend}\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert tree_cpu_s() - ended >= 0.25
        running.communicate(b"\n")
