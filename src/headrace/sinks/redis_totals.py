"""Reads the totals that a job keeps on a Redis server as lists of partial results."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import msgspec

from headrace.closing import Closing
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.graph.processors import MonoidProcessor, state_type
from headrace.records.keys import decode_key, encode_key

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


def library() -> Any:
    """Return the client library.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module("redis")
    except ImportError as error:
        raise InvalidInputError(
            "partial results on Redis need its client, which is not installed here; install it "
            "where the driver and the readers run with: pip install 'headrace[remote]'"
        ) from error


@dataclass(frozen=True)
class Merge:
    """How partial results of one processor combine.

    Args:
        factory: makes the processor.
        state: the type of partial results, for msgspec.
    """

    factory: Callable[[], MonoidProcessor[Any, Any]]
    state: Any

    @classmethod
    def of(cls, factory: Callable[[], MonoidProcessor[Any, Any]]) -> Merge:
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


class RedisTotals(Closing):
    """The totals of a job's ``monoid(..., state=hr.sinks.redis_partials(...))``, read at any time.

    A read sees whole batches of an epoch, and may see an epoch whose last batches are on
    their way. Errors of the server are those of its client library.

    Args:
        url: of the server, with its password.
        namespace: of the job's entries.
        merge: how they combine.
    """

    def __init__(self, url: str, namespace: str, merge: Merge) -> None:
        self._redis = library().Redis.from_url(url)
        self._prefix, self._merge = namespace.encode(), merge

    def get(self, key: Any) -> Any:
        """Return what is shown of a key's total: that of the identity where nothing was added."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return what is shown of each key's total, with one round trip."""
        names = [self._prefix + encode_key(k if isinstance(k, tuple) else (k,)) for k in keys]
        show = self._merge.processor.result
        return [show(self._merge.total(chain)) for chain in chains(self._redis, names)]

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and what is shown of their totals, in no order, while others write."""
        for names in self._names():
            for name, chain in zip(names, chains(self._redis, names), strict=True):
                key = decode_key(name.removeprefix(self._prefix))
                if chain:
                    shown = self._merge.processor.result(self._merge.total(chain))
                    yield (key[0] if len(key) == 1 else key), shown

    def compact(self) -> int:
        """Put each list together that has more than one partial result; returns how many."""
        return sum(compact(self._redis, names, self._merge) for names in self._names())

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
        """Let the connection go."""
        self._redis.close()


def chains(redis: Any, names: Sequence[bytes]) -> list[list[bytes]]:
    """Return the partial results of each entry, with one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.lrange(name, 0, -1)
        found: list[list[bytes]] = pipe.execute()
    return found


def compact(redis: Any, names: Sequence[bytes], merge: Merge) -> int:
    """Put lists together, each in one step of the server, unless another did it meanwhile.

    Returns:
        How many were put together.
    """
    script = redis.register_script(_COMPACT)
    with redis.pipeline(transaction=False) as pipe:
        for name, chain in zip(names, chains(redis, names), strict=True):
            if len(chain) > 1:
                digest = hashlib.sha1(b"".join(chain), usedforsecurity=False).hexdigest()
                script([name], [len(chain), digest, merge.joined(chain)], client=pipe)
        return sum(pipe.execute())


def _escaped(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\" else bytes([c]) for c in prefix)
