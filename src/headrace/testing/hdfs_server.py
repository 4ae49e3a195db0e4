"""An HDFS of its own for tests: one NameNode and one DataNode, each a process.

The jar is that of ``tools/hdfs.sh``, the others are PySpark's. Files stay in its folder until it is
closed. Linux only.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from headrace import extras
from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.kafka_server import QUICK_JVM, find_java
from headrace.testing.servers import Server, free_port

START_S = 120.0

_LOGGERS = "org.apache.logging.log4j.simple.SimpleLoggerContextFactory"
_JVM = ("-Xmx256m", f"-Dlog4j2.loggerContextFactory={_LOGGERS}", *QUICK_JVM)
"""It logs errors alone, as the usual one does without settings, and has less to load."""

_SERVER = "org.apache.hadoop.hdfs.server"
_NAMENODE, _DATANODE = f"{_SERVER}.namenode.NameNode", f"{_SERVER}.datanode.DataNode"
NAMES, DATA = "names", "data"
NODES = {NAMES: _NAMENODE, DATA: _DATANODE}
"""The program of each node."""

_PAGES = (
    b"org/apache/hadoop/hdfs/web/resources",
    b"org/apache/hadoop/hdfs/server/namenode/web/resources",
)
_NEXT_ENTRY = b"PK\1\2"
"""Begins each entry in the list at the end of a jar."""


class HdfsServer(Server):
    """Started when it is made; ``close`` ends it.

    Args:
        folder: of its data, its settings and its logs; made when missing.
        clock: for waiting.

    Raises:
        InvalidInputError: no jars, or no Java, are installed.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "HDFS"

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder, self._clock = folder, clock or SystemClock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        jars = Path(_spark(), "jars")  # most classes are of Hadoop's own, which are looked at first
        own = (_jar(), *sorted(jars.glob("hadoop-*.jar")))
        first = ":".join(str(_without_pages(jar, folder)) for jar in own)
        self._classes = f"{folder}:{first}:{jars}/*"
        self.name = f"127.0.0.1:{free_port()}"
        local = {f"dfs.datanode.{one}": "127.0.0.1:0" for one in
                 ("address", "http.address", "ipc.address")}  # fmt: skip
        self._write("core-site.xml", {"fs.defaultFS": f"hdfs://{self.name}"})
        self._write("hdfs-site.xml", {
            "dfs.namenode.name.dir": (folder / "names").as_uri(),
            "dfs.datanode.data.dir": (folder / "data").as_uri(),
            "dfs.replication": "1",
            "dfs.namenode.http-address": "127.0.0.1:0",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.synconclose": "true",
            "dfs.heartbeat.interval": "1",
            **local,
        })  # fmt: skip
        for page in ("hdfs", "datanode", "static"):  # else Jetty unpacks those of the jar
            (folder / "webapps" / page).mkdir(parents=True, exist_ok=True)
        try:
            self._run(_NAMENODE, "-format", "-force").wait(START_S)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find its settings; who started it may do anything."""
        return {"HADOOP_CONF_DIR": str(self._folder)}

    def start(self) -> None:
        """Start what does not run, continue what is paused, and wait until it takes objects."""
        for name, program in NODES.items():
            if name not in self._processes:
                self._processes[name] = self._run(program)
            self._processes[name].send_signal(signal.SIGCONT)
        library: Any = extras.load("hdfs_native", "an HDFS for tests")
        client = library.Client(f"hdfs://{self.name}", {"dfs.client.failover.max.attempts": "0"})
        answers = partial(self._answers, client, library)
        self._await_all(self._processes.values(), answers, START_S)

    def _answers(self, client: Any, library: Any) -> bool:
        with suppress(OSError, RuntimeError):
            with client.create("/.ready", library.WriteOptions(overwrite=True)) as file:
                file.write(b"ready")
            return True
        return False

    def kill(self, name: str) -> None:
        """End one of its ``NODES`` without warning, until ``start``."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def pause(self, name: str) -> None:
        """Let one of its ``NODES`` stand still, until ``start``."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it; closing twice is fine."""
        for name in list(self._processes):
            self.kill(name)

    def _run(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        command = [find_java(), *_JVM, "-cp", self._classes, program, *words]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        listed = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in settings.items()
        )
        (self._folder / name).write_text(f"<configuration>{listed}</configuration>")


def _jar() -> Path:
    found = sorted(Path(sys.prefix, "jars").glob("hdfs-*/*.jar"))
    if not found:
        raise InvalidInputError(
            f"there is no jar of HDFS in {Path(sys.prefix, 'jars')}; in a clone of Headrace, fetch "
            "it with: tools/hdfs.sh"
        )
    return found[-1]


def _without_pages(jar: Path, folder: Path) -> Path:
    """Return a jar, or a copy of it that does not list the folders of WebHDFS.

    Who finds one of them listed unpacks the whole jar at each start, to look for what is in it.
    """
    found = jar.read_bytes()
    data = found
    for name in _PAGES:
        data = data.replace(name + b"/" + _NEXT_ENTRY, name + b"_" + _NEXT_ENTRY)
    if data == found:
        return jar
    copy = folder / jar.name
    copy.write_bytes(data)
    return copy


def _spark() -> Path:
    return Path(extras.load("pyspark", "an HDFS for tests").__file__).parent
