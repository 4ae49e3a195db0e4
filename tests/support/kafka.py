"""Topics of a real broker: filled and read by the client itself, past the code under test."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.support.processes import until
from tests.support.registry_server import RegistryServer

import headrace as hr
from headrace.kafka.clients import CLIENTS, PartitionReader
from headrace.kafka.connector import connector
from headrace.sinks import Sink
from headrace.testing.kafka_server import KafkaServer
from headrace.testing.sink_contract import EpochSinkContract, SinkRow

__all__ = ["CLIENTS", "KafkaServer", "Message", "RegistryServer", "Topics", "connector"]
__all__ += ["TopicSinkContract", "answer_late"]

lib: Any = importlib.import_module("confluent_kafka")
admin: Any = importlib.import_module("confluent_kafka.admin")

SOON_S = 60.0
OPEN_S = 8.0
"""After which a transaction is taken for one that stays open."""


class Message(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time: int | None = None
    headers: list[tuple[str, bytes]] | None = None


def answer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next read begin with an error about an offset where the reader was before."""
    take, left = PartitionReader.take, [True]

    def taken(self: PartitionReader, most: int, timeout_s: float) -> list[Any]:
        if not left:
            return take(self, most, timeout_s)
        left.clear()
        stale = lib.KafkaError(lib.KafkaError._AUTO_OFFSET_RESET, "out of range")
        topic, partition = self.address.topic, self.partition
        return [lib.Message(topic=topic, partition=partition, offset=1, error=stale)]

    monkeypatch.setattr(PartitionReader, "take", taken)


class Topics:
    """The topics of a broker."""

    def __init__(self, address: str) -> None:
        self._given = {"bootstrap.servers": address, "log_level": "2"}
        self._admin = admin.AdminClient(dict(self._given))
        self._producer: Any = None
        """Knows topics as they were when it was made."""

    def create(self, name: str, partitions: int = 1, copies: int = 1, **settings: str) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        new = admin.NewTopic(name, partitions, copies, config=config)
        self._admin.create_topics([new])[name].result(SOON_S)
        until(lambda: self._is_there(name, partitions), f"topic {name}")

    def alter(self, name: str, **settings: str) -> None:
        entries = [
            admin.ConfigEntry(
                key.replace("_", "."), value, incremental_operation=admin.AlterConfigOpType.SET
            )
            for key, value in settings.items()
        ]
        place = admin.ConfigResource(admin.ResourceType.TOPIC, name, incremental_configs=entries)
        self._admin.incremental_alter_configs([place])[place].result(SOON_S)

    def delete(self, name: str) -> None:
        self._producer = None
        self._admin.delete_topics([name])[name].result(SOON_S)
        until(lambda: name not in self._admin.list_topics(timeout=SOON_S).topics, "its end")

    def widen(self, name: str, partitions: int) -> None:
        self._producer = None
        self._admin.create_partitions([admin.NewPartitions(name, partitions)])[name].result(SOON_S)
        until(lambda: self._is_there(name, partitions), "its partitions")

    def _is_there(self, name: str, partitions: int) -> bool:
        asked = self._admin.describe_topics(lib.TopicCollection([name]))[name]
        try:
            found = asked.result(SOON_S).partitions
        except Exception:  # noqa: BLE001 - it is not there yet
            return False
        return len(found) == partitions and all(one.leader is not None for one in found)

    def drop_before(self, name: str, partition: int, offset: int) -> None:
        """Let a partition begin later, as retention does."""
        place = lib.TopicPartition(name, partition, offset)
        self._admin.delete_records([place])[place].result(SOON_S)

    def send(
        self,
        name: str,
        rows: Iterable[Mapping[str, Any] | bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        time: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Send messages, dicts as JSON."""
        producer = self._producer = self._producer or lib.Producer(dict(self._given))
        given = {} if time is None else {"timestamp": time}
        for row in rows:
            value = msgspec.json.encode(row) if isinstance(row, Mapping) else row
            producer.produce(name, value, key, partition, headers=headers, **given)
        assert producer.flush(SOON_S) == 0

    @contextmanager
    def transaction(self, name: str, who: str = "somebody") -> Iterator[Any]:
        """Send within a transaction, which is committed at the end."""
        producer = self.begun(who)
        yield producer
        producer.commit_transaction(SOON_S)
        self.settle(name)

    def begun(self, who: str = "somebody") -> Any:
        """Return a producer with an open transaction."""
        producer = lib.Producer({**self._given, "transactional.id": who})
        producer.list_topics("none", timeout=SOON_S)  # else the next call waits for half a second
        producer.init_transactions(SOON_S)
        producer.begin_transaction()
        return producer

    def abort(self, name: str, value: bytes, partition: int) -> None:
        """Leave a message of an aborted transaction behind."""
        producer = self.begun()
        producer.produce(name, value, None, partition)
        producer.flush()
        producer.abort_transaction(SOON_S)
        self.settle(name)

    def settle(self, name: str, within_s: float = SOON_S) -> None:
        """Wait until no transaction is open: a commit is answered before its marks are there."""

        def is_settled() -> bool:
            return self.ends(name) == self.ends(name, lib.IsolationLevel.READ_UNCOMMITTED)

        until(is_settled, "the end of transactions", within_s)

    def ends(self, name: str, isolation: Any = lib.IsolationLevel.READ_COMMITTED) -> list[int]:
        count = len(self._admin.list_topics(name, SOON_S).topics[name].partitions)
        asked = self._admin.list_offsets(
            {lib.TopicPartition(name, one): admin.OffsetSpec.latest() for one in range(count)},
            isolation_level=isolation,
        )
        found = {place.partition: one.result(SOON_S).offset for place, one in asked.items()}
        return [found[one] for one in range(count)]

    def read(self, name: str, isolation: str = "read_committed") -> list[Message]:
        """Return all messages, by partition and offset; those of open transactions are left out."""
        with contextlib.suppress(TimeoutError):
            self.settle(name, OPEN_S)
        own = {
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "10",  # before a broker says that there is no more: 500
            "auto.offset.reset": "earliest",
        }
        consumer = lib.Consumer({**self._given, **own})
        count = len(self.ends(name))
        consumer.assign([lib.TopicPartition(name, one, 0) for one in range(count)])
        found: list[Message] = []
        at_end: set[int] = set()

        def has_read() -> bool:
            for one in consumer.consume(1000, 0.05):
                if one.error() is not None:
                    at_end.add(one.partition())
                    continue
                kind, when = one.timestamp()
                where = (one.partition(), one.offset())
                found.append(
                    Message(*where, one.key(), one.value(), when if kind else None, one.headers())
                )
            return len(at_end) == count

        try:
            until(has_read, "the end of the topic")
        finally:
            consumer.close()
        return sorted(found, key=lambda one: (one.partition, one.offset))

    def rows(self, name: str) -> list[Any]:
        """Return the values of committed messages, which are JSON."""
        return [msgspec.json.decode(one.value) for one in self.read(name) if one.value is not None]

    def committed(self, group: str, name: str, partitions: int = 1) -> list[int]:
        """Return the offsets that a consumer group has committed."""
        consumer = lib.Consumer({**self._given, "group.id": group, "enable.auto.commit": "false"})
        places = [lib.TopicPartition(name, one) for one in range(partitions)]
        try:
            return [one.offset for one in consumer.committed(places, SOON_S)]
        finally:
            consumer.close()

    def brokers(self) -> int:
        """Return how many brokers there are."""
        return len(self._admin.list_topics(timeout=SOON_S).brokers)

    def leaders(self, name: str) -> set[tuple[str, int, int]]:
        """Return the broker that leads each partition: topic, partition, broker."""
        found = self._admin.list_topics(name, SOON_S).topics[name].partitions
        return {(name, number, one.leader) for number, one in found.items()}

    def in_sync(self, name: str, copies: int) -> bool:
        """Say whether so many brokers have all that each partition has."""
        found = self._admin.list_topics(name, SOON_S).topics[name].partitions
        return all(len(one.isrs) == copies for one in found.values())

    def exists(self, name: str) -> bool:
        return name in self._admin.list_topics(timeout=SOON_S).topics


class TopicSinkContract(EpochSinkContract):
    """The contract of a sink for a topic, of the test's own name."""

    @pytest.fixture(autouse=True)
    def place(self, kafka: KafkaServer, topics: Topics, name: str) -> None:
        self.kafka, self.topics, self.name = kafka, topics, name

    @pytest.fixture(autouse=True)
    def soon_taken_for_open(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A crash leaves a transaction open, of which nothing may be seen."""
        if "crash" in request.node.name:
            monkeypatch.setattr("tests.support.kafka.OPEN_S", 1.0)

    def make_sink(self, folder: Path) -> Sink:
        url = self.kafka.url(self.name, key="id", partitions="2", group=self.name)
        sink: Sink = hr.sinks.kafka(url)
        return sink

    def rows(self, sink: Sink) -> list[SinkRow]:
        if not self.topics.exists(self.name):
            return []
        return [(row["id"], row["name"]) for row in self.topics.rows(self.name)]
