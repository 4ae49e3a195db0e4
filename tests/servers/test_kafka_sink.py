"""A topic as an epoch sink: the contract on a real broker, and what only topics have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.kafka import KafkaServer, Topics

import headrace as hr
from headrace.sinks import Sink
from headrace.testing.sink_contract import EpochSinkContract, SinkRow


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"sink{abs(hash(request.node.nodeid))}"


class TestTopicSink(EpochSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, kafka: KafkaServer, topics: Topics, name: str) -> None:
        self.kafka, self.topics, self.name = kafka, topics, name

    def make_sink(self, folder: Path) -> Sink:
        url = self.kafka.url(self.name, key="id", partitions="2", group=self.name)
        sink: Sink = hr.sinks.kafka(url)
        return sink

    def rows(self, sink: Sink) -> list[SinkRow]:
        if not self.topics.exists(self.name):
            return []
        return [(row["id"], row["name"]) for row in self.topics.rows(self.name)]
