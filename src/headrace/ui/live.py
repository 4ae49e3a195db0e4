"""Charts that are live: each query is run once, however many look at its chart.

A ``Channel`` runs one query again when its stream has new rows, or its time has moved, and gives
the answer to all who watch it; somebody who is slow gets the newest answer, not all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from headrace.clock import Clock
from headrace.errors import HeadraceError, UnavailableError
from headrace.explore.query import Query, canonical, span_of
from headrace.explore.service import ExploreService

LEAST_S = 0.5
"""The least time between two answers."""

RESTS = 2.0
"""A query rests for so many times as long as it took."""

LOOK_S = 0.1
HEARTBEAT_S = 15.0
MOST_CHANNELS = 200
MOST_WATCHERS = 1_000
HEARTBEAT = b": still here\n\n"


def event(name: str, data: bytes) -> bytes:
    """Return a server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def unseen(stream: str) -> str:
    """Say that a stream is not there, or may not be seen: which of them is not said."""
    return f"no stream {stream!r} that you may see is kept to explore"


def _problem(code: str, message: str, status: int = 400) -> bytes:
    found = {"status": status, "error": {"code": code, "message": message}}
    return event("problem", msgspec.json.encode(found))


def numbered(data: bytes, at: int) -> bytes:
    """Return an event whose data says of which query it is."""
    head, _, rest = data.partition(b"\ndata: {")
    return b'%s\ndata: {"q":%d,%s' % (head, at, rest)


class _Watcher:
    """Somebody who watches: the newest event that they have not got yet."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._newest: bytes | None = None
        self._wake = wake

    def give(self, data: bytes) -> None:
        """Have an event be sent; it takes the place of one that waits."""
        self._newest = data
        self._wake.set()

    def take(self) -> bytes | None:
        """Return the newest event; ``None``: it was taken before."""
        data, self._newest = self._newest, None
        return data


class Channel:
    """One query, and all who watch it.

    Args:
        service: answers it.
        query: that is run.
        clock: for pauses.
        runs: called before each run.
    """

    def __init__(
        self, service: ExploreService, query: Query, clock: Clock, runs: Callable[[], None]
    ) -> None:
        self._service, self._query, self._clock, self._runs = service, query, clock, runs
        self._watchers: set[_Watcher] = set()
        self._last: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self, wake: asyncio.Event) -> _Watcher:
        """Begin to watch: the last answer comes at once, and each sets the event."""
        watcher = _Watcher(wake)
        self._watchers.add(watcher)
        if self._last is not None:
            watcher.give(self._last)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return watcher

    def leave(self, watcher: _Watcher) -> bool:
        """Watch no more; say whether nobody is left, and the query runs no more."""
        self._watchers.discard(watcher)
        if self._watchers:
            return False
        if self._task is not None:
            self._task.cancel()
        return True

    @property
    def watchers(self) -> int:
        """How many watch."""
        return len(self._watchers)

    async def _run(self) -> None:
        seen: object = None
        while True:
            begun = self._clock.monotonic()
            now = self._state()
            if now != seen:
                seen = now
                self._last = await asyncio.to_thread(self._answer)
                for watcher in list(self._watchers):
                    watcher.give(self._last)
            took = self._clock.monotonic() - begun
            rest = max(LEAST_S, RESTS * took) if took > LOOK_S else LEAST_S
            await asyncio.sleep(rest - took if now == seen else LOOK_S)

    def _state(self) -> object:
        """Return what changes whenever another answer is to be expected."""
        try:
            version = self._service.tailer.tail(self._query.stream).version
            moves = str(self._query.begin).startswith("-") or self._query.end == "now"
            return version, span_of(self._query, self._clock.now_ms()).to_ms // 1000 if moves else 0
        except HeadraceError as error:
            return error.message

    def _answer(self) -> bytes:
        self._runs()
        try:
            return event("result", self._service.answer(self._query).encoded())
        except HeadraceError as error:
            if self._query.stream not in self._service.tailer.names():
                return _problem("", unseen(self._query.stream), 404)
            return _problem(error.code, error.message)


class LiveHub:
    """The channels of a server; used from its event loop alone.

    Args:
        service: answers queries.
        clock: for pauses.
    """

    def __init__(self, service: ExploreService, clock: Clock) -> None:
        self._service, self._clock = service, clock
        self._channels: dict[bytes, Channel] = {}
        self.runs = 0
        """How many times a query was run."""
        self.is_over = False

    def _count(self) -> None:
        self.runs += 1

    async def watch(
        self, queries: Sequence[Query], sees: Callable[[str], bool], is_gone: Callable[[], Any]
    ) -> AsyncIterator[bytes]:
        """Yield the events of queries until the client is gone; ``q`` in each says of which one.

        A browser opens few connections to a server, so all charts of a dashboard share one.

        Args:
            queries: each checked by itself. One of a stream that is not there yet is answered
                once the stream is.
            sees: says which streams may be seen.
            is_gone: says, awaited, whether the client is gone.

        Raises:
            UnavailableError: there are too many charts, or too many who watch.
        """
        wake = asyncio.Event()
        joined: list[tuple[int, bytes, Channel, _Watcher]] = []
        try:
            for at, query in enumerate(queries):
                if not sees(query.stream):
                    yield numbered(_problem("", unseen(query.stream), 404), at)
                    continue
                key = canonical(query)
                channel = self._channel(key, query)
                joined.append((at, key, channel, channel.join(wake)))
            silent = 0.0
            while not self.is_over and not await is_gone():
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), 1.0)
                wake.clear()
                silent += 1.0
                for at, _, _, watcher in joined:
                    if (data := watcher.take()) is not None:
                        silent = 0.0
                        yield numbered(data, at)
                if silent >= HEARTBEAT_S:
                    silent = 0.0
                    yield HEARTBEAT
        finally:
            for _, key, channel, watcher in joined:
                if channel.leave(watcher) and self._channels.get(key) is channel:
                    del self._channels[key]

    def _channel(self, key: bytes, query: Query) -> Channel:
        channel = self._channels.get(key)
        if channel is None:
            if len(self._channels) >= MOST_CHANNELS:
                raise UnavailableError(
                    f"{MOST_CHANNELS} live charts are the most that one server has; close some"
                )
            channel = self._channels[key] = Channel(self._service, query, self._clock, self._count)
        return channel

    def check_room(self) -> None:
        """Refuse one more who watches, if there are too many.

        Raises:
            UnavailableError: there are.
        """
        if sum(one.watchers for one in self._channels.values()) >= MOST_WATCHERS:
            raise UnavailableError(f"{MOST_WATCHERS} browsers watch; close some")
