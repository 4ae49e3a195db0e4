"""A topic as a readable log: ranges of offsets, of committed messages only.

Offsets of a topic have gaps, where transactions end or were aborted. A range is over when a message
behind it has come, or the partition's end, which is where the oldest open transaction begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from operator import is_not, methodcaller
from typing import Any

import numpy as np

from headrace.bus import ExternalLog, LogAwayError, OffsetBatch, StreamSpec
from headrace.bus.log import offset_gone
from headrace.bus.readable import FAIL, Taker
from headrace.clock import Clock, Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.kafka.address import TopicAddress
from headrace.kafka.clients import (
    CLIENTS,
    PartitionReader,
    admin_library,
    answered,
    library,
    library_error,
    name_of,
)
from headrace.kafka.formats import MessageDecoder
from headrace.kafka.kinds import decoder_of

BATCH_MESSAGES = 10_000
TAKE_S = 0.1
SILENT_S = 30.0
"""How long nothing may come of a range that is known to be there."""

POLL_S = 0.02
"""From one question for the ends to the next while a job waits for news."""

_ERROR, _OFFSET = methodcaller("error"), methodcaller("offset")
_GONE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}


class TopicLog(ExternalLog):
    """A topic, read by offsets.

    Args:
        spec: of the stream that it is read as.
        address: of the topic.
        clock: for waiting.
        take: gets messages that cannot be read; ``None``: these are an error.
    """

    def __init__(
        self,
        spec: StreamSpec,
        address: TopicAddress,
        clock: Clock | None = None,
        take: Taker | None = None,
    ) -> None:
        self.spec, self._address, self._take = spec, address, take
        self.expired = address.option("offsets_expired", FAIL)
        self._clock = clock or SystemClock()
        self._news = threading.Event()

    @cached_property
    def _decoder(self) -> MessageDecoder:
        return decoder_of(self.spec, self._address)

    def refusing(self, take: Taker) -> TopicLog:
        """Return the same topic, whose messages that cannot be read go to a function."""
        return TopicLog(self.spec, self._address, self._clock, take)

    @property
    def identity(self) -> str:  # type: ignore[override]
        """The topic's id, which another of the name does not have; asked for each time."""
        return str(self._described().topic_id)

    def _described(self) -> Any:
        return describe(self._address, self._clock)

    def begins(self) -> list[int]:
        """Return the first readable offset of each partition."""
        return self._offsets(admin_library().OffsetSpec.earliest())

    def ends(self) -> list[int]:
        """Return the next offset of each partition: up to where transactions are over."""
        return self._offsets(admin_library().OffsetSpec.latest())

    def _offsets(self, what: Any) -> list[int]:
        return [found for found, _ in self._listed(range(len(self._described().partitions)), what)]

    def _listed(self, partitions: Sequence[int], what: Any) -> list[tuple[int, int]]:
        """Ask for an offset of each partition; returns it, and the timestamp that it has."""
        lib, topic = library(), self._address.topic

        def ask() -> dict[int, Any]:
            asked = CLIENTS.admin(self._address).list_offsets(
                {lib.TopicPartition(topic, partition): what for partition in partitions},
                isolation_level=lib.IsolationLevel.READ_COMMITTED,
                request_timeout=self._address.answer_timeout_s,
            )
            return {place.partition: one.result() for place, one in asked.items()}

        found = answered(self._address, ask, self._clock)
        return [(found[one].offset, found[one].timestamp) for one in partitions]

    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return the first offset with a timestamp at or after a time; the end if there is none."""
        spec = admin_library().OffsetSpec
        [(offset, _)] = self._listed([partition], spec.for_timestamp(max(0, time_ms)))
        return self._listed([partition], spec.latest())[0][0] if offset < 0 else offset

    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return that it is not known: brokers have no index of event times."""
        del partition
        return None

    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one of them is beyond the given one, or at the timeout."""
        return self.wait_unless(ends, timeout_s, lambda: False)

    def wait_unless(
        self, ends: Sequence[int], timeout_s: float, is_over: Callable[[], bool]
    ) -> list[int]:
        """Wait as ``wait`` does; also return when ``wake`` is called and ``is_over`` is true."""
        deadline = Deadline(self._clock, timeout_s)
        while True:
            self._news.clear()
            try:
                found = self.ends()
            except LogAwayError:  # who reads next says so
                found = list(ends)
            known = [*ends, *([0] * (len(found) - len(ends)))]
            if any(end > before for end, before in zip(found, known, strict=False)):
                return found
            if deadline.expired or is_over():
                return found
            self._news.wait(min(POLL_S, deadline.remaining()))

    def wake(self) -> None:
        """Let all calls of ``wait_unless`` check ``is_over`` again."""
        self._news.set()

    def note(self, reader: str, offsets: Sequence[int]) -> None:
        """Commit offsets to a consumer group, so that Kafka's tools show how far a reader is."""
        lib, topic = library(), self._address.topic
        places = [
            lib.TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)
        ]
        group = self._address.option("group", reader)

        def ask() -> None:
            CLIENTS.commit(self._address, group, places)

        answered(self._address, ask, self._clock)

    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the messages of [start, stop) in order; see ``ReadableLog.read``."""
        wanted = self._wanted(partition, columns)
        end = self._end(partition, start) if stop is None else stop
        rows = read = 0
        with CLIENTS.reader(self._address, partition) as reader:
            reader.seek(start)
            while start < end:
                most = end - start if max_rows is None else min(end - start, max_rows - rows)
                messages, behind = self._next(reader, start, end, most)
                found = self._batch(messages, start, behind, wanted)
                start = behind
                rows, read = rows + found.batch.num_rows, read + found.batch.nbytes
                yield found
                is_full = max_bytes is not None and read >= max_bytes
                if is_full or (max_rows is not None and rows >= max_rows):
                    return

    def _wanted(self, partition: int, columns: Sequence[str] | None) -> list[str]:
        names = self.spec.schema.names if columns is None else list(columns)
        unknown = sorted(set(names) - set(self.spec.schema.names))
        if unknown:
            raise InvalidInputError(
                f"{self._address.said} has no columns {unknown}; found {self.spec.schema.names}",
                stream=self.spec.name,
            )
        if partition < 0:
            raise InvalidInputError(f"found partition {partition}, expected one from 0 on")
        return names

    def _end(self, partition: int, start: int) -> int:
        self._check_end(partition, start)
        return self.ends()[partition]

    def _check_end(self, partition: int, end: int) -> None:
        """Refuse a range behind the end, to which a reader has come."""
        ends = self.ends()
        if partition >= len(ends) or ends[partition] < end:
            raise InvalidInputError(
                f"{self._address.said} has no offset {end - 1} in partition {partition}; its "
                f"partitions end at {ends}",
                stream=self.spec.name,
            )

    def _next(
        self, reader: PartitionReader, start: int, end: int, most: int
    ) -> tuple[list[Any], int]:
        """Return the next messages of a range, and the offset behind them."""
        deadline = Deadline(self._clock, SILENT_S)
        while True:
            taken = reader.take(min(most, BATCH_MESSAGES), TAKE_S)
            errors = list(map(_ERROR, taken))
            good, reached = taken, 0
            if any(map(is_not, errors, repeat(None))):
                good = [one for one, error in zip(taken, errors, strict=True) if error is None]
            for message, error in zip(taken, errors, strict=True) if good is not taken else ():
                if error is not None:
                    passed = self._passed(message, error, start, end)
                    if passed is None:
                        reader.seek_again(start)
                        good, reached = [], 0
                        break
                    reached = max(reached, passed)
                    if not good and reached < end:
                        self._check_end(reader.partition, end)
            if good or reached >= end:
                later = [one for one in good if one.offset() >= end] if _over(good, end) else []
                own = good[: len(good) - len(later)]
                behind = end if later or reached >= end else _last(own) + 1
                reader.leave(behind, later)
                return own, behind
            if deadline.expired:
                raise LogAwayError(
                    f"{self._address.at} has not sent offset {start} of partition "
                    f"{reader.partition} for {SILENT_S:.0f} s; check that its brokers run: the job "
                    "continues when they are back",
                    topic=self._address.topic,
                )

    def _passed(self, message: Any, error: Any, start: int, end: int) -> int | None:
        """Return the end of the partition that an event names; raise if it is an error.

        ``None`` says that the event is about an offset where the reader was before: the client may
        still report that one is gone when it has been sent to another.
        """
        kind = library().KafkaError
        if error.code() == kind._PARTITION_EOF:  # noqa: SLF001 - so it is named by the library
            return int(message.offset())
        failure = library().KafkaException(error)
        if name_of(failure) in _GONE:
            begin = self.begins()[message.partition()]
            if start < begin:
                raise offset_gone(self.spec.name, message.partition(), start, begin)
            self._check_end(message.partition(), end)
            return None
        if error.retriable() or name_of(failure).startswith("_"):
            return 0  # it is tried again, until nothing has come for long
        raise library_error(failure, self._address)

    def _batch(
        self, messages: list[Any], first: int, behind: int, columns: Sequence[str]
    ) -> OffsetBatch:
        """Make columns of messages."""
        decoded = self._decoder.decode(messages, columns)
        for one in decoded.bad:
            offset = messages[one.place].offset()
            error = InvalidInputError(
                f"{self._address.said} partition {messages[one.place].partition()} offset "
                f"{offset}: {one.error.message}"
            )
            if self._take is None:
                raise error
            self._take(offset, one.value, error)
        if decoded.places is None:
            if len(messages) == behind - first:
                return OffsetBatch(first, decoded.batch)
            some = messages
        else:
            some = [messages[place] for place in decoded.places]
        places = np.fromiter(map(_OFFSET, some), np.int64, len(some))
        return OffsetBatch(first, decoded.batch, places, behind)


def _over(messages: Sequence[Any], end: int) -> bool:
    return bool(messages) and _last(messages) >= end


def _last(messages: Sequence[Any]) -> int:
    return int(messages[-1].offset())


def topic_names(address: TopicAddress) -> list[str]:
    """Return the names of all topics there.

    Raises:
        InvalidInputError: the broker refuses.
        LogAwayError: none answers.
    """

    def ask() -> list[str]:
        return list(CLIENTS.admin(address).list_topics(timeout=address.answer_timeout_s).topics)

    return answered(address, ask, SystemClock())


def describe(address: TopicAddress, clock: Clock | None = None) -> Any:
    """Return what brokers say of a topic.

    Raises:
        InvalidInputError: there is no such topic.
        LogAwayError: none answers.
    """

    def ask() -> Any:
        topics = library().TopicCollection([address.topic])
        asked = CLIENTS.admin(address).describe_topics(
            topics, request_timeout=address.answer_timeout_s
        )
        return asked[address.topic].result()

    return answered(address, ask, clock or SystemClock())
