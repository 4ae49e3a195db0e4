"""The tailer of a home: one thread that keeps the chosen streams as columns.

Of the processes on one home that has it, the one with the lock of the folder writes files. Others
answer queries as well, from its files and from what they read themselves; if it ends, one of them
writes from then on.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Collection
from contextlib import suppress

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.errors import HeadraceError, InvalidInputError
from headrace.explore.segments import SegmentFolder
from headrace.explore.stream_tail import StreamTail, TailStatus
from headrace.files import TRASH, Files

LOOK_S = 0.1
"""How often streams are looked at while nothing comes."""

STREAMS_S = 2.0
"""How often new streams are looked for."""

STOP_S = 30.0


class Tailer:
    """Keeps streams; ``start`` begins a thread, or ``step`` is called by the caller's own.

    Args:
        bus: with the streams.
        settings: ``explore`` says which, and how.
        clock: for ages.
        only: streams of those that are chosen, if not all are wanted.
        files: the file system.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        clock: Clock,
        *,
        only: frozenset[str] | None = None,
        files: Files | None = None,
    ) -> None:
        self._only = only
        self._bus, self._settings, self._clock = bus, settings, clock
        self._files = files or Files()
        self._dir = settings.explore_dir
        self._tails: dict[str, StreamTail] = {}
        self._left: dict[str, SegmentFolder] = {}
        self._looked_s = float("-inf")
        self._lock: int | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the files."""
        return self._lock is not None

    def names(self) -> list[str]:
        """Return the streams that are kept."""
        return sorted(self._tails)

    def tail(self, name: str) -> StreamTail:
        """Return a stream that is kept.

        Raises:
            InvalidInputError: there is none of this name.
        """
        found = self._tails.get(name)
        if found is None:
            known = ", ".join(self.names()[:12]) or "none"
            raise InvalidInputError(
                f"no stream {name!r} is kept to explore; found {known}; explore.streams says "
                "which are",
                stream=name,
            )
        return found

    def statuses(self) -> list[TailStatus]:
        """Return how each stream is doing."""
        return [self._tails[name].status() for name in self.names()]

    def start(self) -> None:
        """Find the streams, and keep them from a thread until ``stop``."""
        self.step()
        self._thread = threading.Thread(target=self._run, name="headrace explore", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is in memory, and let another process write from now on."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
            self._thread = None
        if self._lock is not None:
            for tail in self._tails.values():
                self._close(tail)
            os.close(self._lock)
            self._lock = None

    def _close(self, tail: StreamTail) -> None:
        if self.is_writer:
            with suppress(HeadraceError, OSError):
                tail.close()

    def _run(self) -> None:
        while not self._over.is_set():
            if not self.step():
                self._over.wait(LOOK_S)

    def step(self) -> bool:
        """Look at each stream once; say whether more rows wait."""
        self._take_lock()
        now = self._clock.monotonic()
        if now - self._looked_s >= STREAMS_S:
            self._looked_s = now
            try:
                self._find()
                self.problem = None
            except (HeadraceError, OSError) as error:
                self.problem = str(error)
        found = [tail.step(is_writer=self.is_writer) for tail in list(self._tails.values())]
        return any(found)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        self._files.make_folder(self._dir, 0o700)
        descriptor = os.open(self._dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return
        self._lock = descriptor
        for half in self._dir.glob(f"{TRASH}*"):
            self._files.remove_tree(half)
        for tail in self._tails.values():
            tail.begin_writing()

    def _find(self) -> None:
        """Begin with streams that are new, and forget those that are gone."""
        rules = {name: self._settings.explore.rule_of(name) for name in self._bus.names()}
        chosen = {name: rule for name, rule in rules.items() if rule is not None}
        wanted = {n: r for n, r in chosen.items() if self._only is None or n in self._only}
        tails = dict(self._tails)
        for name in tails.keys() - wanted.keys():
            self._close(tails.pop(name))
        for name, rule in wanted.items():
            with suppress(InvalidInputError):  # removed at this moment
                stream = self._bus.stream(name)
                if name in tails:
                    if tails[name].identity == stream.identity:
                        continue
                    self._close(tails[name])  # another stream has its name by now
                folder = SegmentFolder(self._dir / name, self._files, self._clock)
                tails[name] = StreamTail(stream, rule, self._settings.explore, folder, self._clock)
        self._tails = tails
        if self.is_writer:
            self._forget(chosen.keys())

    def _forget(self, chosen: Collection[str]) -> None:
        """Remove the folders of streams that are gone, or not chosen, once all rows are old."""
        for name in self._files.names(self._dir):
            if name in chosen:
                self._left.pop(name, None)
                continue
            oldest = self._clock.now_ms() - self._settings.explore.keep_ms_of(name)
            folder = self._left.setdefault(
                name, SegmentFolder(self._dir / name, self._files, self._clock)
            )
            found = folder.refresh()
            if found and all(one.is_older(oldest) for one in found):
                self._files.remove_tree(self._dir / name)
                del self._left[name]
