"""``Client``: reads served tables, from one server or from several that share their keys.

Each server says which key groups it has, so a client asks one that has the key, and where that one
does not answer another one that has it. The parts of a request go to their servers at the same
time, and are put together in the order of the keys.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace import extras, redaction
from headrace.clock import Clock, Deadline, SystemClock
from headrace.closeable import Closeable
from headrace.durations import Duration, duration_ms
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.graph.introspection import renamed_arguments
from headrace.records.keys import decode_key, encode_any, key_group
from headrace.serving.table import KEY_GROUPS, LoadingError, MovedError, StaleError

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):(\d{1,5})")
PAUSE_S = 0.01
SCAN_ROWS = 1000
_T = TypeVar("_T")
_ERRORS = {"LOADING": LoadingError, "HRSTALE": StaleError, "HRMOVED": MovedError}


class Read(NamedTuple):
    """What was read, and how new it is.

    Args:
        values: of the keys, in their order; ``None`` where there is none.
        version: of the table: epoch of a job, rows of a stream, or snapshot of a daily table;
            of several servers the lowest.
        staleness_ms: how long ago the table was known to show all that was committed; of several
            servers the longest.
    """

    values: list[Any]
    version: int
    staleness_ms: int


@dataclass(frozen=True)
class _Server:
    address: str
    redis: Any
    groups: tuple[int, int]


@dataclass(frozen=True)
class _Shard:
    """The key groups that the same servers have; the first of them is asked."""

    groups: frozenset[int]
    servers: deque[_Server]


class Client(Closeable):
    """Reads a table that ``headrace serve`` serves; from any thread.

    Args:
        addresses: ``host:port`` of servers that together have all keys, or of one. Where several
            have the same keys, each stands in for the others.
        table: its name.
        value: type of values, as for ``hr.store``; ``Any``: whatever MessagePack says.
        password: that the servers ask for.
        timeout: of one round trip.
        retry_timeout: how long to try again where a server does not answer, is loading, or does not
            have the version that is asked for.
        clock: for waiting.

    Raises:
        InvalidInputError: no servers, an invalid address, a wrong password, or some key groups
            have no server.
        UnavailableError: servers do not answer, and no others have their keys.

    Example:
        >>> import headrace as hr
        >>> with hr.serving.Client("127.0.0.1:6380", "totals") as totals:  # doctest: +SKIP
        ...     totals.get("alice")
        12
    """

    @renamed_arguments(patience="retry_timeout")
    def __init__(
        self,
        addresses: str | Sequence[str],
        table: str,
        value: Any = Any,
        *,
        password: str = "",
        timeout: Duration = "2s",
        retry_timeout: Duration = "10s",
        clock: Clock | None = None,
    ) -> None:
        self.table = table
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        self._password, self._clock = password, clock or SystemClock()
        redaction.remember(password)
        self._timeout_s = duration_ms(timeout, "timeout") / 1000
        self._retry_timeout_s = duration_ms(retry_timeout, "retry_timeout", least=0) / 1000
        self._decode = msgspec.msgpack.Decoder(value).decode
        self._redis = extras.load("redis", "a client of served tables")
        wrong = [one for one in self._addresses if ADDRESS.fullmatch(one) is None]
        if wrong or not self._addresses:
            raise InvalidInputError(
                f"addresses are {self._addresses}; expected host:port, such as 127.0.0.1:6380"
            )
        self._connections = {address: self._connected(address) for address in self._addresses}
        self._pool: ThreadPoolExecutor | None = None
        if len(self._addresses) > 1:
            self._pool = ThreadPoolExecutor(len(self._addresses), "headrace-serving")
        self._shards: list[_Shard] = []
        try:
            self._retried(self._learn)
        except BaseException:
            self.close()
            raise

    def _connected(self, address: str) -> Any:
        host, port = self._parts(address)
        return self._redis.Redis(
            host=host,
            port=port,
            password=self._password or None,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            protocol=2,
            retry=None,
        )

    @staticmethod
    def _parts(address: str) -> tuple[str, int]:
        found = ADDRESS.fullmatch(address)
        assert found is not None
        return found[1].strip("[]"), int(found[2])

    def get(self, key: Any, default: Any = None, *, at_least: int | None = None) -> Any:
        """Return the value of a key; a tuple where it has several columns.

        Args:
            key: as in the store, or the columns of the key.
            default: returned if there is no value.
            at_least: wait for this version of the table, such as an epoch that was committed.

        Raises:
            StaleError: the version was not reached within ``retry_timeout``.
            UnavailableError: the server did not answer within ``retry_timeout``.
        """
        found = self.read([key], at_least=at_least).values[0]
        return default if found is None else found

    def get_many(self, keys: Sequence[Any], *, at_least: int | None = None) -> list[Any]:
        """Return the value of each key, ``None`` where there is none; raises as ``get`` does."""
        return self.read(keys, at_least=at_least).values

    def read(self, keys: Sequence[Any], *, at_least: int | None = None) -> Read:
        """Return the value of each key, all of one server at one version, and the version.

        Args:
            keys: as in the store, or the columns of the key.
            at_least: as for ``get``.

        Raises:
            StaleError: the version was not reached within ``retry_timeout``.
            UnavailableError: a server did not answer within ``retry_timeout``.
            CorruptDataError: a value is not of the declared type.
        """
        encoded = [encode_any(key) for key in keys]
        return self._retried(partial(self._read, encoded, -1 if at_least is None else at_least))

    def _read(self, encoded: Sequence[bytes], at_least: int) -> Read:
        asked: list[tuple[_Shard, Sequence[int]]] = []
        if len(self._shards) == 1:
            asked = [(self._shards[0], range(len(encoded)))] if encoded else []
        else:
            groups = [key_group(key, KEY_GROUPS) for key in encoded]
            for shard in self._shards:
                places = [at for at, group in enumerate(groups) if group in shard.groups]
                asked += [(shard, places)] if places else []
        calls = [
            partial(self._ask, one, b"HR.READ", self.table, at_least, *(encoded[at] for at in own))
            for one, own in asked
        ]
        values: list[Any] = [None] * len(encoded)
        versions, ages = [], [0]
        for (_, own), (version, age_ms, raws) in zip(asked, self._all(calls), strict=True):
            versions.append(version)
            ages.append(age_ms)
            for at, raw in zip(own, raws, strict=True):
                values[at] = None if raw is None else self._decoded(raw)
        return Read(values, min(versions, default=-1), max(ages))

    def range(
        self, low: Any = None, high: Any = None, *, limit: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values with ``low <= key < high``, in the order of keys.

        Rows that change meanwhile are returned as they were before or after.

        Args:
            low: the lowest key, or its first columns; ``None``: from the first on.
            high: the key to stop before; ``None``: to the last.
            limit: the most keys to yield.
        """
        first = b"" if low is None else encode_any(low)
        yield from self._rows("HR.RANGE", first, b"" if high is None else encode_any(high), limit)

    def prefix(self, begin: Any, *, limit: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield the keys that begin with a prefix and their values, in the order of keys.

        Args:
            begin: the first columns of the key, as a tuple; or a text that the first one begins
                with.
            limit: the most keys to yield.
        """
        low = encode_any(begin)
        if isinstance(begin, str):
            low = low[:-2]  # without the mark at the end of a text
        yield from self._rows("HR.RANGE", low, low + b"\xff" * 16, limit)

    def _rows(
        self, command: str, low: bytes, high: bytes, limit: int | None
    ) -> Iterator[tuple[Any, Any]]:
        import heapq  # noqa: PLC0415 - only those who read ranges need it

        parts = [self._rows_of(shard, command, low, high) for shard in self._shards]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts)
        for count, (key, value) in enumerate(merged):
            if limit is not None and count >= limit:
                return
            found = decode_key(key)
            yield found[0] if len(found) == 1 else found, self._decoded(value)

    def _rows_of(
        self, shard: _Shard, command: str, low: bytes, high: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        while True:
            ask = partial(
                self._ask, shard, command, self.table, low, high, "LIMIT", SCAN_ROWS, "RAW"
            )
            _, _, pairs, after = self._retried(ask)
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                if len(shard.groups) == KEY_GROUPS or key_group(key, KEY_GROUPS) in shard.groups:
                    yield key, value
            if after is None:
                return
            low = after

    def version(self) -> int:
        """Return the version of the table; of several servers the lowest."""

        def asked() -> list[Any]:
            shards = self._shards
            return self._all([partial(self._ask, one, "HR.VERSION", self.table) for one in shards])

        versions: list[int] = [one[0] for one in self._retried(asked)]
        return min(versions)

    def wait(self, version: int) -> int:
        """Wait for a version of the table, such as one's own epoch; return the current version.

        Raises:
            StaleError: it was not reached within ``retry_timeout``.
        """

        def reached() -> int:
            found = self.version()
            if found < version:
                raise StaleError(f"table {self.table!r} shows version {found}, asked for {version}")
            return found

        return self._retried(reached)

    def _learn(self) -> None:
        """Ask each server which key groups it has; those that do not answer have none."""
        holders: list[list[_Server]] = [[] for _ in range(KEY_GROUPS)]
        silent: UnavailableError | None = None
        for address, redis in self._connections.items():
            try:
                tables = [_pairs(one) for one in self._asked(redis, address, "HR.TABLES")]
            except UnavailableError as error:
                silent = error
                continue
            own = next((one for one in tables if one["table"] == self.table), None)
            if own is None:
                raise InvalidInputError(
                    f"the server at {address} has no table {self.table!r}; it has "
                    f"{', '.join(one['table'] for one in tables)}"
                )
            first, behind = own["groups"]
            server = _Server(address, redis, (first, behind))
            for group in range(first, behind):
                holders[group].append(server)
        if [] in holders:
            if silent is not None:
                raise silent
            raise InvalidInputError(
                f"of table {self.table!r} no server has key group {holders.index([])}; name the "
                f"servers of all {KEY_GROUPS} key groups"
            )
        groups: dict[tuple[_Server, ...], list[int]] = {}
        for group, have in enumerate(holders):
            groups.setdefault(tuple(have), []).append(group)
        self._shards = [_Shard(frozenset(own), deque(have)) for have, own in groups.items()]

    def _all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._pool is None or len(calls) < 2:
            return [call() for call in calls]
        return [one.result() for one in [self._pool.submit(call) for call in calls]]

    def _ask(self, shard: _Shard, *words: Any) -> Any:
        """Ask the servers of a shard, one after the other, until one can answer."""
        for left in range(len(shard.servers) - 1, -1, -1):
            server = shard.servers[0]
            try:
                return self._asked(server.redis, server.address, *words)
            except UnavailableError:
                if not left:
                    raise
                if shard.servers[0] is server:  # not if another thread was quicker
                    shard.servers.rotate(-1)
        raise AssertionError("a shard has a server")

    def _asked(self, redis: Any, address: str, *words: Any) -> Any:
        errors = self._redis.exceptions
        try:
            return redis.execute_command(*words)
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise InvalidInputError(
                f"the server at {address} refuses this password; give password="
            ) from error
        except errors.ResponseError as error:
            text = str(error)
            kind, _, rest = text.partition(" ")
            if kind == "NOAUTH" or isinstance(error, errors.NoPermissionError):
                raise InvalidInputError(
                    f"the server at {address} asks for a password; give password="
                ) from error
            raise _ERRORS.get(kind, InvalidInputError)(rest if kind in _ERRORS else text) from error
        except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            if text.startswith("LOADING"):
                raise LoadingError(text.partition(" ")[2]) from error
            if isinstance(error, errors.BusyLoadingError):
                raise LoadingError(text) from error
            raise UnavailableError(
                f"the server at {address} does not answer: {text}; check that it runs"
            ) from error

    def _retried(self, action: Callable[[], _T]) -> _T:
        deadline = Deadline(self._clock, self._retry_timeout_s)
        pause_s = PAUSE_S
        while True:
            try:
                return action()
            except (MovedError, UnavailableError) as error:
                if deadline.expired:
                    raise
                if not isinstance(error, (LoadingError, StaleError)):
                    with suppress(UnavailableError):  # they may have come, or have other keys
                        self._learn()
            self._clock.sleep(min(pause_s, deadline.remaining()))
            pause_s = min(2 * pause_s, 0.2)

    def _decoded(self, raw: bytes) -> Any:
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            raise CorruptDataError(
                f"table {self.table!r} has a value that does not read as declared: {error}; give "
                "value= the type that its writers use"
            ) from error

    def close(self) -> None:
        """Close the connections."""
        for redis in self._connections.values():
            redis.close()
        if self._pool is not None:
            self._pool.shutdown()


def _pairs(reply: Sequence[Any]) -> Mapping[str, Any]:
    """Return a map of RESP2, which is names and values in turn."""
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {
        name.decode(): value.decode() if isinstance(value, bytes) else value
        for name, value in pairs
    }
