"""Topics by their addresses: what the core asks for when an input or output is ``kafka://``."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pyarrow as pa

from headrace.bus import StreamSpec
from headrace.kafka.address import TopicAddress
from headrace.kafka.carrier import TopicCarrier, delete_topic, made_topic
from headrace.kafka.formats import TIMESTAMP
from headrace.kafka.kinds import columns_of
from headrace.kafka.sink import KafkaSink
from headrace.kafka.topic_log import TopicLog, describe, topic_names


class KafkaConnector:
    """The plug-in for ``kafka://``: a ``LogConnector``."""

    def mistakes(self, address: str) -> list[str]:
        """Return the mistakes of an address, one sentence each, without a request to a server."""
        return TopicAddress.parse(address).mistakes()

    def name(self, address: str) -> str:
        """Return the topic's name, as far as it can be that of a stream."""
        return re.sub(r"^[._-]+", "", TopicAddress.parse(address).topic)

    def matching(self, address: str) -> dict[str, str]:
        """Return name and address of each topic that matches a pattern now, in order of names.

        Topics of Kafka itself, which begin with ``__``, match nothing.

        Raises:
            InvalidInputError: the broker refuses.
            LogAwayError: no broker answers.
        """
        pattern = TopicAddress.parse(address)
        found = [
            topic
            for topic in topic_names(pattern)
            if fnmatchcase(topic, pattern.topic) and not topic.startswith("__")
        ]
        return {self.name(one): one for one in map(pattern.of, sorted(found))}

    def said(self, address: str) -> str:
        """Return a description of the topic; the same for all addresses that lead to it."""
        return TopicAddress.parse(address).said

    def spec(self, name: str, address: str, schema: pa.Schema | None) -> StreamSpec:
        """Return a topic as a stream, as it is now: its event time is that of its messages.

        Raises:
            InvalidInputError: there is no such topic, or not with such columns.
            LogAwayError: no broker answers.
        """
        topic = TopicAddress.parse(address)
        columns = columns_of(topic, schema)
        return StreamSpec(name, len(describe(topic).partitions), columns, TIMESTAMP)

    def open(self, spec: StreamSpec, address: str) -> TopicLog:
        """Return the topic as a log, without a request to a server until it is read."""
        return TopicLog(spec, TopicAddress.parse(address))

    def sink(self, address: str) -> KafkaSink:
        """Return the sink that writes to a topic."""
        return KafkaSink(address)

    def carrier_mistakes(self, address: str) -> list[str]:
        """Return the mistakes of an address of a topic that is to carry an internal stream."""
        topic = TopicAddress.parse(address)
        given = ", ".join(name for name, _ in topic.options)
        wrong = topic.mistakes()
        if "*" in topic.topic:
            wrong.append(f"found topic {topic.topic!r}; patterns are for inputs")
        if given:
            wrong.append(
                f"found options {given}; expected settings of the client only: messages, keys and "
                "partitions of this topic are the job's own"
            )
        return wrong

    def make_carrier(self, spec: StreamSpec, address: str) -> str:
        """Create a topic for a stream, unless it is there and empty; returns its id.

        Raises:
            TopicUnfitError: it has messages, or cannot carry the stream.
            LogAwayError: no broker answers.
        """
        return made_topic(spec, TopicAddress.parse(address))

    def carry(self, spec: StreamSpec, address: str, identity: str) -> TopicCarrier:
        """Return the topic that carries a stream, without a request until it is used."""
        return TopicCarrier(spec, TopicAddress.parse(address), identity)

    def drop_carrier(self, address: str, identity: str) -> None:
        """Delete the topic of a stream, unless it is gone or another one by now.

        Raises:
            InvalidInputError: the broker refuses.
            LogAwayError: no broker answers.
        """
        delete_topic(TopicAddress.parse(address), identity)


connector = KafkaConnector()
"""What the entry point names."""


def sink(address: str) -> KafkaSink:
    """Write to a topic of Kafka in transactions, exactly once for readers of committed messages.

    Needs ``pip install "headrace[kafka]"`` where the job runs.

    Args:
        address: ``kafka://HOST:9092/TOPIC``, with options behind ``?``: ``key=COLUMN``,
            ``partitions=N`` of a new topic, and settings of the client.
    """
    return KafkaSink(address)
