"""Messages that slots send while an epoch runs: at least once, without a copy in the job's storage.

The producer is idempotent, so its own retries double nothing; an epoch that is run again sends its
rows again. A slot has sent all of its rows before it reports them, and so before the epoch counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.bus import LogAwayError
from headrace.clock import Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.kafka.address import TopicAddress
from headrace.kafka.clients import CLIENTS, error_of, library, name_of, refusal

NEVER = frozenset(
    {
        "INVALID_CONFIG",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
    }
)
"""Answers of brokers that stay the same however often a message is sent."""

POLL_S = 0.1
TIMES_ANSWER = 3
"""How many times as long as for another answer a slot waits for its messages."""


def send_now(address: TopicAddress, batches: Sequence[pa.RecordBatch], most_bytes: int) -> int:
    """Send messages, and return when brokers have all of them; how many.

    Args:
        address: of the topic.
        batches: with ``key``, ``value``, ``time`` and ``headers``.
        most_bytes: of a message.

    Raises:
        LogAwayError: brokers do not take them; some may be there.
        InvalidInputError: they refuse them, or this client.
    """
    producer = CLIENTS.producer(address, most_bytes)
    failed: list[Any] = []
    answers: list[None] = []  # whichever thread polls appends to it
    sent = 0

    def delivered(error: Any, message: Any) -> None:
        del message
        answers.append(None)
        if error is not None:
            failed.append(error)

    deadline = Deadline(SystemClock(), TIMES_ANSWER * address.answer_timeout_s)
    for batch in batches:
        for row in batch.to_pylist():
            time = {} if row["time"] is None else {"timestamp": row["time"]}
            headers = row["headers"]
            pairs = None if headers is None else [(one["name"], one["value"]) for one in headers]
            while not failed:
                try:
                    producer.produce(
                        address.topic,
                        row["value"],
                        row["key"],
                        headers=pairs,
                        on_delivery=delivered,
                        **time,
                    )
                    sent += 1
                    break
                except BufferError:
                    producer.poll(POLL_S)
        producer.poll(0)
    while len(answers) < sent and not failed:
        if deadline.expired:
            raise _away(address, "messages were not taken in time")
        producer.poll(POLL_S)
    if failed:
        raise _error_for(address, library().KafkaException(failed[0]))
    return sent


def _error_for(address: TopicAddress, error: Exception) -> Exception:
    CLIENTS.renew(address)
    if (found := refusal(error, address)) is not None:
        return found
    said = str(error_of(error).str())
    if name_of(error) in NEVER:
        return InvalidInputError(
            f"{address.at} refuses what is sent: {said}; change the topic, and start the job again"
        )
    return _away(address, said)


def _away(address: TopicAddress, said: str) -> LogAwayError:
    return LogAwayError(
        f"{address.at} does not answer: {said}; check that its brokers run: the epoch is run again "
        "when they are back",
        topic=address.topic,
    )
