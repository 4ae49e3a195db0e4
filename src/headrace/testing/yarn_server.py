"""A YARN of its own for tests: an HDFS, a ResourceManager and NodeManagers, each a process.

The jars are those of ``tools/yarn.sh``, the others are PySpark's. Linux only.
"""

from __future__ import annotations

import getpass
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.testing.hdfs_server import HdfsServer
from headrace.testing.servers import command, free_port, kill, with_variable

START_S = 120.0
FAMILY = "HEADRACE_YARN"
"""Containers inherit this variable, with the name of the cluster's HDFS."""
_YARN = "org.apache.hadoop.yarn.server"
_MANAGER = f"{_YARN}.resourcemanager.ResourceManager"
_NODE = f"{_YARN}.nodemanager.NodeManager"


class YarnServer(HdfsServer):
    """Started when it is made; ``close`` ends it, with all containers.

    Args:
        folder: of its data, its settings and its logs; made when missing.
        clock: for waiting.
        memory_mb: that containers may have together.
        cores: the same.
        hadoop: folder with Hadoop's jars as they are published, for a NodeManager with the shuffle
            of MapReduce, which the jar of ``tools/hdfs.sh`` does not have.

    Raises:
        InvalidInputError: no jars, or no Java, are installed.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "YARN"

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        memory_mb: int = 8192,
        cores: int = 16,
        hadoop: Path | None = None,
    ) -> None:
        self._memory_mb, self._cores, self._hadoop = memory_mb, cores, hadoop
        self._page = free_port()
        super().__init__(folder, clock)

    def start(self) -> None:
        """Start what does not run, and wait until containers may be asked for."""
        super().start()
        folder = self._folder
        parts = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        own = {f"yarn.resourcemanager.{one}": f"127.0.0.1:{free_port()}" for one in parts}
        own |= {f"yarn.nodemanager.{one}": "127.0.0.1:0" for one in
                ("address", "localizer.address", "webapp.address")}  # fmt: skip
        self._write("yarn-site.xml", {
            **own,
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{self._page}",
            "yarn.resourcemanager.am.max-attempts": "10",
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": str(self._memory_mb),
            "yarn.nodemanager.resource.cpu-vcores": str(self._cores),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.admin-env": f"{FAMILY}={self.name},HADOOP_CONF_DIR={folder}",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
            "yarn.scheduler.minimum-allocation-mb": "128",
            **({"yarn.nodemanager.aux-services": "mapreduce_shuffle"} if self._hadoop else {}),
        })  # fmt: skip
        self._write("capacity-scheduler.xml", {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
        })  # fmt: skip
        self._classes += ":" + ":".join(map(str, _jars()))
        self._processes["manager"] = self._run(_MANAGER)
        if self._hadoop is not None:
            self._classes = f"{folder}:{self._hadoop}/*"
        self._processes["node"] = self._run(_NODE)
        self._await_all(self._processes.values(), self._has_node, START_S)

    def containers(self, part: str) -> list[int]:
        """Return the JVMs of containers whose command line has a word, sorted."""
        lines = {pid: command(pid) for pid in with_variable(FAMILY, self.name)}
        return [
            pid
            for pid, line in lines.items()
            if part in line and line.partition(" ")[0].endswith("/java")  # not a shell around it
        ]

    def applications(self) -> list[dict[str, Any]]:
        """Return what the ResourceManager says of each application."""
        found = self._asked("apps")["apps"] or {}
        return list(found.get("app", []))

    def end(self, application: str) -> None:
        """End an application, as ``yarn application -kill`` does."""
        request = Request(
            self._page_of(f"apps/{application}/state?user.name={getpass.getuser()}"),
            json.dumps({"state": "KILLED"}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urlopen(request, timeout=10):
            pass

    def close(self) -> None:
        """End it with all containers; closing twice is fine."""
        super().close()
        for process in with_variable(FAMILY, self.name):
            kill(process)

    def _has_node(self) -> bool:
        with suppress(OSError):
            return bool(self._asked("metrics")["clusterMetrics"]["activeNodes"])
        return False

    def _asked(self, what: str) -> Any:
        with urlopen(self._page_of(what), timeout=10) as answer:
            return json.load(answer)

    def _page_of(self, what: str) -> str:
        return f"http://127.0.0.1:{self._page}/ws/v1/cluster/{what}"


def _jars() -> list[Path]:
    found = sorted(Path(sys.prefix, "jars").glob("yarn-*/*.jar"))
    if not found:
        raise InvalidInputError(
            f"there are no jars of YARN in {Path(sys.prefix, 'jars')}; in a clone of Headrace, "
            "fetch them with: tools/yarn.sh"
        )
    return found
