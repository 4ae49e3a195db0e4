"""The bus in an object storage: streams that hosts share which have no folder in common.

Below the root, a path that stands for ``s3://bucket/prefix``, are streams and fences as in a file
bus, and aliases in a form of their own. Rows that this host has written or read are on its disk, in
the cache of ``headrace.remote``. Decision 0053 has the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.bus.file import StoredBus, partition_name, spec_from_json
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
from headrace.bus.spec import StreamSpec
from headrace.bus.stream_names import Incarnation
from headrace.bus.stream_stores import FenceFiles
from headrace.clock import Clock, SteadyClock, SystemClock
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
        self._looked: tuple[int, float, list[int]] | None = None

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

    @property
    def is_polled(self) -> bool:
        """Each look is a few requests."""
        return True

    def ends(self) -> list[int]:
        """Return the next offset of each partition."""
        appends, at = self._appends.count, self._parts.clock.monotonic()
        ends = [view.next_offset for view in self._views()]
        self._looked = appends, at, ends
        return list(ends)

    def _ends_in_wait(self, appends: int, is_last: bool) -> list[int]:
        """Who waits has often just looked, and looks again afterwards; both count."""
        if self._looked is not None and self._looked[0] == appends:
            _, at, ends = self._looked
            if is_last or self._parts.clock.monotonic() - at < RECHECK_S / 2:
                return list(ends)
        return self.ends()

    def _asked(self, logs: list[Log]) -> list[IndexView]:
        """Return the views of all logs, which ask the storage at the same time."""
        if len(logs) == 1:
            return [logs[0].view()]
        with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(logs))) as pool:
            return list(pool.map(lambda log: log.view(), logs))

    def _run_soon(self, work: Callable[[], None]) -> None:
        self._bus.compactions.put(work)


class ObjectBus(StoredBus):
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
        clock, files = clock or SteadyClock(SystemClock()), files or Files()
        settings, fences = settings or BusOptions(), FenceFiles(root / "fences", files, clock)
        self._objects = ObjectIncarnations(root, files, clock)
        super().__init__(
            root,
            BusContext(settings, clock, files, fences),
            SegmentMapCache(files, settings.open_segments, cache_bytes),
            self._objects,
            AliasObjects(root / "aliases", files),
        )

    def _prepare(self, made: Incarnation, spec: StreamSpec) -> None:
        """Do nothing: a bucket has no folders."""

    def _opened(self, there: Incarnation) -> ObjectStream | None:
        settings = self._objects.settings(there)
        try:
            return ObjectStream(self, there, settings)
        except FileNotFoundError:
            return None  # taken away since it was listed: another of its name is older
        except Exception:
            if not settings.is_removed:
                raise
            self._objects.remove(there)  # who did so has died half-way
            return None
