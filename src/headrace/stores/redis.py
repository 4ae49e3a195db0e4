"""Remote stores on Redis: for code that waits, and for code that does not.

``RedisClient`` pipelines commands on one connection; ``AsyncClient`` has many requests in flight on
one loop of the process. Which errors are tried again, and what is reported at the end, is at the
top.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace import extras
from headrace.clock import Clock, Deadline
from headrace.durations import duration_ms
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.graph.shared_stores import Remote
from headrace.redaction import without_login
from headrace.state.remote_store import RemoteClient, Stamp, resolved_url

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


def client_library(name: str = "redis") -> Any:
    """Return a module of the client library, which is loaded when it is first needed.

    Raises:
        InvalidInputError: it is not installed.
    """
    return extras.load(name, "a store of kind remote")


def is_transient(error: Exception) -> bool:
    """Say whether the same request may work later: the server is away, starting or slow."""
    redis = client_library()
    refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
    lost = (redis.ConnectionError, redis.TimeoutError, ConnectionError, TimeoutError, OSError)
    return isinstance(error, lost) and not isinstance(error, refused)


def final_error(error: Exception, remote: Remote, store: str, tries: int) -> HeadraceError:
    """Return the error that says what failed and what to do."""
    redis = client_library()
    where = without_login(remote.url or "")
    if is_transient(error):
        return UnavailableError(
            f"store {store!r}: the server at {where} did not answer, {tries} tries within "
            f"{remote.retry_timeout}: {_plain(error)}; check that it runs and can be reached from "
            "this host; the epoch is run again when the job is started again",
            store=store,
        )
    refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
    if isinstance(error, refused) or _plain(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
        return InvalidInputError(
            f"store {store!r}: the server at {where} refuses this login: {_plain(error)}; give "
            "user and password in the url, as redis://user:${PASSWORD}@host",
            store=store,
        )
    if _plain(error).startswith("WRONGTYPE"):
        return InvalidInputError(
            f"store {store!r}: a key at {where} holds a list, hash or set, expected a string; "
            "another program uses the same names: give hr.Remote(namespace=...)",
            store=store,
        )
    return UnavailableError(
        f"store {store!r}: the server at {where} refuses: {_plain(error)}; make room or let it "
        "take writes, then start the job again",
        store=store,
    )


def backoff_s(tries: int) -> float:
    """Return how long to wait after so many tries."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries - 1, 10)))


def _plain(error: Exception) -> str:
    return str(error) or type(error).__name__


T = TypeVar("T")
MOST_KEYS = 2000
"""Of one script: so many values a server's Lua takes as arguments."""

_WRITE = """
local newest = redis.call('GET', KEYS[1])
if newest and newest > ARGV[1] then return 0 end
if newest ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1]) end
local puts, pairs = #ARGV - 2, {}
for i = 1, puts do
  if ARGV[2] ~= '' then
    redis.call('SET', KEYS[i + 1], ARGV[i + 2], 'PX', ARGV[2])
  else
    pairs[2 * i - 1], pairs[2 * i] = KEYS[i + 1], ARGV[i + 2]
  end
end
if #pairs > 0 then redis.call('MSET', unpack(pairs)) end
if #KEYS > puts + 1 then redis.call('DEL', unpack(KEYS, puts + 2)) end
return 1
"""
_DIGEST = hashlib.sha1(_WRITE.encode(), usedforsecurity=False).hexdigest()


_UNKNOWN = "unknown command"


class RedisClient(RemoteClient):
    """One connection, opened when it is first used, and again after it broke.

    Args:
        store: its name, for errors.
        remote: where the server is, and how long to retry.
        clock: for pauses and deadlines.
    """

    def __init__(self, store: str, remote: Remote, clock: Clock) -> None:
        self._store, self._remote, self._clock = store, remote, clock
        self._retry_timeout_s = duration_ms(remote.retry_timeout, "retry_timeout", least=0) / 1000
        self._async = AsyncClient(store, remote)
        self._redis: Any = None
        self._pid = 0
        self.is_fenced = True  # until the server does not let this login run scripts

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, ``None`` where there is none.

        One round trip for ``in_flight`` commands of ``batch_keys`` keys each. A key that holds
        something else than a string counts as missing.

        Raises:
            UnavailableError: the server did not answer in time.
            InvalidInputError: it refuses the login, or the address is invalid.
        """
        found: list[bytes | None] = []
        for part in self._loads(keys):
            found += self._call(partial(self._read, keys=part))
        return found

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one key, with a command for one key."""
        return self._call(lambda redis: redis.get(key))  # type: ignore[no-any-return]

    async def get_async(self, key: bytes) -> bytes | None:
        """Return the value of a key; those asked for at the same time share commands."""
        return await self._async.get(key)

    def get_many_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, with many requests in flight."""
        return wait_for(self._async.get_many(keys))

    def take_round_trips(self) -> int:
        """Return the round trips since the last call."""
        trips, self._async.round_trips = self._async.round_trips, 0
        return trips + super().take_round_trips()

    def set_many(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        ttl_ms: int | None,
        stamp: Stamp | None = None,
    ) -> None:
        """Set or delete keys; all of one round trip or, after an error, any part of them.

        Args:
            keys: distinct.
            values: of each; ``None`` deletes.
            ttl_ms: after which the server drops what is set.
            stamp: of the writer; if a later one has written, nothing is changed.

        Raises:
            NotOwnerError: a later epoch has written by now, or a newer driver.
        """
        changes = list(zip(keys, values, strict=True))
        for part in self._loads(changes):
            if stamp is not None and self.is_fenced:
                self._call(partial(self._write_stamped, changes=part, ttl_ms=ttl_ms, stamp=stamp))
            else:
                self._call(partial(self._write, changes=part, ttl_ms=ttl_ms))

    def _write_stamped(
        self,
        redis: Any,
        changes: Sequence[tuple[bytes, bytes | None]],
        ttl_ms: int | None,
        stamp: Stamp,
    ) -> None:
        errors, answers = client_library().exceptions, [0]
        try:
            try:
                answers = self._run_scripts(redis, changes, ttl_ms, stamp)
            except errors.NoScriptError:  # the first use since the server began
                redis.script_load(_WRITE)
                answers = self._run_scripts(redis, changes, ttl_ms, stamp)
        except errors.ResponseError as error:
            if not (isinstance(error, errors.NoPermissionError) or _UNKNOWN in str(error)):
                raise
            self.is_fenced = False
            self._write(redis, changes, ttl_ms)
            return
        if 0 in answers:
            raise NotOwnerError(
                f"store {self._store!r}: a later epoch than {stamp.epoch}, or a driver after "
                f"generation {stamp.generation}, has written; this slot stops",
                store=self._store,
                epoch=stamp.epoch,
            )

    def _run_scripts(
        self,
        redis: Any,
        changes: Sequence[tuple[bytes, bytes | None]],
        ttl_ms: int | None,
        stamp: Stamp,
    ) -> list[int]:
        each = min(self._remote.batch_keys, MOST_KEYS)
        with redis.pipeline(transaction=False) as pipe:
            for at in range(0, len(changes), each):
                part = changes[at : at + each]
                puts = [(key, value) for key, value in part if value is not None]
                gone = [key for key, value in part if value is None]
                names = [stamp.key, *(key for key, _ in puts), *gone]
                values = [stamp.value, ttl_ms or "", *(value for _, value in puts)]
                pipe.execute_command("EVALSHA", _DIGEST, len(names), *names, *values)
            return pipe.execute()  # type: ignore[no-any-return]

    def _loads(self, items: Sequence[T]) -> list[Sequence[T]]:
        size = self._remote.in_flight * self._remote.batch_keys
        return [items[at : at + size] for at in range(0, len(items), size)]

    def _read(self, redis: Any, keys: Sequence[bytes]) -> list[bytes | None]:
        each = self._remote.batch_keys
        if len(keys) <= each:
            return redis.mget(keys)  # type: ignore[no-any-return]
        with redis.pipeline(transaction=False) as pipe:
            for at in range(0, len(keys), each):
                pipe.mget(keys[at : at + each])
            return [value for values in pipe.execute() for value in values]

    def _write(
        self, redis: Any, changes: Sequence[tuple[bytes, bytes | None]], ttl_ms: int | None
    ) -> None:
        each = self._remote.batch_keys
        puts = [(key, value) for key, value in changes if value is not None]
        gone = [key for key, value in changes if value is None]
        with redis.pipeline(transaction=False) as pipe:
            if ttl_ms is not None:
                for key, value in puts:
                    pipe.set(key, value, px=ttl_ms)
            else:
                for at in range(0, len(puts), each):
                    pipe.mset(dict(puts[at : at + each]))
            for at in range(0, len(gone), each):
                pipe.delete(*gone[at : at + each])
            pipe.execute()

    def _call(self, action: Callable[[Any], T]) -> T:
        deadline = Deadline(self._clock, self._retry_timeout_s)
        tries = 0
        while True:
            tries += 1
            try:
                self.round_trips += 1
                return action(self._connection())
            except (client_library().RedisError, OSError) as error:
                self._disconnect()
                if not is_transient(error) or deadline.expired:
                    raise final_error(error, self._remote, self._store, tries) from error
                self._clock.sleep(min(backoff_s(tries), deadline.remaining()))

    def _connection(self) -> Any:
        if self._redis is None or self._pid != os.getpid():
            timeout_s = duration_ms(self._remote.timeout, "timeout") / 1000
            self._pid = os.getpid()
            self._redis = client_library().Redis.from_url(
                resolved_url(self._remote, self._store),
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=None,
                max_connections=1,
            )
        return self._redis

    def close(self) -> None:
        """Close the connections; the next use opens others."""
        self._async.close()
        self._disconnect()

    def _disconnect(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None and self._pid == os.getpid():
            redis.close()


ResultT = TypeVar("ResultT")
_process_loops: dict[int, asyncio.AbstractEventLoop] = {}


def process_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; a forked child has one of its own."""
    pid = os.getpid()
    found = _process_loops.get(pid)
    if found is None or found.is_closed():
        _process_loops.clear()
        found = _process_loops[pid] = asyncio.new_event_loop()
        atexit.register(found.close)
    return found


def wait_for(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run something on the loop of the process until it is done."""
    return process_loop().run_until_complete(work)


class AsyncClient:
    """Reads of one store, at most ``in_flight`` commands at the same time.

    Args:
        store: its name, for errors.
        remote: where the server is, and how long to retry.
    """

    def __init__(self, store: str, remote: Remote) -> None:
        self._store, self._remote = store, remote
        self._timeout_s = duration_ms(remote.timeout, "timeout") / 1000
        self._retry_timeout_s = duration_ms(remote.retry_timeout, "retry_timeout", least=0) / 1000
        self._redis: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free: asyncio.Semaphore | None = None
        self._waiting: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.round_trips = 0

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; those asked for at the same time share commands.

        Raises:
            UnavailableError: the server did not answer in time.
            InvalidInputError: it refuses the login, or the address is invalid.
        """
        loop = self._bind()
        future = self._waiting.get(key)
        if future is None:
            if not self._waiting:
                loop.call_soon(self._send)
            future = self._waiting[key] = loop.create_future()
        return await asyncio.shield(future)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, in as many commands as they need at once."""
        self._bind()
        assert self._free is not None
        each = self._remote.batch_keys
        parts = [keys[at : at + each] for at in range(0, len(keys), each)]
        found = await asyncio.gather(*[self._read_in_turn(self._free, part) for part in parts])
        return [value for values in found for value in values]

    async def _read_in_turn(
        self, free: asyncio.Semaphore, keys: Sequence[bytes]
    ) -> list[bytes | None]:
        async with free:
            return await self._read(keys)

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._redis, self._waiting = loop, None, {}
            self._free = asyncio.Semaphore(self._remote.in_flight)
        return loop

    def _send(self) -> None:
        waiting, self._waiting = list(self._waiting.items()), {}
        each = self._remote.batch_keys
        assert self._loop is not None
        for at in range(0, len(waiting), each):
            task = self._loop.create_task(self._fetch(waiting[at : at + each]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _fetch(self, wanted: list[tuple[bytes, asyncio.Future[bytes | None]]]) -> None:
        assert self._free is not None
        try:
            found = await self._read_in_turn(self._free, [key for key, _ in wanted])
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), value in zip(wanted, found, strict=True):
            if not future.done():
                future.set_result(value)

    async def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._retry_timeout_s
        tries = 0
        while True:
            tries += 1
            try:
                self.round_trips += 1
                if len(keys) == 1:
                    return [await self._client().get(keys[0])]
                return list(await self._client().mget(keys))
            except (client_library().RedisError, OSError) as error:
                left = until - loop.time()
                if not is_transient(error) or left <= 0:
                    raise final_error(error, self._remote, self._store, tries) from error
                await asyncio.sleep(min(backoff_s(tries), left))

    def _client(self) -> Any:
        if self._redis is None:
            self._redis = client_library("redis.asyncio").Redis.from_url(
                resolved_url(self._remote, self._store),
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                retry=None,
                max_connections=self._remote.in_flight,
            )
        return self._redis

    def close(self) -> None:
        """Close the connections, if the loop they belong to can still do it."""
        redis, loop = self._redis, self._loop
        self._redis = self._loop = None
        if redis is None or loop is None or loop.is_closed() or loop.is_running():
            return
        if loop is _process_loops.get(os.getpid()):
            loop.run_until_complete(redis.aclose())
