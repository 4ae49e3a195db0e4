"""The way to the server for code that waits: pipelined commands on one connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from headrace.clock import Clock, Deadline
from headrace.graph.durations import duration_ms
from headrace.graph.remote import Remote
from headrace.state.remote.failures import library, may_pass, pause_s, real_url, told

T = TypeVar("T")


class Client:
    """One connection, opened when it is first used, and again after it broke.

    Every command may be sent twice: it reads, or sets or deletes whole values. For one
    thread; after a fork the child opens a connection of its own.

    Args:
        store: its name, for errors.
        remote: where the server is, and how patient to be.
        clock: for pauses and deadlines.
    """

    def __init__(self, store: str, remote: Remote, clock: Clock) -> None:
        self._store, self._remote, self._clock = store, remote, clock
        self._patience_s = duration_ms(remote.patience, "patience", least=0) / 1000
        self._redis: Any = None
        self._pid = 0
        self.round_trips = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, ``None`` where there is none.

        One round trip for ``in_flight`` commands of ``batch_keys`` keys each. A key that holds
        something else than a string counts as missing.

        Raises:
            UnavailableError: the server did not answer in time.
            InvalidInputError: it refuses the login, or the address makes no sense.
        """
        found: list[bytes | None] = []
        for part in self._loads(keys):
            found += self._call(partial(self._read, keys=part))
        return found

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one key, with a command for one key."""
        return self._call(lambda redis: redis.get(key))  # type: ignore[no-any-return]

    def set_many(
        self, keys: Sequence[bytes], values: Sequence[bytes | None], ttl_ms: int | None
    ) -> None:
        """Set or delete keys; all of one round trip or, after an error, any part of them.

        Args:
            keys: distinct.
            values: of each; ``None`` deletes.
            ttl_ms: after which the server drops what is set.
        """
        changes = list(zip(keys, values, strict=True))
        for part in self._loads(changes):
            self._call(partial(self._write, changes=part, ttl_ms=ttl_ms))

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
        deadline = Deadline(self._clock, self._patience_s)
        tries = 0
        while True:
            tries += 1
            try:
                self.round_trips += 1
                return action(self._connection())
            except (library().RedisError, OSError) as error:
                self.close()
                if not may_pass(error) or deadline.expired:
                    raise told(error, self._remote, self._store, tries) from error
                self._clock.sleep(min(pause_s(tries), deadline.remaining()))

    def _connection(self) -> Any:
        if self._redis is None or self._pid != os.getpid():
            timeout_s = duration_ms(self._remote.timeout, "timeout") / 1000
            self._pid = os.getpid()
            self._redis = library().Redis.from_url(
                real_url(self._remote, self._store),
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=None,
                max_connections=1,
            )
        return self._redis

    def close(self) -> None:
        """Let the connection go; the next use opens another."""
        redis, self._redis = self._redis, None
        if redis is not None and self._pid == os.getpid():
            redis.close()
