"""The way to the server for code that does not wait: many requests in flight on one loop.

Requests made in the same turn of the loop travel in one command, so a thousand callers cost
a few commands. There is one loop for each process, opened when it is first needed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from headrace.graph.durations import duration_ms
from headrace.graph.remote import Remote
from headrace.state.remote.failures import library, may_pass, pause_s, real_url, told

T = TypeVar("T")
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def process_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; a forked child has one of its own."""
    pid = os.getpid()
    found = _loops.get(pid)
    if found is None or found.is_closed():
        _loops.clear()
        found = _loops[pid] = asyncio.new_event_loop()
        atexit.register(found.close)
    return found


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run something on the loop of the process until it is done."""
    return process_loop().run_until_complete(work)


class AsyncClient:
    """Reads of one store, at most ``in_flight`` commands at the same time.

    Args:
        store: its name, for errors.
        remote: where the server is, and how patient to be.
    """

    def __init__(self, store: str, remote: Remote) -> None:
        self._store, self._remote = store, remote
        self._timeout_s = duration_ms(remote.timeout, "timeout") / 1000
        self._patience_s = duration_ms(remote.patience, "patience", least=0) / 1000
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
            InvalidInputError: it refuses the login, or the address makes no sense.
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
        until = loop.time() + self._patience_s
        tries = 0
        while True:
            tries += 1
            try:
                self.round_trips += 1
                if len(keys) == 1:
                    return [await self._client().get(keys[0])]
                return list(await self._client().mget(keys))
            except (library().RedisError, OSError) as error:
                left = until - loop.time()
                if not may_pass(error) or left <= 0:
                    raise told(error, self._remote, self._store, tries) from error
                await asyncio.sleep(min(pause_s(tries), left))

    def _client(self) -> Any:
        if self._redis is None:
            self._redis = library("redis.asyncio").Redis.from_url(
                real_url(self._remote, self._store),
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
        if loop is _loops.get(os.getpid()):
            loop.run_until_complete(redis.aclose())
