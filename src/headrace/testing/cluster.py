"""A real Spark standalone cluster on loopback addresses, to be killed piece by piece.

Master on 127.0.0.1, workers on 127.0.0.2, 127.0.0.3 and so on, one core each, every one with a
folder of its own for work and for Headrace's stores, as hosts have. Linux only.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from headrace.clock import Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.processes import (
    command,
    end_group,
    kill,
    parents,
    wait_until,
    with_variable,
)

FAMILY = "HEADRACE_CLUSTER"
START_S = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master and workers as processes of this one, for the length of a ``with`` block.

    Args:
        home: where logs, work and stores go.
        workers: how many hosts.
        memory_mb: of each worker, and so at most of its executor.

    Attributes:
        url: of the master, for ``spark.master``.
    """

    def __init__(self, home: Path, workers: int = 2, memory_mb: int = 512) -> None:
        self.home, self.url = home.absolute(), ""
        self._count, self._memory = workers, memory_mb
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def state_dir(self, worker: int) -> Path:
        """Return the folder of a worker's stores; no other worker knows it."""
        return self.home / f"worker-{worker}" / "state"

    def start(self) -> None:
        """Start all processes, and wait until every worker has registered."""
        log = self.home / "master.log"
        self._master = self._spawn("master.Master", log, "127.0.0.1", {}, [])
        self.url = self._wait_for(_MASTER, log, self._master)[1]
        for number in range(self._count):
            self.start_worker(number)
        for number in range(self._count):
            log = self.home / f"worker-{number}.log"
            registered = re.compile("Successfully registered with master")
            self._wait_for(registered, log, self._workers[number])

    def start_worker(self, number: int) -> None:
        """Start a worker's process; it registers a moment later."""
        folder = self.home / f"worker-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        process = self._spawn(
            "worker.Worker",
            self.home / f"worker-{number}.log",
            f"127.0.0.{number + 2}",
            {
                "HEADRACE_STATE_DIR": str(self.state_dir(number)),
                "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            },
            ["--cores", "1", "--memory", f"{self._memory}m", "--work-dir", str(folder), self.url],
        )
        self._workers[number:] = [process, *self._workers[number + 1 :]]

    def _spawn(
        self, kind: str, log: Path, address: str, variables: dict[str, str], arguments: list[str]
    ) -> subprocess.Popen[bytes]:
        spark = _spark_home()
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            FAMILY: str(self.home),
            **variables,
        }
        with open(log, "wb") as output:
            return subprocess.Popen(
                [
                    str(spark / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    *("--host", address, "--port", "0", "--webui-port", "0"),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _wait_for(
        self, pattern: re.Pattern[str], log: Path, process: subprocess.Popen[bytes]
    ) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def said() -> bool:
            text = log.read_text(errors="replace")
            if process.poll() is not None:
                raise ChildProcessError(f"{log.stem} ended at its start: {text[-2000:]}")
            found.extend(pattern.finditer(text))
            return bool(found)

        wait_until(said, Deadline(SystemClock(), START_S), f"{log.stem} to start")
        return found[0]

    def processes(self) -> list[int]:
        """Return every live process of the cluster: daemons, executors, Python workers."""
        return with_variable(FAMILY, str(self.home))

    def executors(self, worker: int) -> list[int]:
        """Return the executor processes that a worker has started and that live."""
        parent = self._workers[worker].pid
        return [
            pid
            for pid in self.processes()
            if _EXECUTOR in command(pid) and parent in list(parents(pid))
        ]

    def executor_of(self, pid: int) -> tuple[int, int]:
        """Return the executor that a Python worker belongs to, and the number of its host.

        Raises:
            LookupError: the process belongs to none of the cluster's.
        """
        family = list(parents(pid))
        for number, worker in enumerate(self._workers):
            executor = [one for one in self.executors(number) if one in family]
            if executor and worker.pid in family:
                return executor[0], number
        raise LookupError(f"process {pid} belongs to no executor of {self.url}")

    def kill_worker(self, worker: int) -> None:
        """Lose a host: its daemon first, so that nothing is started again, then all it ran."""
        kill(self._workers[worker].pid)
        for pid in with_variable("HEADRACE_STATE_DIR", str(self.state_dir(worker))):
            kill(pid)

    def stop(self) -> None:
        """End everything, and wait until the last process is gone."""
        for process in [*self._workers, *([self._master] if self._master else [])]:
            end_group(process)
        for pid in self.processes():
            kill(pid)
        self._workers, self._master = [], None

    def __enter__(self) -> SparkCluster:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()


def _spark_home() -> Path:
    """Where PySpark keeps Spark, without loading it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidInputError("PySpark is not installed in this environment; run make setup")
    return Path(found.origin).parent
