"""Totals of a ``MonoidProcessor`` on a Redis server: appended by epochs, combined by readers.

An entry is a list: the partial results of a key, oldest first, as MessagePack. An epoch pushes one
to each of its keys' lists and reads none of them; ``RedisTotals`` combines what is there. A batch
and the epoch's progress are one step of the server: a script that does nothing unless the epoch is
where the sender thinks it is, so a batch whose answer was lost is not appended again. It also keeps
the newest generation of a job's drivers, and does nothing for an older one: a copy of a job has
another lineage, which the former driver, that may have frozen, would not meet. Batches travel many
at a time; long lists are compacted now and then. The client library is loaded when first needed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace import extras
from headrace.closeable import Closeable
from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Bytes
from headrace.graph.processors import PARTIAL, MonoidProcessor, PartialSink, state_type
from headrace.graph.sinks import Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.records.keys import decode_key, encode_columns, encode_key
from headrace.redaction import SecretText, without_login
from headrace.sinks.postgres import resolved_url

PROGRESS = "~progress"
"""Behind the namespace: how far each epoch is. Encoded keys do not begin like this."""
SCANNED = 1000

_COMPACT = """
local head = redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
if #head ~= tonumber(ARGV[1]) or redis.sha1hex(table.concat(head)) ~= ARGV[2] then return 0 end
redis.call('LTRIM', KEYS[1], ARGV[1], -1)
redis.call('LPUSH', KEYS[1], ARGV[3])
return 1
"""


def redis_library() -> Any:
    """Return the client library.

    Raises:
        InvalidInputError: it is not installed.
    """
    return extras.load("redis", "a partial result on Redis")


@dataclass(frozen=True)
class PartialMerge:
    """How partial results of one processor combine.

    Args:
        factory: makes the processor.
        state: the type of partial results, for msgspec.
    """

    factory: Callable[[], MonoidProcessor[Any, Any]]
    state: Any

    @classmethod
    def of(cls, factory: Callable[[], MonoidProcessor[Any, Any]]) -> PartialMerge:
        """Return it of a class, whose ``identity`` says what partial results are."""
        return cls(factory, state_type(factory, "identity", {}))

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what is made again where it is needed."""
        return {"factory": self.factory, "state": self.state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields of a frozen record."""
        vars(self).update(state)

    @cached_property
    def processor(self) -> MonoidProcessor[Any, Any]:
        """The user's class, whose ``combine`` is called."""
        return self.factory()

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(self.state)

    def total(self, partials: Iterable[bytes]) -> Any:
        """Return partial results as one, in their order; the identity of none.

        Raises:
            CorruptDataError: one does not read as the declared type.
        """
        made = self.processor
        try:
            return reduce(made.combine, map(self._decoder.decode, partials), made.identity())
        except msgspec.DecodeError as error:
            raise CorruptDataError(
                f"a partial result does not read as {self.state!r}: {error}; give the class and "
                "the namespace of the job that wrote it"
            ) from error

    def joined(self, partials: Sequence[bytes]) -> bytes:
        """Return partial results as one, encoded."""
        return msgspec.msgpack.encode(self.total(partials), order="deterministic")


class RedisTotals(Closeable):
    """The totals of a job's ``monoid(..., state=hr.sinks.redis_partials(...))``, read at any time.

    A read sees complete batches of an epoch, but can miss the epoch's last batches while they are
    being sent. Errors of the server are those of its client library.

    Args:
        url: of the server, with its password.
        namespace: of the job's entries.
        merge: how they combine.
    """

    def __init__(self, url: str, namespace: str, merge: PartialMerge) -> None:
        self._redis = redis_library().Redis.from_url(url)
        self._prefix, self._merge = namespace.encode(), merge

    def get(self, key: Any) -> Any:
        """Return the result of a key; that of the identity if nothing was added."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the result of each key, with one round trip."""
        names = [self._prefix + encode_key(k if isinstance(k, tuple) else (k,)) for k in keys]
        show = self._merge.processor.result
        return [show(self._merge.total(chain)) for chain in read_partials(self._redis, names)]

    def items(self, values: Mapping[str, Sequence[Any]] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and their results, in no order; others can write meanwhile.

        Args:
            values: the wanted values by key column; other keys are read too, and skipped.
        """
        del values  # entries have no index
        for names in self._names():
            for name, chain in zip(names, read_partials(self._redis, names), strict=True):
                key = decode_key(name.removeprefix(self._prefix))
                if chain:
                    shown = self._merge.processor.result(self._merge.total(chain))
                    yield (key[0] if len(key) == 1 else key), shown

    def compact(self) -> int:
        """Combine each list with more than one partial result; returns how many."""
        return sum(compact_partials(self._redis, names, self._merge) for names in self._names())

    def _names(self) -> Iterator[list[bytes]]:
        found: list[bytes] = []
        pattern = _escaped(self._prefix) + b"*"
        for name in self._redis.scan_iter(pattern, count=SCANNED):
            if not name.startswith(self._prefix + PROGRESS.encode()):
                found.append(name)
            if len(found) >= SCANNED:
                yield found
                found = []
        if found:
            yield found

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


def read_partials(redis: Any, names: Sequence[bytes]) -> list[list[bytes]]:
    """Return the partial results of each entry, with one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.lrange(name, 0, -1)
        found: list[list[bytes]] = pipe.execute()
    return found


def compact_partials(redis: Any, names: Sequence[bytes], merge: PartialMerge) -> int:
    """Put lists together, each in one step of the server, unless another did it meanwhile.

    Returns:
        How many were put together.
    """
    script = redis.register_script(_COMPACT)
    with redis.pipeline(transaction=False) as pipe:
        for name, chain in zip(names, read_partials(redis, names), strict=True):
            if len(chain) > 1:
                digest = hashlib.sha1(b"".join(chain), usedforsecurity=False).hexdigest()
                script([name], [len(chain), digest, merge.joined(chain)], client=pipe)
        return sum(pipe.execute())


def _escaped(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\" else bytes([c]) for c in prefix)


IN_FLIGHT = 32
TIMEOUT_S = 10.0
NEWEST = "~newest/"
"""What names of fields begin with that hold the newest generation of a sender."""

HOLDER = "~holder/"
"""What names of fields begin with that hold the origin of who opened the sink last."""

_FENCE = """
local own = tonumber(ARGV[9])
if own > 0 then
  local holder = redis.call('HGET', KEYS[1], ARGV[10])
  if holder and holder ~= ARGV[11] and ARGV[12] == '' then return {-3} end
  local newest = tonumber(redis.call('HGET', KEYS[1], ARGV[8]) or '0')
  if newest > own then return {-3} end
  if newest < own then redis.call('HSET', KEYS[1], ARGV[8], ARGV[9]) end
  if holder ~= ARGV[11] then redis.call('HSET', KEYS[1], ARGV[10], ARGV[11]) end
end
"""
# An entry that is no list ends the script in its midst, and nothing is rolled back: how far it
# came is noted, so that nothing is appended twice once the entry was put in order.
_APPEND = (
    _FENCE
    + """
local at = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if at ~= ARGV[2] then return {-1} end
local done, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local rows = cmsgpack.unpack(ARGV[6])
local long = {0}
for i = 1 + 2 * tonumber(ARGV[7]), #rows, 2 do
  local length = redis.pcall('RPUSH', rows[i], rows[i + 1])
  if type(length) == 'table' then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ':' .. done)
    return {-2, rows[i]}
  end
  if length >= limit then long[#long + 1] = rows[i] end
  done = done + 1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ':' .. done)
return long
"""
)


class _Batch(NamedTuple):
    """Some rows of an epoch: how many are before them, and they themselves as MessagePack."""

    first: int
    rows: int
    data: bytes


@dataclass(frozen=True)
class PartialsTarget:
    """Where partial results go.

    Args:
        url: of the server, with its password.
        namespace: what names of entries begin with.
        compact_at: length at which a list is combined.
        merge: how partial results combine.
    """

    url: str
    namespace: str
    compact_at: int
    merge: PartialMerge


class RedisReceiver(Receiver):
    """Connected when it is made, and again after a connection broke.

    Args:
        place: where it sends.
        site: who sends.

    Raises:
        InvalidInputError: the server refuses the login.
        ReceiverAwayError: it does not answer.
    """

    def __init__(self, place: PartialsTarget, site: SinkSite) -> None:
        self._place, self._site = place, site
        self._library = redis_library()
        self._redis: Any = None
        self._prefix = place.namespace.encode()
        try:
            if self._fenced(self._connected()):
                raise self._refused()
        except (self._library.RedisError, OSError) as error:
            raise self._described(error) from error

    def _connected(self) -> Any:
        if self._redis is None:
            self._redis = self._library.Redis.from_url(
                self._place.url,
                socket_timeout=TIMEOUT_S,
                socket_connect_timeout=TIMEOUT_S,
                retry=None,
                max_connections=1,
            )
            self._script = self._redis.register_script(_APPEND)
            self._fence = self._redis.register_script(_FENCE + "return {0}")
        return self._redis

    @property
    def _driver(self) -> tuple[str, int, str, str]:
        site, sent = self._site, f"{self._site.job}/{self._site.operator}"
        return f"{NEWEST}{sent}/{site.origin}", site.generation, f"{HOLDER}{sent}", site.origin

    def _fenced(self, redis: Any) -> bool:
        """Note this driver, which opens the sink; says whether a newer one was noted."""
        progress = self._prefix + PROGRESS.encode()
        arguments = [""] * 7 + [*self._driver, "opens"]
        return bool(self._fence([progress], arguments, client=redis) != [0])

    def _refused(self) -> NotOwnerError:
        return NotOwnerError.taken_over(
            f"{self._place.namespace}* at {without_login(self._place.url)}",
            self._site.generation,
            job=self._site.job,
            operator=self._site.operator,
        )

    def commit(self, epoch: SinkEpoch) -> None:
        """Append what is not there yet, and put together the lists that became long.

        Raises:
            NotOwnerError: a newer driver sends; what was sent before it stays.
            ReceiverAwayError: the server does not answer; a part of the epoch may be there, and
                the next call continues behind it.
            InvalidInputError: it refuses what is sent.
        """
        try:
            long: dict[bytes, None] = {}
            while not self._sent(epoch, long):
                pass
            if long:
                compact_partials(self._connected(), list(long), self._place.merge)
        except (self._library.RedisError, OSError) as error:
            raise self._described(error) from error

    def _sent(self, epoch: SinkEpoch, long: dict[bytes, None]) -> bool:
        """Send what is missing; ``False``: another driver sends as well, look again."""
        redis, progress = self._connected(), self._prefix + PROGRESS.encode()
        sender = f"{self._site.job}/{self._site.operator}/{epoch.lineage}"
        at = (redis.hget(progress, sender) or b"").decode()
        number, _, rows = at.partition(":")
        if at and int(number) > epoch.epoch:
            return True
        done = int(rows) if at and int(number) == epoch.epoch else 0
        waiting: list[_Batch] = []

        def flush() -> bool:
            nonlocal at
            with redis.pipeline(transaction=False) as pipe:
                for batch in waiting:
                    skipped = max(0, done - batch.first)
                    arguments = [sender, at, epoch.epoch, batch.first + skipped]
                    more = [self._place.compact_at, batch.data, skipped, *self._driver, ""]
                    self._script([progress], [*arguments, *more], client=pipe)
                    at = f"{epoch.epoch}:{batch.first + batch.rows}"
                answers = pipe.execute()
            for answer in answers:
                if answer[0] == -3:
                    raise self._refused()
                if answer[0] == -2:
                    raise self._no_list(answer[1])
                if answer[0] < 0:
                    return False
                long.update(dict.fromkeys(answer[1:]))
            waiting.clear()
            fault("sink.part_sent")
            return True

        for batch in self._batches(epoch, done):
            waiting.append(batch)
            if len(waiting) >= IN_FLIGHT and not flush():
                return False
        return flush() if waiting else True

    def _batches(self, epoch: SinkEpoch, done: int) -> Iterator[_Batch]:
        """Yield the batches of an epoch that are not all out."""
        rows = 0
        for prepared in epoch.files:
            with pa.memory_map(str(prepared.path)) as file:
                table = pa.ipc.open_file(file).read_all()
            for count, data in zip(*table.to_pydict().values(), strict=True):
                if rows + count > done:
                    yield _Batch(rows, count, data)
                rows += count

    def _no_list(self, name: bytes) -> InvalidInputError:
        return InvalidInputError(
            f"entry {name!r} at {without_login(self._place.url)} is no list: another program uses "
            "these names; remove the entry, and start the job again: the epoch is committed and "
            "waits",
            operator=self._site.operator,
        )

    def _described(self, error: Exception) -> Exception:
        """Say what failed: whether it passes, or a person has to fix it."""
        self.close()
        redis, where = self._library, f"the server at {without_login(self._place.url)}"
        said = str(error) or type(error).__name__
        refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
        if isinstance(error, refused) or said.startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
            return InvalidInputError(
                f"{where} refuses this login: {said}; give user and password in the url, as "
                "redis://user:${PASSWORD}@host",
                operator=self._site.operator,
            )
        return ReceiverAwayError(
            f"{where}, for {self._place.namespace}*, does not answer: {said}; check that it runs, "
            "has room and takes writes: what is committed is sent when it is back",
            operator=self._site.operator,
        )

    def close(self) -> None:
        """Close the connection."""
        redis, self._redis = self._redis, None
        if redis is not None:
            with suppress(self._library.RedisError, OSError):
                redis.close()


Factory = Callable[[], MonoidProcessor[Any, Any]]
BATCH_ROWS = 1024
BATCHES = pa.schema([("rows", pa.int64()), ("data", pa.binary())])
_SCHEME = re.compile(r"(redis|rediss|unix)://|\$\{\w+\}$")


@dataclass(frozen=True)
class RedisPartials(PartialSink):
    """A server to append partial results to; made by ``redis_partials``.

    Args:
        url: of the server.
        namespace: prefix of the names of entries.
        compact_at: length at which a list is combined.
        merge: combines results of the processor.
    """

    url: str
    namespace: str
    compact_at: int = 64
    merge: PartialMerge | None = field(default=None, compare=False)

    suffix = "partials"

    def __post_init__(self) -> None:
        """Keep a password that the address has out of what is shown and of the plan's file."""
        object.__setattr__(self, "url", SecretText.of(self.url))

    @property
    def label(self) -> str:
        """The namespace."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.namespace).strip("-") or "redis"

    @property
    def identity(self) -> str:
        """The namespace, and the effect of rows."""
        return f"Redis entries {self.namespace}* (partial results appended)"

    @property
    def promise(self) -> str:
        """The guarantee for readers."""
        return (
            f"exactly-once, at {without_login(self.url)}: a batch of an epoch and how far it is "
            "are one step; nothing is read to add to it"
        )

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        wrong = []
        if not _SCHEME.match(self.url):
            wrong.append(
                f"url is {without_login(self.url)}; expected redis://, rediss:// or unix://"
            )
        if not self.namespace:
            wrong.append('namespace is empty; expected what names begin with, such as "likes:"')
        if self.compact_at < 2:
            wrong.append(f"compact_at is {self.compact_at}; expected at least 2")
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the mistake of use without ``monoid``."""
        if self.merge is not None:
            return []
        return ["takes partial results; give it to monoid(..., state=)"]

    def of(self, factory: Factory, state: Any) -> RedisPartials:
        """Return the same for the partial results of a processor."""
        return replace(self, merge=PartialMerge(factory, state))

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return names and partial results, packed for the server."""
        prefix = self.namespace.encode()
        counts, data = [], []
        for batch in batches:
            keys = [batch.column(name) for name in schema.names if name != PARTIAL]
            names = [prefix + key for key in encode_columns(keys).to_list()]
            partials = batch.column(PARTIAL).to_pylist()
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                some = slice(begin, begin + BATCH_ROWS)
                pairs = zip(names[some], partials[some], strict=True)
                rows = [part for pair in pairs for part in pair]
                counts.append(len(rows) // 2)
                data.append(packed(rows))
        table = pa.Table.from_pydict({"rows": counts, "data": data}, BATCHES)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, BATCHES) as writer:
            writer.write_table(table)
        return [sink.getvalue()]

    def open(self, site: SinkSite) -> Receiver:
        """Connect to the server."""
        if self.merge is None:
            raise InvalidInputError(
                f"sink {self.identity} takes partial results; give it to monoid(..., state=)"
            )
        url = resolved_url(self.url, os.environ)
        return RedisReceiver(PartialsTarget(url, self.namespace, self.compact_at, self.merge), site)

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what its client library raises."""
        return (redis_library().RedisError,)

    def totals(self, factory: Factory) -> RedisTotals:
        """Return a reader of the totals, for any program.

        Args:
            factory: the class of the job, or ``functools.partial`` of it.
        """
        merge = PartialMerge.of(factory)
        return RedisTotals(resolved_url(self.url, os.environ), self.namespace, merge)


def packed(rows: Sequence[bytes]) -> bytes:
    """Return byte strings as MessagePack of before it had a type for them: the server's."""
    parts = [b"\xdd", len(rows).to_bytes(4, "big")]
    for row in rows:
        size = len(row)
        parts.append(_HEADS[size] if size < len(_HEADS) else b"\xdb" + size.to_bytes(4, "big"))
        parts.append(row)
    return b"".join(parts)


_HEADS = [bytes((0xA0 | size,)) for size in range(32)]


def redis_partials(url: str, namespace: str, *, compact_at: int = 64) -> RedisPartials:
    """Keep the totals of a ``MonoidProcessor`` on a Redis server, append-only, exactly-once.

    What an epoch adds is appended to the list of each key, and no entry is read. Needs
    ``pip install "headrace[redis]"`` where the driver runs and where totals are read.

    Args:
        url: ``redis://user:${PASSWORD}@host:6379/0``, ``rediss://`` or ``unix://``; ``${NAME}`` is
            taken from the environment of the driver.
        namespace: prefix of the names of entries; not used by anything else.
        compact_at: length at which the driver combines a list after an epoch, which reads it.
    """
    return RedisPartials(url, namespace, compact_at)
