"""The bus in an object storage: streams that hosts share which have no folder in common.

Below the root, a path that stands for ``s3://bucket/prefix``, are streams and fences as in a file
bus, and aliases in a form of their own. Rows that this host has written or read are on its disk, in
the cache of ``headrace.remote``. Decision 0053 has the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.bus.bus import Bus, Stream, check_existing_stream
from headrace.bus.file import (
    BackgroundWorker,
    Incarnation,
    partition_name,
    spec_from_json,
    spec_to_json,
)
from headrace.bus.file_log import SegmentMapCache
from headrace.bus.index_table import IndexView
from headrace.bus.log import BusContext, Log
from headrace.bus.log_stream import LogStream
from headrace.bus.object_log import ObjectLog
from headrace.bus.object_stores import (
    AliasObjects,
    CompactionPinObjects,
    ObjectIncarnations,
    ObjectSettings,
)
from headrace.bus.options import BusOptions
from headrace.bus.spec import Fence, StreamSpec, alias_taken, unknown_stream
from headrace.bus.stream_stores import FenceFiles
from headrace.clock import Clock, SteadyClock, SystemClock
from headrace.errors import ClosedError
from headrace.faults import fault
from headrace.files import Files
from headrace.remote import cache_bytes

RECHECK_S = 0.5
"""How often who waits for appends of other processes looks for them."""
_ASKED_AT_ONCE = 16


class ObjectStream(LogStream):
    """A stream below a path that stands for a part of a bucket."""

    recheck_s = RECHECK_S

    def __init__(self, bus: ObjectBus, incarnation: Incarnation, settings: ObjectSettings) -> None:
        self._bus, self._store = bus, settings
        parts, folder = bus.parts, incarnation.folder
        origin = incarnation.file
        spec, identity = spec_from_json(parts.files.read(origin), str(origin))
        holds = CompactionPinObjects(
            folder, parts.files, parts.clock, parts.fences, lambda number: self._of(number).bar()
        )

        def make_log(partition: int) -> ObjectLog:
            return ObjectLog(
                folder / partition_name(partition),
                partition,
                spec.name,
                parts,
                maps=bus.maps,
                settings=settings,
                holds=holds,
                run_soon=bus.compactions.put,
            )

        super().__init__(spec, identity, make_log, parts, settings, holds)

    @property
    def is_there(self) -> bool:
        """Say whether it was not removed."""
        try:
            self._store.current()
        except Exception:
            if self._store.is_removed:
                return False
            raise
        return True

    def seal(self, partition: int) -> None:
        """Pack the appends of a partition now, of which each lies in an object of its own."""
        self._log(partition)
        self._of(partition).seal()

    def _of(self, partition: int) -> ObjectLog:
        log = self._made(partition)
        assert isinstance(log, ObjectLog)
        return log

    def _check_there(self) -> None:
        self._check_open()
        self._store.current()

    def _views(self) -> list[IndexView]:
        return self._asked(self._partitions())

    def begins(self) -> list[int]:
        """Return the first readable offset of each partition."""
        return [view.begin for view in self._views()]

    def ends(self) -> list[int]:
        """Return the next offset of each partition."""
        return [view.next_offset for view in self._views()]

    def _asked(self, logs: list[Log]) -> list[IndexView]:
        """Return the views of all logs, which ask the storage at the same time."""
        if len(logs) == 1:
            return [logs[0].view()]
        with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(logs))) as pool:
            return list(pool.map(lambda log: log.view(), logs))

    def _run_soon(self, work: Callable[[], None]) -> None:
        self._bus.compactions.put(work)


class ObjectBus(Bus):
    """Streams in a bucket. Any process of any host can open it, append to its streams and read.

    Args:
        root: a path that stands for a part of a bucket, see ``headrace.remote``.
        settings: sizes; what is written is durable, whatever the sync policy.
        clock: for append times, deadlines and names.
        files: the objects.
    """

    def __init__(
        self,
        root: Path,
        settings: BusOptions | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.root = root
        clock, files = clock or SteadyClock(SystemClock()), files or Files()
        fences = FenceFiles(root / "fences", files, clock)
        self.parts = BusContext(settings or BusOptions(), clock, files, fences)
        self.maps = SegmentMapCache(files, self.parts.settings.open_segments, cache_bytes)
        self.compactions = BackgroundWorker("headrace-bus-compact")
        self._incarnations = ObjectIncarnations(root, files, clock)
        self._aliases = AliasObjects(root / "aliases", files)
        self._lock = threading.Lock()
        self._streams: dict[str, ObjectStream] = {}
        self._is_closed = False

    def create(
        self, spec: StreamSpec, *, exist_ok: bool = False, fence: Fence | None = None
    ) -> Stream:
        """Create a stream, by a conditional put of what it is; see ``Bus.create``."""
        with self._lock:
            self._check_open()
            if (target := self._aliases.target(spec.name)) is not None:
                raise alias_taken(spec.name, target)
            while True:
                if (there := self._found(spec.name)) is not None:
                    self.parts.fences.check(fence)
                    check_existing_stream(there, spec, there.schemas.all, exist_ok)
                    return there
                made = self._incarnations.following(spec.name)
                self.parts.fences.check(fence)
                fault("stream.prepared")
                data = spec_to_json(spec, self.parts.clock.new_id())
                is_mine = self._incarnations.create(made, data)
                if is_mine and (there := self._found(spec.name)) is not None:
                    return there

    def stream(self, name: str) -> Stream:
        """Return a stream; see ``Bus.stream``."""
        with self._lock:
            self._check_open()
            if (found := self._found(name)) is not None:
                return found
            if (target := self._aliases.target(name)) is not None:
                found = self._found(target)
            if found is None:
                raise unknown_stream(name, sorted([*self._incarnations.names(), *self.aliases()]))
            return found

    def _found(self, name: str) -> ObjectStream | None:
        """Return the stream of a name, opened once; ``None``: there is none."""
        held = self._streams.get(name)
        if held is not None and held.is_there:
            return held
        self._streams.pop(name, None)
        while (there := self._incarnations.current(name)) is not None:
            settings = self._incarnations.settings(there)
            try:
                self._streams[name] = ObjectStream(self, there, settings)
            except Exception:
                if not settings.is_removed:
                    raise
                self._incarnations.remove(there)  # who did so has died half-way
            else:
                return self._streams[name]
        return None

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        self._check_open()
        return self._incarnations.names()

    def aliases(self) -> dict[str, str]:
        """Return the stream of each alias."""
        self._check_open()
        return self._aliases.all()

    def fence(self, fence: Fence) -> None:
        """Refuse requests of older generations of a job; see ``Bus.fence``."""
        self._check_open()
        self.parts.fences.announce(fence)

    def fenced(self, job: str) -> int:
        """Return the newest generation announced of a job."""
        self._check_open()
        return self.parts.fences.highest(job)

    def _remove(self, name: str, fence: Fence | None) -> None:
        with self._lock:
            self._check_open()
            gone = self._incarnations.current(name)
            self.parts.fences.check(fence)
            fault("stream.chosen")
            if gone is None or not self._incarnations.remove(gone):
                raise unknown_stream(name, self._incarnations.names())
            if (opened := self._streams.pop(name, None)) is not None:
                opened.close()

    def _set_aliases(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        self._check_open()
        self._aliases.set(targets, expected)

    def close(self) -> None:
        """Wait for what is packed or compacted, and drop all streams; nothing is lost."""
        with self._lock:
            self._is_closed = True
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close()
        self.compactions.close()
        self.maps.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the bus at {self.root} is closed")
