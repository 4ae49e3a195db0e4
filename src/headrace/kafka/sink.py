"""A topic as a sink: the rows of an epoch become messages in transactions.

Slots make the messages, and the manifest names them; they are sent afterwards. Each
transaction also commits, as metadata of the sink's consumer group, how far the sink is: lineage and
epoch, how many messages of it, and the generation of the driver. So whatever dies, who comes next
reads what is in, and sends the rest: an epoch is there once for readers of committed messages.

A small epoch is sent by the driver. Of a larger one each file is a share, with a transactional id
and a group of its own, which a slot sends; what slots did not send, the driver does. Which epochs
are shared, and which file is which share, follows from the manifest alone.

Two drivers cannot both send: ``init_transactions`` of the later one fences the former. Since one
that was frozen could come later, a driver reads the metadata behind it, and ends if that is of a
newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus import LogAwayError
from headrace.clock import Deadline, SystemClock
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Bytes
from headrace.graph.sinks import Receiver, ReceiverAwayError, Sink, SinkEpoch, SinkSite
from headrace.kafka.address import TopicAddress
from headrace.kafka.batch_calls import BatchCalls
from headrace.kafka.clients import (
    CLIENTS,
    MOVING_S,
    NoAnswerError,
    admin_library,
    asked_again,
    await_broker,
    bounded,
    error_of,
    is_unknown,
    library,
    made,
    name_of,
    refusal,
)
from headrace.kafka.direct import NEVER, send_now
from headrace.kafka.formats import HEADER_LIST, HEADERS, KEY, TIMESTAMP, encoded_keys
from headrace.kafka.kinds import column_mistakes, encoder_of
from headrace.records.schema import as_milliseconds

MESSAGES = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("time", pa.int64()),
        ("headers", HEADER_LIST),
    ]
)
TRANSACTION_MESSAGES = 100_000
TRANSACTION_BYTES = 64 << 20
SHARED_MESSAGES = 20_000
"""From so many on, slots send an epoch of several files. Who finishes an epoch goes by the same."""

COMMIT_S = 50.0  # below transaction.timeout.ms of the client
MAX_MESSAGE_BYTES = 1_000_000
OVERHEAD_BYTES = 512
TRIES = 3
_FENCED = {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"}


class Progress(msgspec.Struct, frozen=True):
    """How far a sink, or a share of it, is: so many messages of an epoch, or all of it.

    ``shares`` is how many a sink has ever had: a driver that starts fences them all.
    """

    origin: str
    generation: int
    lineage: str = ""
    epoch: int = -1
    messages: int = 0
    whole: bool = True
    shares: int = 0


@dataclass(frozen=True)
class KafkaSink(Sink):
    """A topic to write to; made of an address.

    Args:
        address: of the topic.
        time: the column that messages have their timestamps of, set when planned.
    """

    address: str
    time: str | None = None

    suffix = "messages"

    @property
    def topic(self) -> TopicAddress:
        """The address, read."""
        return TopicAddress.parse(self.address)

    @property
    def label(self) -> str:
        """The topic."""
        return self.topic.topic.lstrip("._-") or "kafka"

    @property
    def identity(self) -> str:
        """The topic and the form of its messages."""
        key = f", key {', '.join(self.topic.key)}" if self.topic.key else ""
        how = ", at least once" if self.topic.is_direct else ""
        return f"{self.topic.said}, {self.topic.option('format', 'json')}{key}{how}"

    @property
    def promise(self) -> str:
        """The guarantee for readers."""
        if self.topic.is_direct:
            return (
                f"at-least-once at {self.topic.servers}: slots send while an epoch runs, and again "
                "if it is run again"
            )
        return (
            f"exactly-once at {self.topic.servers}, for readers with isolation.level="
            "read_committed: messages and how far the sink is are one transaction"
        )

    def bound(self, time: str | None, behind_ms: int) -> KafkaSink:
        """Take timestamps from the event time."""
        del behind_ms
        return KafkaSink(self.address, time)

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        pattern = [f"found topic {self.topic.topic!r}; patterns are for inputs"]
        return self.topic.mistakes() + (pattern if "*" in self.topic.topic else [])

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the mistakes: columns that messages cannot be made of."""
        wrong = [
            f"{self.topic.said}: key column {name!r} is not there; found {schema.names}"
            for name in self.topic.key
            if name not in schema.names
        ]
        given = {KEY: (pa.binary(), pa.string()), TIMESTAMP: (pa.int64(),), HEADERS: (HEADER_LIST,)}
        for name, kinds in given.items():
            if name in schema.names and schema.field(name).type not in kinds:
                wrong.append(
                    f"column {name!r} is {schema.field(name).type}; expected "
                    f"{' or '.join(map(str, kinds))}"
                )
        return wrong + column_mistakes(self.topic, schema)

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the messages of rows, in their order.

        Raises:
            InvalidInputError: a message is larger than the client sends, or the registry refuses
                its schema.
            LogAwayError: the registry does not answer.
        """
        content = _Pieces()
        with pa.ipc.new_file(pa.PythonFile(content, "w"), MESSAGES) as writer:
            for batch in self._messages(batches, schema):
                writer.write_batch(batch)
        return content.written

    @property
    def sends_at_once(self) -> bool:
        """Say whether slots send rows while an epoch runs: ``delivery=at_least_once``."""
        return self.topic.is_direct

    def send(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        """Send the messages of rows, in their order; returns when brokers have them.

        Raises:
            InvalidInputError: a message is too large, or is refused.
            LogAwayError: brokers or the registry do not answer.
        """
        send_now(self.topic, list(self._messages(batches, schema)), self.most_bytes)

    def _messages(
        self, batches: Sequence[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        encode, most = encoder_of(self.topic, schema), self.most_bytes
        for batch in batches:
            keys, values = encoded_keys(batch, self.topic.key), encode(batch)
            sizes = _lengths(keys) + _lengths(values)
            if len(over := np.flatnonzero(sizes > most)):
                raise self._too_large(int(sizes[over[0]]), most, keys[int(over[0])].as_py())
            arrays = [keys, values, self._times(batch), self._headers(batch)]
            yield pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    @property
    def most_bytes(self) -> int:
        """What key and value of a message may have."""
        return int(dict(self.topic.client).get("message.max.bytes", MAX_MESSAGE_BYTES))

    def _too_large(self, size: int, most: int, key: bytes | None) -> InvalidInputError:
        return InvalidInputError(
            f"a message for {self.topic.said} with key {(key or b'')[:60]!r} has {size} bytes, "
            f"more than message.max.bytes, {most}; make it smaller, or raise this in the address "
            "and max.message.bytes of the topic"
        )

    def _times(self, batch: pa.RecordBatch) -> pa.Array:
        name = TIMESTAMP if TIMESTAMP in batch.schema.names else self.time
        if name is None or name not in batch.schema.names:
            return pa.nulls(batch.num_rows, pa.int64())
        return as_milliseconds(batch.column(name))

    def _headers(self, batch: pa.RecordBatch) -> pa.Array:
        if HEADERS in batch.schema.names:
            return batch.column(HEADERS)
        return pa.nulls(batch.num_rows, HEADER_LIST)

    def open(self, site: SinkSite) -> Receiver:
        """Return the sending side, after a look at the topic, which is created if it is missing."""
        return (DirectReceiver if self.sends_at_once else TransactionalReceiver)(self, site)

    def open_share(self, site: SinkSite, share: int) -> Receiver:
        """Return what sends a file of each epoch, under a ``transactional.id`` of its own."""
        return TransactionalReceiver(self, site, share)


class _Pieces:
    """What Arrow writes of a file, which are mostly the buffers of batches, and no copy of them."""

    closed = False

    def __init__(self) -> None:
        self.written: list[Bytes] = []
        self._size = 0

    def write(self, piece: Bytes) -> int:
        self.written.append(piece)
        size = memoryview(piece).nbytes
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


class _FencedError(Exception):
    """A producer of the same transactional id has begun since."""


class TransactionalReceiver(Receiver):
    """Sends epochs in transactions; connected when it is made, and again after a failure.

    Args:
        sink: the topic.
        site: who sends.
        share: which files of epochs, for one that sends no others; ``None``: all, and it is the
            driver's.

    Raises:
        InvalidInputError: the topic cannot take what is sent, or refuses the client.
        ReceiverAwayError: no broker answers.
        NotOwnerError: a newer driver sends.
    """

    def __init__(self, sink: KafkaSink, site: SinkSite, share: int | None = None) -> None:
        self._sink, self._address, self._site = sink, sink.topic, site
        self._wait_s = self._address.answer_timeout_s
        default = f"headrace.{site.job}.{site.operator}"
        self._name = self._address.option("group") or default
        self._share = share
        if share is not None:
            self._name += f".{share}"
        self._producer: Any = None
        self._batches: BatchCalls | None = None
        self._consumer: Any = None
        self._at = Progress("", 0)
        self._has_opened = self._is_cut = False
        self._failed: list[Any] = []
        self._tried(lambda: None)
        for number in range(self._at.shares):  # slots of earlier drivers may still send
            TransactionalReceiver(sink, site, number).close()

    def _tried(self, call: Callable[[], None]) -> None:
        """Connect where that is due, and make a call, again where another one was fenced off."""
        for _ in range(TRIES):
            with suppress(_FencedError), self._library_errors():
                if self._producer is not None:
                    self._producer.poll(0)
                if not self._is_connected or self._is_cut:
                    self._connect()
                call()
                return
            self.close()
        raise self._away("others with the same transactional.id send at the same time")

    @property
    def _is_connected(self) -> bool:
        return self._producer is not None

    def _connect(self) -> None:
        """Fence those before, and read how far the sink is."""
        self.close()
        self._is_cut = False
        if self._share is None:
            self._check_topic()
            self._check_schema()
        settings = self._address.settings()
        lib = library()
        own = {
            "group.id": self._name,
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
        }
        self._consumer = made(lib.Consumer, {**settings, **own}, self._address)
        self._producer = made(lib.Producer, {**settings, **self._producing()}, self._address)
        producer = self._producer
        self._batches = BatchCalls.of(producer, self._address.topic)
        await_broker(producer, self._address.topic, self._wait_s)
        self._bounded(lambda: producer.init_transactions(self._wait_s), self._wait_s)
        self._at = self._read()
        newest = self._at.generation if self._at.origin == self._site.origin else 0
        is_other = self._has_opened and self._at.origin not in {"", self._site.origin}
        if newest > self._site.generation > 0 or is_other:
            raise NotOwnerError.taken_over(
                self._address.at,
                self._site.generation,
                job=self._site.job,
                operator=self._site.operator,
            )
        mine = (self._site.origin, self._site.generation)
        if self._site.generation and (self._at.origin, self._at.generation) != mine:
            self._send((), msgspec.structs.replace(self._at, origin=mine[0], generation=mine[1]))
        self._has_opened = True

    def _producing(self) -> dict[str, Any]:
        return {
            "transactional.id": self._name,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": str(2 * TRANSACTION_MESSAGES),
            "queue.buffering.max.kbytes": str(2 * TRANSACTION_BYTES >> 10),
            "message.max.bytes": str(self._sink.most_bytes),
            "on_delivery": self._delivered,
            "delivery.report.only.error": True,
            "error_cb": self._cut,
        }

    def _cut(self, error: Any) -> None:
        """Note that a connection broke since the clients were made."""
        del error
        self._is_cut = True

    def _bounded(self, call: Callable[[], Any], seconds: float) -> None:
        """Make a call that has a timeout, and may not keep to it when a coordinator was away."""
        try:
            bounded(call, seconds, (self._producer, self._consumer, self._batches))
        except NoAnswerError as error:
            self._producer = self._consumer = self._batches = None
            raise self._away(str(error)) from error

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        if error is not None:
            self._failed.append(error)

    def _check_topic(self) -> None:
        """Create the topic if it is missing; refuse one that takes less than is sent."""
        admin, parts = CLIENTS.admin(self._address), admin_library()
        name = self._address.topic
        asked = admin.describe_topics(
            library().TopicCollection([name]), request_timeout=self._wait_s
        )
        try:
            asked[name].result()
        except library().KafkaException as error:
            if not is_unknown(error):
                raise
            new = parts.NewTopic(name, self._address.partitions or -1, -1)
            try:
                admin.create_topics([new], request_timeout=self._wait_s)[name].result()
            except library().KafkaException as failure:
                if name_of(failure) != "TOPIC_ALREADY_EXISTS":
                    raise
            self._await_topic()
        most = self._most_bytes()
        if most < self._sink.most_bytes + OVERHEAD_BYTES:
            raise InvalidInputError(
                f"{self._address.at} takes messages of {most} bytes (max.message.bytes), and the "
                f"sink sends up to {self._sink.most_bytes} (message.max.bytes) with "
                f"{OVERHEAD_BYTES} around them; raise the former, or lower the latter",
                operator=self._site.operator,
            )

    def _check_schema(self) -> None:
        """Have the registry, if there is one, take the schema of the rows before any is read."""
        try:
            encoder_of(self._address, self._site.schema)
        except LogAwayError as error:
            raise ReceiverAwayError(error.message, operator=self._site.operator) from error

    def _most_bytes(self) -> int:
        """Return what a message of the topic may have, by a broker that has heard of the topic."""
        parts = admin_library()
        place = parts.ConfigResource(parts.ResourceType.TOPIC, self._address.topic)
        clock = SystemClock()
        deadline = Deadline(clock, self._wait_s)
        while True:
            try:
                asked = CLIENTS.admin(self._address).describe_configs(
                    [place], request_timeout=self._wait_s
                )
                return int(asked[place].result()["max.message.bytes"].value)
            except library().KafkaException as error:
                if not is_unknown(error) or deadline.expired:
                    raise
            clock.sleep(MOVING_S)

    def _await_topic(self) -> None:
        """Return when brokers know the topic that was created."""
        clock = SystemClock()
        deadline = Deadline(clock, self._wait_s)
        while not deadline.expired:
            try:
                asked = CLIENTS.admin(self._address).describe_topics(
                    library().TopicCollection([self._address.topic]),
                    request_timeout=self._wait_s,
                )
                found = asked[self._address.topic].result()
            except library().KafkaException as error:
                if not is_unknown(error):
                    raise
            else:
                if all(one.leader is not None for one in found.partitions):
                    return
            clock.sleep(MOVING_S)

    def _read(self) -> Progress:
        """Ask for the metadata of the group, once no transaction of it is open.

        A consumer asks: librdkafka 2.16 ends the process if a client that is none is answered that
        the coordinator has moved or does not know the group's offsets yet.
        """
        lib, consumer = library(), self._consumer

        def ask() -> Any:
            place = lib.TopicPartition(self._address.topic, 0)
            [found] = consumer.committed([place], timeout=self._wait_s)
            if found.error is not None:
                raise lib.KafkaException(found.error)
            return found

        found = asked_again(self._address, ask, SystemClock())
        if found.offset < 0 or not found.metadata:
            return Progress("", 0)
        try:
            return msgspec.json.decode(found.metadata, type=Progress)
        except msgspec.MsgspecError as error:
            raise InvalidInputError(
                f"consumer group {self._name!r} of {self._address.at} is another program's: its "
                f"metadata is {found.metadata[:100]!r}; give the sink another one: ?group=NAME",
                operator=self._site.operator,
            ) from error

    def commit(self, epoch: SinkEpoch) -> None:
        """Send what is not there yet of an epoch.

        Raises:
            NotOwnerError: a newer driver sends; what was sent before it stays.
            ReceiverAwayError: no broker answers; some transactions of the epoch may be there, and
                the next call continues behind them.
            InvalidInputError: the topic refuses what is sent.
        """
        if not self.share_out(epoch):
            self._tried(partial(self._commit, epoch))
            return
        for number, file in enumerate(epoch.files):
            share = TransactionalReceiver(self._sink, self._site, number)
            try:
                share.commit(SinkEpoch(epoch.lineage, epoch.epoch, (file,)))
            finally:
                share.close()

    def share_out(self, epoch: SinkEpoch) -> bool:
        """Return whether slots may send the files of an epoch.

        Notes first how many there are, by a transaction, which a driver that was fenced cannot.

        Raises:
            NotOwnerError: a newer driver sends.
            ReceiverAwayError: no broker answers.
        """
        count = len(epoch.files)
        if count < 2 or epoch.rows < SHARED_MESSAGES:
            return False
        self._tried(partial(self._note_shares, count))
        return True

    def _note_shares(self, count: int) -> None:
        shares = max(count, self._at.shares)
        self._send((), msgspec.structs.replace(self._at, shares=shares))

    def _commit(self, epoch: SinkEpoch) -> None:
        at = self._at
        is_here = at.lineage == epoch.lineage and at.epoch == epoch.epoch
        if at.lineage == epoch.lineage and (at.epoch > epoch.epoch or (is_here and at.whole)):
            return
        done = at.messages if is_here else 0
        for messages, is_last in _transactions(epoch, done):
            done += sum(batch.num_rows for batch in messages)
            progress = Progress(
                self._site.origin,
                self._site.generation,
                epoch.lineage,
                epoch.epoch,
                done,
                is_last,
                self._at.shares,
            )
            self._send(messages, progress)
            fault("sink.part_sent")

    def _send(self, messages: Sequence[pa.RecordBatch], progress: Progress) -> None:
        """Send messages and how far the sink is then, in one transaction."""
        producer, topic = self._producer, self._address.topic
        self._failed.clear()
        producer.begin_transaction()
        for batch in messages:
            if not (self._batches and self._batches.produce(batch)):
                self._send_each(batch)
        place = library().TopicPartition(
            topic, 0, max(0, progress.epoch), msgspec.json.encode(progress).decode()
        )
        group = self._consumer.consumer_group_metadata()
        self._bounded(
            lambda: producer.send_offsets_to_transaction([place], group, self._wait_s),
            self._wait_s,
        )
        if messages:
            fault("sink.sent")
        self._bounded(lambda: producer.commit_transaction(COMMIT_S), COMMIT_S)
        self._at = progress

    def _send_each(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            given = {} if row["time"] is None else {"timestamp": row["time"]}
            headers = row["headers"]
            pairs = None if headers is None else [(one["name"], one["value"]) for one in headers]
            while True:
                try:
                    self._producer.produce(
                        self._address.topic, row["value"], row["key"], headers=pairs, **given
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
                    if self._failed:
                        raise library().KafkaException(self._failed[0]) from None

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        try:
            yield
        except library().KafkaException as error:
            raise self._error_for(error) from error

    def _error_for(self, error: Any) -> Exception:
        """Return what failed: whether it passes, or a person has to fix it."""
        failed = [library().KafkaException(one) for one in self._failed]
        self.close()
        for one in (error, *failed):
            if name_of(one) in _FENCED:
                return _FencedError()
            if (found := refusal(one, self._address)) is not None:
                return found
            if name_of(one) in NEVER:
                return InvalidInputError(
                    f"{self._address.at} refuses what is sent: {error_of(one).str()}; the epoch is "
                    "committed and waits: change the topic, and start the job again",
                    operator=self._site.operator,
                )
        return self._away(str(error_of(error).str()))

    def _away(self, said: str) -> ReceiverAwayError:
        CLIENTS.renew(self._address)
        return ReceiverAwayError(
            f"{self._address.at} does not answer: {said}; check that its brokers run: what is "
            "committed is sent when they are back",
            operator=self._site.operator,
        )

    def close(self) -> None:
        """Close the clients; a transaction that is open is aborted by who comes next."""
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()
        if producer is not None:
            with suppress(library().KafkaException):
                producer.purge(blocking=False)
                producer.flush(0)
        if consumer is not None:
            consumer.close()


class DirectReceiver(TransactionalReceiver):
    """Looks at the topic when it is made; slots send, and it sends what a merge has prepared."""

    @property
    def _is_connected(self) -> bool:
        return False

    def _connect(self) -> None:
        self.close()
        self._check_topic()
        self._check_schema()

    def share_out(self, epoch: SinkEpoch) -> bool:
        """Return that slots have sent it already."""
        del epoch
        return False

    def commit(self, epoch: SinkEpoch) -> None:
        """Send what files of an epoch have; those of a job's own epochs are none.

        Raises:
            ReceiverAwayError: no broker answers; some messages may be there.
            InvalidInputError: the topic refuses what is sent.
        """
        for prepared in epoch.files:
            with pa.memory_map(str(prepared.path)) as file, pa.ipc.open_file(file) as reader:
                batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
                try:
                    send_now(self._address, batches, self._sink.most_bytes)
                except LogAwayError as error:
                    raise ReceiverAwayError(error.message, operator=self._site.operator) from error


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each value; 0 for a null."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths, np.int64)


def _transactions(epoch: SinkEpoch, done: int) -> Iterator[tuple[list[pa.RecordBatch], bool]]:
    """Yield the messages of an epoch behind the first ones, as transactions take them."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    left = epoch.rows - done
    for batch in _messages(epoch, done):
        rest = batch
        while rest.num_rows:
            sizes = np.cumsum(_lengths(rest.column("key")) + _lengths(rest.column("value")))
            fit = 1 + int(np.searchsorted(sizes, TRANSACTION_BYTES - size))
            taken = rest.slice(0, min(fit, TRANSACTION_MESSAGES - count))
            rest = rest.slice(taken.num_rows)
            waiting.append(taken)
            count, size = count + taken.num_rows, size + int(sizes[taken.num_rows - 1])
            if count >= TRANSACTION_MESSAGES or size >= TRANSACTION_BYTES:
                left -= count
                yield waiting, left == 0
                waiting, count, size = [], 0, 0
    if waiting or left:
        yield waiting, True


def _messages(epoch: SinkEpoch, done: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages of an epoch behind the first ones."""
    for prepared in epoch.files:
        if done >= prepared.rows:
            done -= prepared.rows
            continue
        with pa.memory_map(str(prepared.path)) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if done >= batch.num_rows:
                    done -= batch.num_rows
                    continue
                yield batch.slice(done)
                done = 0
