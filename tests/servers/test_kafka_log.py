"""Topics as readable logs: the contract on a real broker, and what only topics have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.kafka import KafkaServer, Topics, answer_late, connector

from headrace.bus import OffsetGoneError, ReadableLog
from headrace.testing.log_contract import LOG_SCHEMA, LogRow, ReadableLogContract


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"log{abs(hash(request.node.nodeid))}"


class TopicContract(ReadableLogContract):
    @pytest.fixture(autouse=True)
    def place(self, kafka: KafkaServer, topics: Topics, name: str) -> None:
        self.kafka, self.topics, self.name = kafka, topics, name

    def opened(self) -> ReadableLog:
        # A reader that goes back waits until a broker has answered that there is no more.
        address = self.kafka.url(self.name, fetch__wait__max__ms="20")
        return connector.open(connector.spec("events", address, LOG_SCHEMA), address)

    def open_log(self, folder: Path) -> ReadableLog:
        self.topics.create(self.name, 2)
        return self.opened()

    def drop_before(self, log: ReadableLog, partition: int, offset: int) -> None:
        self.topics.drop_before(self.name, partition, offset)

    def replaced(self, log: ReadableLog) -> ReadableLog:
        self.topics.delete(self.name)
        self.topics.create(self.name, 2)
        return self.opened()


class TestTopic(TopicContract):
    def append(self, log: ReadableLog, partition: int, rows: Sequence[LogRow]) -> None:
        for row in rows:
            value = dict(zip(("id", "at", "name"), row, strict=True))
            self.topics.send(self.name, [value], partition=partition, time=row[1])


class TestTransactionalTopic(TopicContract):
    """Each append is a transaction, behind one that is aborted: offsets have gaps."""

    def append(self, log: ReadableLog, partition: int, rows: Sequence[LogRow]) -> None:
        lines = [b'{"id": %d, "at": %d, "name": "%b"}' % (a, b, c.encode()) for a, b, c in rows]
        self.topics.abort(self.name, b'{"id": -1}', partition)
        with self.topics.transaction(self.name) as producer:
            for line, row in zip(lines, rows, strict=True):
                producer.produce(self.name, line, None, partition, timestamp=row[1])


def test_an_error_about_an_offset_of_before_ends_no_read(
    kafka: KafkaServer, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(name)
    topics.send(name, [{"id": n} for n in range(6)])
    topics.drop_before(name, 0, 4)
    address = kafka.url(name)
    log = connector.open(connector.spec("events", address, LOG_SCHEMA), address)
    for _ in range(2):
        answer_late(monkeypatch)
        found = list(log.read(0, 4, 6, columns=["id"]))
        assert [n for one in found for n in one.batch["id"].to_pylist()] == [4, 5]
    answer_late(monkeypatch)
    with pytest.raises(OffsetGoneError, match="offset 1"):
        list(log.read(0, 1, 6))
