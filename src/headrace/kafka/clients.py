"""The Kafka clients of a process: made when first needed, kept between epochs.

A consumer reads one partition, and stays where it is with what it has fetched ahead, so the next
range of that partition is mostly there already. Those of a parent process are left alone. The
library is loaded when first needed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from headrace import extras
from headrace.bus import LogAwayError
from headrace.clock import Clock, Deadline
from headrace.errors import HeadraceError, InvalidInputError
from headrace.kafka.address import TopicAddress
from headrace.runtime.processors import deferred_gc

MOVING_S = 0.1
KEPT_READERS = 64
FETCHED_KIB = 16 << 10
"""What a reader fetches ahead, by default."""

FETCH_AGAIN_MS = 25
"""When a reader that has enough looks whether it still has, by default; the client's own is 1 s."""

GRACE_S = 5.0
COMMIT_S = 300.0
"""A commit of offsets may wait for a coordinator so long at most: a client takes no more."""

_ABANDONED: list[object] = []
_REFUSED = {
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}
_MOVING = {
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_LEADER_EPOCH",
    "UNSTABLE_OFFSET_COMMIT",
}
_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"}


def library() -> Any:
    """Return the client library.

    Raises:
        InvalidInputError: it is not installed.
    """
    return extras.load("confluent_kafka", "a topic of Kafka")


def admin_library() -> Any:
    """Return the part of the client library that asks and changes brokers."""
    library()
    return extras.load("confluent_kafka.admin", "a topic of Kafka")


def error_of(error: Exception) -> Any:
    """Return what an exception of the library is about."""
    return error.args[0] if error.args else error


def is_unknown(error: Exception) -> bool:
    """Say whether an exception of the library is that of a topic that is not there."""
    return name_of(error) in _UNKNOWN


def name_of(error: Exception) -> str:
    """Return the name of the error that an exception of the library has."""
    found = error_of(error)
    return str(found.name()) if hasattr(found, "name") else type(error).__name__


def refusal(error: Exception, address: TopicAddress) -> InvalidInputError | None:
    """Return what a user has to fix after an exception of the library; ``None``: it can pass."""
    said = _text(error)
    if is_unknown(error):
        return InvalidInputError(
            f"{address.at} does not exist: {said}; create it with Kafka's tools, or correct the "
            "address",
            topic=address.topic,
        )
    if name_of(error) not in _REFUSED:  # a call only times out where a connection is refused
        said = CLIENTS.refused(address)
    if said:
        return InvalidInputError(
            f"{address.at} refuses this client: {said}; give it the login and the rights that it "
            "needs, as settings in the address",
            topic=address.topic,
        )
    return None


def library_error(error: Exception, address: TopicAddress) -> HeadraceError:
    """Return the error for an exception of the library while a topic is read."""
    return refusal(error, address) or LogAwayError(
        f"{address.at} does not answer: {_text(error)}; check that its brokers run: the job "
        "continues when they are back",
        topic=address.topic,
    )


def _text(error: Exception) -> str:
    found = error_of(error)
    return str(found.str()) if hasattr(found, "str") else str(error)


def _is_refusal(error: Any) -> bool:
    """Say whether a connection failed for a login or a certificate, and not for a broker's end."""
    said = str(error.str()).lower()
    return error.name() == "_AUTHENTICATION" or (error.name() == "_SSL" and "certificate" in said)


@contextmanager
def library_errors(address: TopicAddress) -> Iterator[None]:
    """Raise exceptions of the library as errors of Headrace."""
    try:
        yield
    except library().KafkaException as error:
        failure = library_error(error, address)
        if isinstance(failure, LogAwayError):
            CLIENTS.renew(address)
        raise failure from error


_Answer = TypeVar("_Answer")


def answered(address: TopicAddress, ask: Callable[[], _Answer], clock: Clock) -> _Answer:
    """Return an answer of brokers, asked again while a leader or coordinator moves.

    Raises:
        InvalidInputError: they refuse.
        LogAwayError: there is none.
    """
    with library_errors(address):
        return asked_again(address, ask, clock)


def asked_again(address: TopicAddress, ask: Callable[[], _Answer], clock: Clock) -> _Answer:
    """Do the same, and raise what the library raises."""
    deadline = Deadline(clock, address.answer_timeout_s)
    while True:
        try:
            return ask()
        except library().KafkaException as error:
            if name_of(error) not in _MOVING or deadline.expired:
                raise
        clock.sleep(MOVING_S)


def made(kind: Any, settings: Mapping[str, Any], address: TopicAddress) -> Any:
    """Return a client.

    Raises:
        InvalidInputError: a setting is none, or cannot be.
    """
    try:
        return kind(dict(settings))
    except (library().KafkaException, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{address.at}: a setting of the client is refused: {_text(error)}; settings are those "
            "of librdkafka"
        ) from error


class NoAnswerError(Exception):
    """A call of the library has not come back long after its own timeout."""


def bounded(call: Callable[[], Any], seconds: float, clients: object) -> None:
    """Make a call that has a timeout, and may not keep to it when a coordinator was away.

    Args:
        call: what to do.
        seconds: its own timeout.
        clients: that it uses; they are kept without use, since to close them would hang, too.

    Raises:
        NoAnswerError: it is still under way.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="headrace-kafka", daemon=True)
    thread.start()
    thread.join(seconds + GRACE_S)
    if thread.is_alive():
        _ABANDONED.append(clients)
        raise NoAnswerError(f"no answer in {seconds + GRACE_S:.0f} s")
    if failed:
        raise failed[0]


def await_broker(producer: Any, topic: str, seconds: float) -> None:
    """Let a producer connect before ``init_transactions``, if a broker answers within a second.

    A client that no broker has answered yet looks for its coordinator again after half a second.
    Without an answer the call itself, which comes next, says why.
    """
    with suppress(library().KafkaException):
        producer.list_topics(topic, timeout=min(1.0, seconds))


class PartitionReader:
    """A consumer of one partition, where it was left; for one thread at a time.

    Args:
        address: of the topic.
        partition: from 0.
        settings: of the client.
    """

    def __init__(self, address: TopicAddress, partition: int, settings: Mapping[str, str]) -> None:
        self.address, self.partition = address, partition
        own = {
            "queued.max.messages.kbytes": str(FETCHED_KIB),
            "fetch.queue.backoff.ms": str(FETCH_AGAIN_MS),
            **settings,
            "group.id": address.option("group", "headrace"),
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
        }
        self._consumer = made(library().Consumer, own, address)
        self._position: int | None = None
        self.held: list[Any] = []
        """Messages that were taken and belong to the next range."""

    def seek(self, offset: int) -> None:
        """Read from an offset on, unless it is there already."""
        if self._position == offset:
            return
        self.held, self._position = [], offset
        with library_errors(self.address):
            place = library().TopicPartition(self.address.topic, self.partition, offset)
            self._consumer.assign([place])

    def seek_again(self, offset: int) -> None:
        """Read from an offset on, after an error."""
        self._position = None
        self.seek(offset)

    def take(self, most: int, timeout_s: float) -> list[Any]:
        """Return messages, and errors among them; none when nothing came."""
        if self.held:
            found, self.held = self.held[:most], self.held[most:]
            return found
        # With a timeout, it waits for all of them, and where transactions end there are fewer.
        with library_errors(self.address):
            found = self._there(most)
            if not found:
                found = list(self._consumer.consume(1, timeout_s))
                found += self._there(most - 1) if found and most > 1 else []
            return found

    def _there(self, most: int) -> list[Any]:
        with deferred_gc():
            return list(self._consumer.consume(most, 0.0))

    def leave(self, offset: int, held: list[Any]) -> None:
        """Note where the next range begins, and what is there of it."""
        self._position, self.held = offset, held

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class KafkaClients:
    """The clients of this process, by the settings that they were made with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inherited: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._admins: dict[Any, Any] = {}
        self._refused: dict[Any, str] = {}
        self._producers: dict[Any, Any] = {}
        self._readers: OrderedDict[Any, list[PartitionReader]] = OrderedDict()
        self._committers: dict[Any, Any] = {}

    def _own(self) -> None:
        """Leave those of a parent process alone: their threads are not here."""
        if self._pid != os.getpid():
            own = (self._admins, self._readers, self._producers, self._committers)
            self._inherited.append(own)
            self._begin()

    def admin(self, address: TopicAddress) -> Any:
        """Return a client that asks brokers."""
        settings = address.settings()
        key = tuple(sorted(settings.items()))
        with self._lock:
            self._own()
            if key not in self._admins:
                refused = self._refused

                def failed(error: Any) -> None:
                    if _is_refusal(error):
                        refused[key] = str(error.str())

                given = {**settings, "error_cb": failed}
                self._admins[key] = made(admin_library().AdminClient, given, address)
            return self._admins[key]

    def refused(self, address: TopicAddress) -> str:
        """Return why brokers do not let the client that asks them in; empty: they do."""
        key = tuple(sorted(address.settings().items()))
        with self._lock:
            self._own()
            admin, refused = self._admins.get(key), self._refused
        if admin is not None:
            admin.poll(0)  # calls what has been noted of its connections
        return refused.get(key, "")

    def producer(self, address: TopicAddress, most_bytes: int) -> Any:
        """Return an idempotent producer, for any thread.

        Args:
            address: of a topic; those with the same settings share it.
            most_bytes: of a message.
        """
        settings = address.settings()
        own = {
            "message.timeout.ms": str(int(2000 * address.answer_timeout_s)),
            **settings,
            "enable.idempotence": "true",
            "partitioner": "murmur2_random",
            "message.max.bytes": str(most_bytes),
        }
        key = tuple(sorted(settings.items()))
        with self._lock:
            self._own()
            if key not in self._producers:
                self._producers[key] = made(library().Producer, own, address)
            return self._producers[key]

    def commit(self, address: TopicAddress, group: str, places: Sequence[Any]) -> None:
        """Commit offsets of a group, by a consumer that reads nothing.

        The client that asks brokers could, but librdkafka aborts the process when the connection to
        the group's coordinator is lost meanwhile (its issue 4605).
        """
        settings, seconds = address.settings(), min(address.answer_timeout_s, COMMIT_S)
        key = (group, *sorted(settings.items()))
        own = {
            **settings,
            "group.id": group,
            "enable.auto.commit": "false",
            "session.timeout.ms": str(int(1000 * seconds)),  # so long it waits for a coordinator
        }
        with self._lock:
            self._own()
            if key not in self._committers:
                self._committers[key] = made(library().Consumer, own, address)
            committer = self._committers[key]

        def call() -> None:
            for one in committer.commit(offsets=list(places), asynchronous=False):
                if one.error is not None:
                    raise library().KafkaException(one.error)

        try:
            bounded(call, seconds, committer)
        except NoAnswerError as error:
            with self._lock:
                self._committers.pop(key, None)
            raise LogAwayError(
                f"{address.at} does not answer: {error}; check that its brokers run: the job "
                "continues when they are back",
                topic=address.topic,
            ) from error

    def renew(self, address: TopicAddress) -> None:
        """Ask with another client from now on.

        One that knew a coordinator which went away may wait for it even when it is back.
        """
        key = tuple(sorted(address.settings().items()))
        with self._lock:
            self._own()
            self._admins.pop(key, None)
            self._refused.pop(key, None)
            self._producers.pop(key, None)

    @contextmanager
    def reader(self, address: TopicAddress, partition: int) -> Iterator[PartitionReader]:
        """Lend a reader of a partition; one that fails is not kept."""
        settings = address.settings()
        key = (address.topic, partition, tuple(sorted(settings.items())))
        with self._lock:
            self._own()
            kept = self._readers.pop(key, [])
            one = kept.pop() if kept else None
            if kept:
                self._readers[key] = kept
        one = one or PartitionReader(address, partition, settings)
        is_whole = False
        try:
            yield one
            is_whole = True
        except GeneratorExit:  # who reads has enough, and it was left where it is
            is_whole = True
            raise
        finally:
            if is_whole:
                self._keep(key, one)
            else:
                one.close()

    def _keep(self, key: Any, one: PartitionReader) -> None:
        with self._lock:
            self._readers.setdefault(key, []).append(one)
            self._readers.move_to_end(key)
            over = self._readers.popitem(last=False)[1] if self._is_full() else []
        for left in over:
            left.close()

    def forget(self, address: TopicAddress) -> None:
        """Close the readers of a topic that is to be deleted: another may have its name."""
        with self._lock:
            self._own()
            keys = [key for key in self._readers if key[0] == address.topic]
            left = [one for key in keys for one in self._readers.pop(key)]
        for one in left:
            one.close()

    def _is_full(self) -> bool:
        return sum(map(len, self._readers.values())) > KEPT_READERS

    def close(self) -> None:
        """Close all of them; those that are needed again are made again."""
        with self._lock:
            self._own()
            readers = [one for kept in self._readers.values() for one in kept]
            consumers = [*readers, *self._committers.values()]
            self._begin()
        for one in consumers:
            one.close()


CLIENTS = KafkaClients()
"""Of this process."""

atexit.register(CLIENTS.close)
