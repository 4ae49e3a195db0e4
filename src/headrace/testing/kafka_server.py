"""A Kafka broker of its own for tests and measurements: one process, which is its controller too.

Jars are those of ``tools/kafka.sh``; Java is found as Spark finds it. Linux only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace import extras
from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.servers import ServerProcess, free_port

KAFKA_START_S = 120.0
_CLUSTER = "aGVhZHJhY2UtdGVzdHMtMQ"
QUICK_JVM = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Options of a Java that ends before more would pay: it compiles plainly, and verifies no class."""
_JVM = ("-Xmx512m", *QUICK_JVM)
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,PROXIED:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",  # it would take 128 MiB
    "auto.create.topics.enable": "false",
}


class _Checkpoint:
    """With which features a cluster begins: a file of Kafka's, the same for all of its version."""

    name, held = "bootstrap.checkpoint", b""


_CHECKPOINT = _Checkpoint()


class KafkaServer(ServerProcess):
    """Started when it is made; ``close`` ends it. Topics stay in its folder until then.

    Args:
        folder: of its data and its log; made when missing.
        properties: of the broker, added to those that it needs.
        clock: for waiting.
        joins: another one, whose cluster it becomes a broker of.
        protocols: what it listens with besides ``PLAINTEXT``, such as ``SASL_SSL``, which takes
            properties.
        proxy: host and port of a proxy that leads to its protocol ``PROXIED``: clients of that
            protocol get the proxy's address for this broker's.

    Raises:
        InvalidInputError: no jars, or no Java, are installed.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "the Kafka broker"

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        protocols: Sequence[str] = (),
        joins: KafkaServer | None = None,
        proxy: str | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._folder = folder
        self._classes = ":".join(map(str, sorted(kafka_jars().glob("*.jar"))))
        folder.mkdir(parents=True, exist_ok=True)
        self.port, inner = free_port(), free_port()
        self._ports = {"PLAINTEXT": self.port, **{one: free_port() for one in protocols}}
        if proxy is not None:
            self._ports["PROXIED"] = free_port()
        outer = ",".join(f"{one}://127.0.0.1:{port}" for one, port in self._ports.items())
        self._voters: str = f"1@127.0.0.1:{inner}" if joins is None else joins._voters  # noqa: SLF001
        own = {
            "listeners": outer,
            "advertised.listeners": outer,
            "controller.quorum.voters": self._voters,
            "log.dirs": str(folder / "data"),
        }
        if proxy is not None:
            inside = self.address_of("PROXIED")
            own["advertised.listeners"] = outer.replace(f"//{inside}", f"//{proxy}")
        if joins is None:
            own["listeners"] += f",CONTROLLER://127.0.0.1:{inner}"
        else:
            own["process.roles"] = "broker"
        given = {**_PROPERTIES, **own, **(properties or {})}
        lines = "".join(f"{name}={value}\n" for name, value in given.items())
        self._settings = folder / "server.properties"
        self._settings.write_text(lines)
        try:
            self._format(given["node.id"])
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def address_of(self, protocol: str) -> str:
        """Return host and port of one of its protocols."""
        return f"127.0.0.1:{self.port_of(protocol)}"

    def port_of(self, protocol: str) -> int:
        """Return the port of one of its protocols."""
        return self._ports[protocol]

    def url(self, topic: str, protocol: str = "PLAINTEXT", **options: str) -> str:
        """Return the address of a topic, as jobs take it."""
        query = "&".join(f"{name.replace('__', '.')}={value}" for name, value in options.items())
        return f"kafka://{self.address_of(protocol)}/{topic}{'?' if query else ''}{query}"

    def _begin(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            command = [find_java(), *_JVM, "-cp", self._classes, program, *arguments]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _format(self, node: str) -> None:
        """Have Kafka make its folder; a later one of this process is made as the first was."""
        data = self._folder / "data"
        if _CHECKPOINT.held:
            data.mkdir()
            (data / _CHECKPOINT.name).write_bytes(_CHECKPOINT.held)
            lines = ("version=1", f"cluster.id={_CLUSTER}", f"node.id={node}", "")
            (data / "meta.properties").write_text("\n".join(lines))
            return
        arguments = ("format", "-t", _CLUSTER, "-c", str(self._settings))
        if self._begin("kafka.tools.StorageTool", *arguments).wait(KAFKA_START_S):
            raise self._failure("cannot format its folder")
        _CHECKPOINT.held = (data / _CHECKPOINT.name).read_bytes()

    def start(self) -> None:
        """Start it on its port, and wait until it answers."""
        self._process = self._begin("kafka.Kafka", str(self._settings))
        self._await(KAFKA_START_S)

    def _answers(self) -> bool:
        # A client for each look while nobody listens would be a hundred of them on a busy machine.
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        library: Any = extras.load("confluent_kafka", "a broker for tests")
        admin: Any = extras.load("confluent_kafka.admin", "a broker for tests")
        client = admin.AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        with suppress(library.KafkaException):
            return bool(client.list_topics(timeout=1.0).brokers)
        return False


def kafka_jars() -> Path:
    """Return the folder of the broker's jars.

    Raises:
        InvalidInputError: there is none; says how to get them.
    """
    found = sorted(Path(sys.prefix, "jars").glob("kafka-*"))
    if not found:
        raise InvalidInputError(
            f"there are no jars of a Kafka broker in {Path(sys.prefix, 'jars')}; in a clone of "
            "Headrace, fetch them with: tools/kafka.sh"
        )
    return found[-1]


def find_java() -> str:
    """Return the program ``java``.

    Raises:
        InvalidInputError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise InvalidInputError("no Java is installed; a Kafka broker needs Java 17")
    return found
