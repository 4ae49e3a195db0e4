"""A topic that carries an internal stream: what is between two parts of a job.

Each message is a frame of rows, and its header says whose it is: the producer, the sequence of the
append, the number of the message within it, whether it is the last, and the driver's generation.
So how far a partition is, its last message says, and no group that brokers forget: an append whose
sequence is not above it is there already, and one that is half there is continued.

One process sends at a time: ``init_transactions`` fences those before, and what is read behind it
is all that they have sent. Nobody else writes to the topic, and nothing in it expires.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.bus import Appended, AppendedUpTo, LogAwayError, OffsetBatch, StreamSpec
from headrace.bus.log_stream import AppendNotifier
from headrace.bus.readable import AppendStamp, CarrierLog, DelegatedLog
from headrace.bus.spec import stream_replaced
from headrace.clock import Clock, Deadline, SystemClock
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.kafka.address import TopicAddress
from headrace.kafka.clients import (
    CLIENTS,
    MOVING_S,
    NoAnswerError,
    admin_library,
    answered,
    await_broker,
    bounded,
    error_of,
    is_unknown,
    library,
    library_error,
    library_errors,
    made,
    name_of,
)
from headrace.kafka.direct import NEVER
from headrace.kafka.topic_log import POLL_S, SILENT_S, TopicLog, describe
from headrace.records.frame import read_frame, read_header

HEADER = "headrace"
TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(16 << 20),
    "message.timestamp.type": "LogAppendTime",  # no client's clock can be wrong
}
"""What the topic needs: rows go when they are read, and not before."""

TRANSACTION_BYTES = 64 << 20
COMMIT_S = 50.0  # below transaction.timeout.ms of the client
RECHECK_S = 1.0
LOOK_BACK = 8
"""So many offsets before the end a message is looked for first; then eight times as many."""


class TopicUnfitError(InvalidInputError):
    """A topic cannot carry what is between two parts of a job."""

    code = "HR222"
    move = "name another topic, which the job creates, or correct this one"


class TopicLostError(CorruptDataError):
    """Rows that were between two parts of a job are gone from their topic."""

    code = "HR223"
    move = "start over with: headrace jobs reset JOB"


class Stamp(msgspec.Struct, frozen=True):
    """What the header of a message says: whose it is, and how far its partition is with it."""

    stream: str
    producer: str = ""
    sequence: int = -1
    number: int = 0
    last: bool = True
    generation: int = 0


def stamp_of(message: Any, where: str) -> Stamp:
    """Return what the header of a message says.

    Raises:
        TopicUnfitError: it has none: somebody else writes to the topic.
    """
    held = dict(message.headers() or ()).get(HEADER)
    try:
        return msgspec.json.decode(held or b"", type=Stamp)
    except msgspec.MsgspecError as error:
        raise TopicUnfitError(
            f"{where} partition {message.partition()} has a message at offset {message.offset()} "
            "that is not of the job whose rows it carries; let nobody else write to it, and start "
            "over with: headrace jobs reset JOB"
        ) from error


def check_own(stamp: Stamp, stream: str, where: str) -> None:
    """Refuse a message of another stream.

    Raises:
        TopicUnfitError: it is one.
    """
    if stamp.stream != stream:
        raise TopicUnfitError(
            f"{where} carries another stream, too: of another job, or of one of this name on "
            "another bus; give each a topic of its own, and start over with: headrace jobs reset "
            "JOB"
        )


class FrameLog(TopicLog):
    """A topic of frames: one offset has several rows. It keeps its number of partitions.

    Args:
        spec: of the stream.
        address: of the topic.
        stream: which stream's messages they have to be.
    """

    def __init__(self, spec: StreamSpec, address: TopicAddress, stream: str) -> None:
        super().__init__(spec, address)
        self._stream = stream

    def _offsets(self, what: Any) -> list[int]:
        return [found for found, _ in self._listed(range(self.spec.partitions), what)]

    def _check_end(self, partition: int, end: int) -> None:
        """Have a range waited for whose end brokers do not say yet.

        Who sends knows it first: marks of a transaction are written behind the answer, and a new
        leader may still look for how far it is.
        """

    def messages(self, partition: int, start: int, end: int) -> Iterator[Any]:
        """Yield the messages of [start, end)."""
        with CLIENTS.reader(self._address, partition) as reader:
            reader.seek(start)
            while start < end:
                found, start = self._next(reader, start, end, end - start)
                yield from found

    def lasts(self, begins: Sequence[int], ends: Sequence[int]) -> dict[int, Any]:
        """Return the last message of each partition that has one, which marks may follow.

        A consumer of its own looks: one that waits for what comes answers a seek 0.5 s later.
        """
        own = {
            **self._address.settings(),
            "group.id": "headrace",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "10",
        }
        left = {
            one for one, (begin, end) in enumerate(zip(begins, ends, strict=True)) if end > begin
        }
        found: dict[int, Any] = {}
        if not left:
            return found
        consumer, reach = made(library().Consumer, own, self._address), LOOK_BACK
        try:
            while left:
                starts = {one: max(begins[one], ends[one] - reach) for one in left}
                found |= self._until(consumer, starts, ends)
                left = {one for one in left - found.keys() if starts[one] > begins[one]}
                reach *= 8
        finally:
            consumer.close()
        return found

    def _until(
        self, consumer: Any, starts: Mapping[int, int], ends: Sequence[int]
    ) -> dict[int, Any]:
        """Return the last messages below the ends, of partitions that are read from some offset."""
        kind, found, over = library().KafkaError, {}, set[int]()
        deadline = Deadline(self._clock, SILENT_S)
        with library_errors(self._address):
            consumer.assign(
                [library().TopicPartition(self._address.topic, *one) for one in starts.items()]
            )
            while over != starts.keys():
                for message in consumer.consume(1000, 0.05):
                    error, at = message.error(), message.partition()
                    if error is not None and error.code() != kind._PARTITION_EOF:  # noqa: SLF001 - so it is named by the library
                        raise library().KafkaException(error)
                    if error is None and message.offset() < ends[at]:
                        found[at] = message
                    if message.offset() >= ends[at] - (error is None):
                        over.add(at)
                if deadline.expired:
                    raise LogAwayError(
                        f"{self._address.at} has not sent its last messages for {SILENT_S:.0f} s; "
                        "check that its brokers run: the job continues when they are back",
                        topic=self._address.topic,
                    )
        return found

    def _batch(
        self, messages: list[Any], first: int, behind: int, columns: Sequence[str]
    ) -> OffsetBatch:
        """Return the rows of messages, each with the offset of its message."""
        schema = self.spec.schema
        indices = [schema.get_field_index(name) for name in columns]
        found = [self._rows(message, indices) for message in messages]
        kinds = pa.schema([schema.field(index) for index in indices])
        batch = pa.concat_batches([pa.RecordBatch.from_pylist([], schema=kinds), *found])
        offsets = np.fromiter((one.offset() for one in messages), np.int64, len(messages))
        rows = np.fromiter((one.num_rows for one in found), np.int64, len(found))
        return OffsetBatch(first, batch, np.repeat(offsets, rows), behind)

    def _rows(self, message: Any, indices: list[int]) -> pa.RecordBatch:
        said = self._address.said
        check_own(stamp_of(message, said), self._stream, said)
        origin = f"{said} partition {message.partition()} offset {message.offset()}"
        data = pa.py_buffer(message.value() or b"")
        batch = read_frame(data, read_header(data, 0, origin), self.spec.schema, origin, indices)
        try:
            batch.validate(full=True)  # it comes from outside
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"{origin} is damaged: {error}") from error
        return batch


class TopicCarrier(DelegatedLog, CarrierLog):
    """A topic that carries an internal stream.

    Args:
        spec: of the stream.
        address: of the topic.
        identity: the topic's id, which can contain slashes, a slash, and that of the stream.
    """

    _log: FrameLog

    def __init__(self, spec: StreamSpec, address: TopicAddress, identity: str) -> None:
        self.spec, self._address, self._clock = spec, address, SystemClock()
        self._topic_id, _, self._stream = identity.rpartition("/")
        self._log = FrameLog(spec, address, self._stream)
        self._wait_s = address.answer_timeout_s
        self._lock = threading.RLock()
        self._producer: Any = None
        self._session: object = None
        self._at: dict[int, Stamp] = {}
        self._ends: list[int] | None = None
        """Behind the last messages, while nobody else can send."""
        self._looked: tuple[list[int], list[int]] = [], []
        self._looking = threading.Lock()
        self._trimmed: dict[int, int] = {}
        self._appends = AppendNotifier()
        self._depth = 0
        self._failed: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        """Nothing is in a transaction."""
        self._is_open, self._open_bytes, self._count = False, 0, 0
        self._pending: dict[int, Stamp] = {}
        self._sent: dict[int, list[int]] = {}

    @property
    def identity(self) -> str:  # type: ignore[override]
        """Which topic is there now, and the stream."""
        return f"{self._log.identity}/{self._stream}"

    def ends(self) -> list[int]:
        """Return the offset behind the last message of each partition.

        Marks of transactions follow it, and to find out that nothing comes behind these, a consumer
        waits. Who sends knows without a request, and what is committed before its marks are there.
        """
        known = self._ends
        if known is not None:
            return [*known]
        with self._looking:
            stable = self._log.ends()
            if stable != self._looked[0]:
                begins = self._log.begins()
                found = self._log.lasts(begins, stable)
                ends = [
                    found[one].offset() + 1 if one in found else begin
                    for one, begin in enumerate(begins)
                ]
                self._looked = stable, ends
            return [*self._looked[1]]

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
        """Yield the rows of [start, stop), several of which can have one offset."""
        end = self.ends()[partition] if stop is None else stop
        return self._log.read(
            partition, start, end, columns=columns, max_rows=max_rows, max_bytes=max_bytes
        )

    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends as soon as one of them is beyond the given one, or at the timeout."""
        return self.wait_unless(ends, timeout_s, lambda: False)

    def wait_unless(
        self, ends: Sequence[int], timeout_s: float, is_over: Callable[[], bool]
    ) -> list[int]:
        """Wait as ``wait`` does; also return when ``wake`` is called and ``is_over`` is true."""
        deadline = Deadline(self._clock, timeout_s)
        while True:
            seen = self._appends.count
            try:
                found = self.ends()
            except LogAwayError:  # who reads next says so
                found = list(ends)
            if any(end > before for end, before in zip(found, ends, strict=False)):
                return found
            if deadline.expired or is_over():
                return found
            pause = POLL_S if self._ends is None else RECHECK_S
            self._appends.wait(seen, min(pause, deadline.remaining()))

    def wake(self) -> None:
        """Let all calls of ``wait_unless`` check ``is_over`` again."""
        self._appends.notify()

    def publish(self, partition: int, frames: Sequence[bytes], stamp: AppendStamp) -> Appended:
        """Send what is not there yet of an append; see ``CarrierLog.publish``."""
        with self._lock, self._sending():
            if self._producer is None:
                self._connect()
            at = self._pending.get(partition) or self._at.get(partition)
            done = self._done(at, stamp)
            if done is None:
                end = self.ends()[partition]
                return Appended(end, end, True)
            for number in range(done, len(frames)):
                self._send(partition, frames[number], self._stamp(stamp, number, len(frames)))
            if self._depth:
                return Appended(-1, -1, False)
            sent = self._commit().get(partition, [])
            return Appended(sent[0], sent[-1] + 1, False)

    def _done(self, at: Stamp | None, stamp: AppendStamp) -> int | None:
        """Return how many messages of an append are there; ``None``: all of them."""
        if at is None or not stamp.producer:
            return 0
        if at.generation > stamp.generation > 0:
            raise NotOwnerError.taken_over(self._address.at, stamp.generation, newer=at.generation)
        if at.producer != stamp.producer or stamp.sequence > at.sequence:
            return 0
        is_half = stamp.sequence == at.sequence and not at.last
        return at.number + 1 if is_half else None

    def _stamp(self, stamp: AppendStamp, number: int, count: int) -> Stamp:
        who = (self._stream, stamp.producer, stamp.sequence)
        return Stamp(*who, number, number == count - 1, stamp.generation)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Commit what is published in a block at its end, or sooner if it is much."""
        with self._lock:
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    with self._sending():
                        self._commit()
            except BaseException:
                self._drop()  # who comes next aborts what is open
                raise
            finally:
                self._depth -= 1

    @contextmanager
    def _sending(self) -> Iterator[None]:
        try:
            yield
        except (library().KafkaException, NoAnswerError) as error:
            failed = [library().KafkaException(one) for one in self._failed]
            self._drop()
            raise self._error_for([error, *failed]) from error
        except HeadraceError:
            self._drop()
            raise

    def _error_for(self, errors: Sequence[Exception]) -> HeadraceError:
        """Say what failed: whether it passes, or a person has to fix it."""
        for one in errors:
            if name_of(one) in NEVER:
                return TopicUnfitError(
                    f"{self._address.at} refuses what is sent: {error_of(one).str()}; the epoch is "
                    "committed and waits: change the topic, and start the job again"
                )
        found = library_error(errors[-1] if len(errors) > 1 else errors[0], self._address)
        if isinstance(found, LogAwayError):
            CLIENTS.renew(self._address)
        return found

    def _connect(self) -> None:
        """Fence those before, and read how far each partition is."""
        topic = describe(self._address, self._clock)
        if str(topic.topic_id) != self._topic_id:
            who, move = "its sender", "start over with: headrace jobs reset JOB"
            raise stream_replaced(self.spec.name, str(topic.topic_id), self._topic_id, who, move)
        check_topic(self.spec, self._address, topic, self._clock)
        own: dict[str, Any] = {
            "transactional.id": f"headrace.{self.spec.name}",
            "queue.buffering.max.kbytes": str(4 * TRANSACTION_BYTES >> 10),
            "message.max.bytes": TOPIC_SETTINGS["max.message.bytes"],
        }
        session = self._session = object()

        def delivered(error: Any, message: Any) -> None:
            if session is self._session:  # and not of a producer that was left
                self._delivered(error, message)

        own["on_delivery"] = delivered
        producer = made(library().Producer, {**self._address.settings(), **own}, self._address)
        await_broker(producer, self._address.topic, self._wait_s)
        bounded(lambda: producer.init_transactions(self._wait_s), self._wait_s, producer)
        self._begin()
        self._at = {}
        begins = self._log.begins()
        found = self._log.lasts(begins, self._log.ends())
        ends = list(begins)
        for partition, begin in enumerate(begins):
            if partition in found:
                self._at[partition] = stamp_of(found[partition], self._address.said)
                check_own(self._at[partition], self._stream, self._address.said)
                ends[partition] = found[partition].offset() + 1
            elif begin:
                raise TopicLostError(
                    f"{self._address.at} has lost the rows of stream {self.spec.name!r} in "
                    f"partition {partition}: it begins at offset {begin} and has no message, "
                    "though the last one is never removed; rows between two parts of the job are "
                    "gone, so start over with: headrace jobs reset JOB"
                )
        self._producer, self._ends = producer, ends

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)
        else:
            self._sent.setdefault(message.partition(), []).append(message.offset())

    def _send(self, partition: int, frame: bytes, stamp: Stamp) -> None:
        if not self._is_open:
            self._failed.clear()
            self._producer.begin_transaction()
            self._is_open = True
        headers = [(HEADER, msgspec.json.encode(stamp))]
        while True:
            try:
                self._producer.produce(
                    self._address.topic, frame, partition=partition, headers=headers
                )
                break
            except BufferError:
                self._producer.poll(0.1)
                if self._failed:
                    raise library().KafkaException(self._failed[0]) from None
        self._pending[partition] = stamp
        self._count += 1
        self._open_bytes += len(frame)
        if self._open_bytes >= TRANSACTION_BYTES:
            self._commit()

    def _commit(self) -> dict[int, list[int]]:
        """Make what is in the transaction visible, all at once; returns the offsets."""
        if not self._is_open:
            return {}
        producer = self._producer
        fault("bus.frame_written")
        bounded(lambda: producer.commit_transaction(COMMIT_S), COMMIT_S, producer)
        deadline = Deadline(self._clock, self._wait_s)
        while sum(map(len, self._sent.values())) < self._count:  # all are there: it is committed
            if deadline.expired:
                raise NoAnswerError("offsets of messages are not known")
            producer.poll(0.01)
        fault("bus.index_written")
        sent, ends = self._sent, [*(self._ends or ())]
        for partition, offsets in sent.items():
            ends[partition] = max(offsets) + 1
        self._at |= self._pending
        self._begin()
        self._ends = ends
        self._appends.notify()
        return sent

    def trim(self, partition: int, before_offset: int) -> int:
        """Remove messages below an offset, but not the last one, which says how far it is.

        Nothing goes before this process has sent, for then it knows which one that is.
        """
        known, begin = self._ends, self._trimmed.get(partition, 0)
        limit = begin if known is None else min(before_offset, known[partition] - 1)
        if limit <= begin:
            return begin
        place = library().TopicPartition(self._address.topic, partition, limit)

        def ask() -> int:
            asked = CLIENTS.admin(self._address).delete_records(
                [place], request_timeout=self._wait_s
            )
            return int(asked[place].result().low_watermark)

        self._trimmed[partition] = answered(self._address, ask, self._clock)
        return self._trimmed[partition]

    def up_to(self, producer: str, sequence: int) -> list[AppendedUpTo]:
        """Return the end of each partition as of a sequence of a producer."""
        pairs = zip(self.begins(), self.ends(), strict=True)
        return [
            self._up_to(partition, begin, end, (producer, sequence))
            for partition, (begin, end) in enumerate(pairs)
        ]

    def _up_to(self, partition: int, begin: int, end: int, wanted: tuple[str, int]) -> AppendedUpTo:
        known = -1
        for message in self._log.messages(partition, begin, end):
            stamp = stamp_of(message, self._address.said)
            if stamp.producer != wanted[0]:
                continue
            if stamp.sequence > wanted[1]:
                return AppendedUpTo(message.offset(), wanted[1])
            known = stamp.sequence
        return AppendedUpTo(end, known)

    def _drop(self) -> None:
        """Leave the producer, so that the next call fences it, and reads how far it came."""
        producer, self._producer = self._producer, None
        self._ends = self._session = None
        if producer is not None:
            with suppress(library().KafkaException):
                producer.purge(blocking=False)
                producer.flush(0)
        self._begin()

    def close(self) -> None:
        """Leave the producer; a transaction that is open is aborted by who comes next."""
        with self._lock:
            self._drop()


def made_topic(spec: StreamSpec, address: TopicAddress) -> str:
    """Create the topic of a stream, unless it is there and empty; returns its id.

    Raises:
        TopicUnfitError: it has messages, or other settings or partitions.
        LogAwayError: no broker answers.
    """
    clock = SystemClock()
    new = admin_library().NewTopic(address.topic, spec.partitions, -1, config=TOPIC_SETTINGS)

    def ask() -> bool:
        asked = CLIENTS.admin(address).create_topics(
            [new], request_timeout=address.answer_timeout_s
        )
        try:
            asked[address.topic].result()
        except library().KafkaException as error:
            if name_of(error) != "TOPIC_ALREADY_EXISTS":
                raise
            return False
        return True

    is_new = answered(address, ask, clock)
    topic = _known_topic(address, clock)
    if not is_new:
        check_topic(spec, address, topic, clock)
        ends = FrameLog(spec, address, "").ends()
        if any(ends):
            raise TopicUnfitError(
                f"{address.at} exists and has messages: its partitions end at {ends}; what is "
                "between two parts of a job needs a topic of its own, so name one that does not "
                "exist, or delete it if it is what is left of a job that is gone",
                topic=address.topic,
            )
    return str(topic.topic_id)


def _known_topic(address: TopicAddress, clock: Clock) -> Any:
    """Return a topic once brokers know that it was created, and who leads its partitions."""
    deadline = Deadline(clock, address.answer_timeout_s)
    while True:
        with library_errors(address):
            topics = library().TopicCollection([address.topic])
            admin = CLIENTS.admin(address)
            try:
                asked = admin.describe_topics(topics, request_timeout=address.answer_timeout_s)
                found = asked[address.topic].result()
            except library().KafkaException as error:
                if not is_unknown(error) or deadline.expired:
                    raise
            else:
                if all(one.leader is not None for one in found.partitions) or deadline.expired:
                    return found
        clock.sleep(MOVING_S)


def check_topic(spec: StreamSpec, address: TopicAddress, topic: Any, clock: Clock) -> None:
    """Refuse a topic that may lose rows, or has too few partitions.

    Raises:
        TopicUnfitError: it is such a one.
        LogAwayError: no broker answers.
    """
    parts = admin_library()
    place = parts.ConfigResource(parts.ResourceType.TOPIC, address.topic)

    def ask() -> dict[str, str]:
        asked = CLIENTS.admin(address).describe_configs(
            [place], request_timeout=address.answer_timeout_s
        )
        return {name: str(one.value) for name, one in asked[place].result().items()}

    def settled() -> dict[str, str]:
        deadline = Deadline(clock, address.answer_timeout_s)
        while True:
            try:
                return ask()
            except library().KafkaException as error:  # a broker may not have heard of it
                if not is_unknown(error) or deadline.expired:
                    raise
            clock.sleep(MOVING_S)

    held = answered(address, settled, clock)
    wrong = [
        f"{name} is {held.get(name)}, expected {wanted}"
        for name, wanted in TOPIC_SETTINGS.items()
        if held.get(name) != wanted
    ]
    if len(topic.partitions) != spec.partitions:
        wrong.append(f"it has {len(topic.partitions)} partitions, expected {spec.partitions}")
    if wrong:
        raise TopicUnfitError(
            f"{address.at} cannot carry what is between two parts of a job: {'; '.join(wrong)}; "
            "change that with Kafka's tools, or name a topic that does not exist, which the job "
            "creates",
            topic=address.topic,
        )


def delete_topic(address: TopicAddress, identity: str) -> None:
    """Delete the topic of a stream, unless it is gone or another one by now.

    Raises:
        InvalidInputError: the broker refuses.
        LogAwayError: no broker answers.
    """
    topic_id, clock = identity.rpartition("/")[0], SystemClock()

    def found() -> Any:
        topics = library().TopicCollection([address.topic])
        asked = CLIENTS.admin(address).describe_topics(
            topics, request_timeout=address.answer_timeout_s
        )
        try:
            return asked[address.topic].result()
        except library().KafkaException as error:
            if is_unknown(error):
                return None
            raise

    def ask() -> bool:
        there = found()
        if there is None or str(there.topic_id) != topic_id:
            return True
        admin = CLIENTS.admin(address)
        try:
            admin.delete_topics([address.topic], request_timeout=address.answer_timeout_s)[
                address.topic
            ].result()
        except library().KafkaException as error:
            if not is_unknown(error):
                raise
        return False

    CLIENTS.forget(address)
    deadline = Deadline(clock, address.answer_timeout_s)
    while not answered(address, ask, clock) and not deadline.expired:
        clock.sleep(MOVING_S)
