"""A real Spark standalone cluster on loopback addresses, to be killed piece by piece.

Master on 127.0.0.1, workers on 127.0.0.2, 127.0.0.3 and so on, every one with a folder of its own
for work and for Headrace's stores, as hosts have; or all in a ``HostNetwork``. Processes
are known by variables that all of a host inherit, so another process can take the cluster over.
Linux only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from headrace import extras
from headrace.clock import Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.host_network import HostNetwork
from headrace.testing.servers import command, end_group, kill, wait_until, with_variable

FAMILY, PLACE = "HEADRACE_CLUSTER", "HEADRACE_PLACE"
MASTER = "master"
MOST_WORKERS = 64
START_S = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile("Successfully registered with master")
_EXECUTOR, _DAEMON = "CoarseGrainedExecutorBackend", "deploy.worker.Worker"
_OWN_DISK = """mount --bind "$1" "$2" || exit 1
shift 2
while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done
shift
exec "$@"
"""


class Shape(msgspec.Struct, frozen=True):
    """What a cluster was started as; kept in its folder."""

    url: str
    workers: int
    memory_mb: int
    cores: int
    state_dir: str


class SparkCluster:
    """A master and workers.

    In a ``with`` block they end with it; else with ``stop``, of this object or of another one that
    is attached to the same folder.

    Args:
        home: where logs, work and stores go.
        workers: how many hosts.
        memory_mb: of each worker, and so at most of its executor.
        cores: of each worker.
        state_dir: the folder of stores as jobs name it. Each worker has a disk of its own there, in
            a mount namespace of its own, where the system allows that; the driver has the folder
            itself. Without, workers get their folders by ``HEADRACE_STATE_DIR``.
        without: folders that hosts find empty, where each has a disk of its own; if any is named,
            they find the folders of other hosts empty, too.
        network: that the hosts are in, each with an address of its own; left out, they are on
            loopback addresses.

    Attributes:
        url: of the master, for ``spark.master``.
    """

    def __init__(
        self,
        home: Path,
        workers: int = 2,
        memory_mb: int = 512,
        cores: int = 1,
        state_dir: Path | None = None,
        *,
        without: Sequence[Path] = (),
        network: HostNetwork | None = None,
    ) -> None:
        self.home, self.url, self._network = home.absolute(), "", network
        self._without = [str(path.absolute()) for path in without]
        self.workers, self.memory_mb, self.cores = workers, memory_mb, cores
        self._state = None if state_dir is None else state_dir.absolute()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def attach(cls, home: Path) -> Self:
        """Return the cluster that was started in a folder, by whichever process.

        Raises:
            InvalidInputError: none was.
        """
        try:
            shape = msgspec.json.decode((home / "cluster.json").read_bytes(), type=Shape)
        except FileNotFoundError:
            raise InvalidInputError(
                f"no cluster in {home}; start one with: headrace cluster up --workers 3"
            ) from None
        state = Path(shape.state_dir) if shape.state_dir else None
        found = cls(home, shape.workers, shape.memory_mb, shape.cores, state)
        found.url = shape.url
        return found

    def address(self, worker: int) -> str:
        """Return the address of a host."""
        if self._network is not None:
            return self._network.address(worker)
        return f"127.0.0.{worker + 2}"

    @property
    def master_address(self) -> str:
        """The address of the master, and of drivers on this machine."""
        return "127.0.0.1" if self._network is None else self._network.gateway

    def state_dir(self, worker: int) -> Path:
        """Return the folder of a worker's stores; no other worker knows it."""
        return self.home / f"worker-{worker}" / "state"

    def start(self) -> None:
        """Start all processes, and wait until every worker has registered."""
        log = self.home / "master.log"
        master = self._spawn(MASTER, "master.Master", log, self.master_address, [])
        self.url = self._wait_for(_MASTER, log, master)[1]
        for number in range(self.workers):
            self.start_worker(number)
        for number in range(self.workers):
            self.await_worker(number)
        state = str(self._state or "")
        shape = Shape(self.url, self.workers, self.memory_mb, self.cores, state)
        (self.home / "cluster.json").write_bytes(msgspec.json.encode(shape))

    def start_worker(self, number: int) -> None:
        """Start a worker's process; it registers a moment later."""
        place = f"worker-{number}"
        folder = self.home / place
        self.state_dir(number).mkdir(parents=True, exist_ok=True)
        memory = f"{self.memory_mb}m"
        arguments = ["--cores", f"{self.cores}", "--memory", memory, "--work-dir", str(folder)]
        log = self.home / f"{place}.log"
        self._spawn(place, "worker.Worker", log, self.address(number), [*arguments, self.url])

    def await_worker(self, number: int) -> None:
        """Wait until a worker that was started has registered."""
        place = f"worker-{number}"
        self._wait_for(_REGISTERED, self.home / f"{place}.log", self._children[place])

    def _spawn(
        self, place: str, kind: str, log: Path, address: str, arguments: list[str]
    ) -> subprocess.Popen[bytes]:
        spark = _spark_home()
        self.home.mkdir(parents=True, exist_ok=True)
        daemon = [
            str(spark / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *("--host", address, "--port", "0", "--webui-port", "0"),
            *arguments,
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": address,
            "SPARK_LOCAL_DIRS": str(self.home / place / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            FAMILY: str(self.home),
            PLACE: f"{self.home}/{place}",
        }
        number = None if place == MASTER else int(place.removeprefix("worker-"))
        if number is not None:
            daemon = self._on_own_disk(place, daemon, environment)
            if self._network is not None:
                daemon = self._network.command(number, daemon)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                daemon,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._children[place] = process
        if number is not None and self._network is not None:
            self._network.join(number, process)
        elif process.stdin is not None:
            process.stdin.close()
        return process

    def _on_own_disk(self, place: str, daemon: list[str], environment: dict[str, str]) -> list[str]:
        own = str(self.home / place / "state")
        unshare = None if self._state is None else namespace_command()
        if self._state is None or unshare is None:
            environment["HEADRACE_STATE_DIR"] = own
            return daemon
        self._state.mkdir(parents=True, exist_ok=True)
        hosts = [self.home / f"worker-{number}" for number in range(self.workers)]
        others = [host for host in hosts if self._without and host.name != place]
        for other in others:
            other.mkdir(exist_ok=True)
        places = [own, str(self._state), *self._without, *map(str, others)]
        return [*unshare, "sh", "-c", _OWN_DISK, "sh", *places, "--", *daemon]

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

    def of(self, place: str) -> list[int]:
        """Return the live processes of ``master``, or of ``worker-N``: a host."""
        return with_variable(PLACE, f"{self.home}/{place}")

    def executors(self, worker: int) -> list[int]:
        """Return the executor processes that a worker has started and that live."""
        return [pid for pid in self.of(f"worker-{worker}") if _EXECUTOR in command(pid)]

    def executor_of(self, pid: int) -> tuple[int, int]:
        """Return the executor that a Python worker belongs to, and the number of its host.

        Raises:
            LookupError: the process belongs to none of the cluster's.
        """
        for number in range(self.workers):
            if pid in self.of(f"worker-{number}"):
                for executor in self.executors(number):
                    return executor, number
        raise LookupError(f"process {pid} belongs to no executor of {self.url}")

    def kill_worker(self, worker: int) -> None:
        """Lose a host: its daemon first, so that nothing is started again, then all it ran."""
        place = f"worker-{worker}"
        for pid in self.of(place):
            if _DAEMON in command(pid):
                kill(pid)
        while left := self.of(place):
            for pid in left:
                kill(pid)
        if (process := self._children.pop(place, None)) is not None:
            process.wait()

    def freeze(self, worker: int) -> None:
        """Have a host do nothing any more, and say so to nobody: no connection of it is closed."""
        for pid in self.of(f"worker-{worker}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self, worker: int) -> None:
        """Let a frozen host continue where it was."""
        for pid in self.of(f"worker-{worker}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End everything, and wait until the last process is gone."""
        for process in self._children.values():
            end_group(process)
        self._children.clear()
        while left := self.processes():
            for pid in left:
                kill(pid)
        (self.home / "cluster.json").unlink(missing_ok=True)

    def __enter__(self) -> Self:
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


@cache
def namespace_command() -> tuple[str, ...] | None:
    """Return what runs a command in a mount namespace of its own; ``None``: it is not allowed."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return None
    for wanted in (("unshare", "--mount"), ("unshare", "--mount", "--map-root-user")):
        tried = subprocess.run([*wanted, "true"], capture_output=True, check=False)
        if tried.returncode == 0:
            return wanted
    return None


def _spark_home() -> Path:
    """Where PySpark keeps Spark, without loading it."""
    if (text := extras.lacking("pyspark", "a cluster of Spark")) is not None:
        raise InvalidInputError(text)
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None  # noqa: PT018 - a package has a file
    return Path(found.origin).parent
