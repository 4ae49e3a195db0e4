"""The file bus: streams in a folder, shared by all processes of a host or a shared disk.

Which streams there are, and what aliases stand for, is in ``stream_names``.
``StoredBus`` is what this bus and the one in an object storage have in common.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from xxhash import xxh3_64_hexdigest

from headrace.bus.bus import Bus, Stream, check_existing_stream
from headrace.bus.carried import CarriedStream
from headrace.bus.file_log import FileLog, Flusher, OpenLogCache, SegmentMapCache
from headrace.bus.log import BusContext, Log
from headrace.bus.log_stream import FolderWatcher, LogStream
from headrace.bus.offload import MovedSegments, Offloaded
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.readable import carrier_of
from headrace.bus.spec import (
    Compacted,
    Fence,
    StreamSpec,
    alias_taken,
    stream_removed,
    unknown_stream,
)
from headrace.bus.stream_names import AliasFiles, Incarnation, Incarnations
from headrace.bus.stream_stores import (
    CompactionPinFiles,
    FenceFiles,
    SettingsFiles,
    signed_json,
    verified_json,
)
from headrace.clock import CLOCK_RECORD, Clock, SteadyClock, SystemClock
from headrace.errors import (
    ClosedError,
    CorruptDataError,
    HeadraceError,
    InvalidInputError,
)
from headrace.faults import fault
from headrace.files import Files
from headrace.records.schema import schema_from_text, schema_to_text


class BackgroundWorker:
    """Work of one process, in the order in which it was given.

    What fails is left: it is found to be due again, and readers find what is wrong.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._is_closed = False

    def put(self, work: Callable[[], object]) -> None:
        """Have something done; nothing more after ``close``."""
        if self._process != os.getpid():  # a forked process has none of the threads
            self._lock = threading.Lock()
            self._begin()
        with self._lock:
            if self._is_closed:
                return
            self._work.put(work)
            if self._thread is None:
                name = "headrace-bus-compact"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for what is under way, and leave the rest."""
        with self._lock:
            self._is_closed = True
            thread = self._thread if self._process == os.getpid() else None
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            work = self._work.get()
            if work is not None:
                with contextlib.suppress(HeadraceError, OSError):
                    work()


class AliasStore(Protocol):
    """Where the aliases of a bus are kept. Safe for many threads and processes."""

    def target(self, alias: str) -> str | None:
        """Return the stream that an alias stands for; ``None`` when there is no such alias."""
        ...

    def all(self) -> dict[str, str]:
        """Return the stream of each alias, as they were at one moment."""
        ...

    def set(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        """Let aliases stand for streams, or for nothing, durably and in one step.

        Raises:
            InvalidInputError: one does not stand for what is expected of it.
        """
        ...


class StoredBus(Bus):
    """A bus whose streams and aliases lie below a root, which many processes open.

    Args:
        root: where they are.
        parts: settings, time and files.
        maps: of its segments.
        incarnations: which streams there are.
        aliases: of them.
    """

    def __init__(
        self,
        root: Path,
        parts: BusContext,
        maps: SegmentMapCache,
        incarnations: Incarnations,
        aliases: AliasStore,
    ) -> None:
        self.root, self.parts, self.maps = root, parts, maps
        self._incarnations, self._aliases = incarnations, aliases
        self._lock = threading.Lock()
        self._streams: dict[str, LogStream] = {}
        self._carried: dict[str, CarriedStream] = {}
        self.compactions = BackgroundWorker()
        self._is_closed = False

    @abstractmethod
    def _opened(self, there: Incarnation) -> LogStream | None:
        """Open a stream; ``None``: it was removed meanwhile, so look again."""

    @abstractmethod
    def _prepare(self, made: Incarnation, spec: StreamSpec) -> None:
        """Make what a stream needs before it exists."""

    def create(
        self, spec: StreamSpec, *, exist_ok: bool = False, fence: Fence | None = None
    ) -> Stream:
        """Create a stream; see ``Bus.create``.

        1. Prepare where its rows go: here, or in a log elsewhere. 2. Publish what it is, which
        makes it exist.
        """
        with self._lock:
            self._check_open()
            if (target := self._aliases.target(spec.name)) is not None:
                raise alias_taken(spec.name, target)
            while True:
                if (there := self._found(spec.name)) is not None:
                    self.parts.fences.check(fence)
                    check_existing_stream(there, spec, there.schemas.all, exist_ok)
                    return self._shown(there)
                made = self._incarnations.following(spec.name)
                self.parts.fences.check(fence)
                self._prepare(made, spec)
                identity = self.parts.clock.new_id()
                if spec.address:
                    log = carrier_of(spec.address).make_carrier(spec, spec.address)
                    identity = f"{log}/{identity}"
                fault("stream.prepared")
                is_mine = self._incarnations.create(made, spec_to_json(spec, identity))
                if is_mine and (there := self._found(spec.name)) is not None:
                    return self._shown(there)

    def stream(self, name: str) -> Stream:
        """Return a stream; see ``Bus.stream``."""
        with self._lock:
            held = self._streams.get(name)  # a closed bus has none
            if held is not None and held.is_there:
                return self._shown(held) if held.created.address else held
            self._check_open()
            found = self._found(name)
            if found is None and (target := self._aliases.target(name)) is not None:
                found = self._found(target)
            if found is None:
                known = [*self._incarnations.names(), *self._aliases.all()]
                raise unknown_stream(name, sorted(known))
            return self._shown(found)

    def _shown(self, kept: LogStream) -> Stream:
        """Return a stream as it is used, with its rows from where they are."""
        if not kept.created.address:
            return kept
        name, address = kept.created.name, kept.settings.address or kept.created.address
        held = self._carried.get(name)
        if held is None or held.kept is not kept or held.address != address:
            if held is not None:
                held.close()
            held = self._carried[name] = CarriedStream(kept, address, self.parts)
        return held

    def _found(self, name: str) -> LogStream | None:
        """Return the stream of a name, opened once; ``None``: there is none."""
        held = self._streams.get(name)
        if held is not None and held.is_there:
            return held
        self._streams.pop(name, None)
        while (there := self._incarnations.current(name)) is not None:
            if (made := self._opened(there)) is not None:
                self._streams[name] = made
                return made
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
            self._drop_carrier(name)
            if gone is None or not self._incarnations.remove(gone):
                raise unknown_stream(name, self._incarnations.names())
            if (opened := self._streams.pop(name, None)) is not None:
                opened.close()

    def _drop_carrier(self, name: str) -> None:
        """Remove the log elsewhere that has the rows of a stream, if one has."""
        with contextlib.suppress(CorruptDataError):  # nobody can read it, and it can go
            if (there := self._found(name)) is not None and there.created.address:
                address = there.settings.address or there.created.address
                carrier_of(address).drop_carrier(address, there.identity)
        if (carried := self._carried.pop(name, None)) is not None:
            carried.close()

    def _set_aliases(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        self._check_open()
        self._aliases.set(targets, expected)

    def close(self) -> None:
        """Wait for what is compacted, and close all streams; nothing is lost."""
        with self._lock:
            self._is_closed = True
            streams, self._streams = list(self._streams.values()), {}
            carried, self._carried = list(self._carried.values()), {}
        for one in carried:
            one.close()
        for stream in streams:
            stream.close()
        self.compactions.close()
        self.maps.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the bus at {self.root} is closed")


FORMAT, CARRIED_FORMAT = 3, 4
_FORMATS = (1, 2, FORMAT, CARRIED_FORMAT)
"""1 has no identity and is not compacted, 2 has none and is; 4 has its rows elsewhere."""
_UNWATCHED_RECHECK_S = 0.05


class FileStream(LogStream):
    """A stream in a folder."""

    def __init__(self, bus: FileBus, incarnation: Incarnation) -> None:
        self._bus, self._incarnation = bus, incarnation
        found = os.stat(incarnation.file)
        self._mark = found.st_ino, found.st_mtime_ns
        self.folder = folder = incarnation.folder
        spec, identity = spec_from_json(
            bus.parts.files.read(incarnation.file), str(incarnation.file)
        )
        settings = SettingsFiles(folder, bus.parts.files, bus.parts.clock)
        holds = CompactionPinFiles(folder, bus.parts.files, bus.parts.clock, bus.parts.fences)

        def make_log(partition: int) -> FileLog:
            number = partition_name(partition)
            return FileLog(
                f"{folder}/{number}",
                partition,
                spec.name,
                bus.parts,
                maps=bus.maps,
                open_logs=bus.open_logs,
                settings=settings,
                holds=holds,
                moved=MovedSegments(bus.parts.files, bus.root, far and f"{far}/{number}/rows"),
            )

        far, self._unlooked = bus.parts.settings.offload_address, Counter[int]()
        far = far and f"{far}/{spec.name}/{identity}"
        super().__init__(spec, identity, make_log, bus.parts, settings, holds)
        self._has_upkeep = self._has_upkeep or bool(far)
        self._check_partitions_known()

    def _check_there(self) -> None:
        self._check_open()
        if not self.is_there:
            raise stream_removed(self.spec.name)

    @property
    def is_there(self) -> bool:
        """Say whether it was not removed, nor its folder put in place of another's."""
        try:
            found = os.stat(self._incarnation.file)
        except FileNotFoundError:
            return False
        return self._mark == (found.st_ino, found.st_mtime_ns)

    def _check_partitions_known(self) -> None:
        """Find settings that were lost, by rows in a partition that they do not mention."""
        following = Path(f"{self.folder}/{partition_name(self.spec.partitions)}")
        if any(name.startswith("index-") for name in self._bus.parts.files.names(following)):
            before = self.spec.partitions
            self._partitions()  # somebody may just have added it
            if self.spec.partitions == before:
                raise CorruptDataError(
                    f"{self.folder} has lost settings: found rows in {following.name}, expected "
                    f"{before} partitions",
                    file=str(self.folder),
                )

    def _prepare(self, partitions: int) -> None:
        for partition in range(self.spec.partitions, partitions):
            (self.folder / partition_name(partition)).mkdir(exist_ok=True)

    def _note(self, partition: int, size: int) -> None:
        super()._note(partition, size)
        self._unlooked[partition] += size
        if self._unlooked[partition] >= self._bus.parts.settings.segment_bytes:
            self._unlooked[partition] = 0
            self._offload_soon(partition)

    def trim(
        self, partition: int, before_offset: int | None = None, *, fence: Fence | None = None
    ) -> int:
        """Drop old rows, whole segments at a time; see ``Stream.trim``."""
        begin = super().trim(partition, before_offset, fence=fence)
        self._offload_soon(partition)
        return begin

    def compact(self, partition: int) -> Compacted:
        """Keep of each key only the last row; see ``Stream.compact``."""
        done = super().compact(partition)
        self._offload_soon(partition)
        return done

    def _offload_soon(self, partition: int) -> None:
        if self._bus.parts.settings.offload_address and self._settings.current().offloads:
            self._run_soon(partial(self.offload, partition))

    def offload(self, partition: int) -> Offloaded:
        """Do as ``FileBus.offload`` with one partition."""
        log = self._log(partition)
        self._check_there()
        assert isinstance(log, FileLog)
        return log.offload()

    def _run_soon(self, work: Callable[[], object]) -> None:
        self._bus.compactions.put(work)

    def _listen_to(self, logs: Sequence[Log]) -> None:
        watch = self._bus.watch()
        added = [watch.add(log.folder, self._appends) for log in logs if isinstance(log, FileLog)]
        if not all(added):
            self.recheck_s = _UNWATCHED_RECHECK_S


class FileBus(StoredBus):
    """Streams under ``<root>/streams``.

    Many processes can open the same root, append to the same partitions and read them.

    Args:
        root: created with the first stream.
        settings: sizes and the sync policy.
        clock: for append times, deadlines and names.
        files: the file system.
    """

    def __init__(
        self,
        root: Path | str,
        settings: BusOptions | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        root = Path(root).absolute()
        clock = clock or SteadyClock(SystemClock(), record=root / CLOCK_RECORD)
        files, settings = files or Files(), settings or BusOptions()
        parts = BusContext(settings, clock, files, FenceFiles(root / "fences", files, clock))
        super().__init__(
            root,
            parts,
            SegmentMapCache(files, settings.open_segments, moved=MovedSegments(files, root).place),
            Incarnations(root, files, clock),
            AliasFiles(root / "aliases", files, clock),
        )
        self.open_logs = OpenLogCache(settings.open_partitions)
        self._watch: FolderWatcher | None = None
        self._flusher: Flusher | None = None

    def _prepare(self, made: Incarnation, spec: StreamSpec) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)  # records are the owner's
        for partition in range(spec.partitions):
            (made.folder / partition_name(partition)).mkdir(parents=True, exist_ok=True)

    def _opened(self, there: Incarnation) -> FileStream | None:
        try:
            made = FileStream(self, there)
        except FileNotFoundError:  # removed meanwhile, and maybe created again
            return None
        settings = self.parts.settings
        if settings.fsync is Fsync.INTERVAL and self._flusher is None:
            self._flusher = Flusher(self.open_logs.flush, settings.fsync_interval_ms)
        return made

    def offload(self, name: str) -> list[Offloaded]:
        """Move the segments of a stream that are not to stay on this disk; each partition's result.

        They go to ``bus.offload_address``, and are read from there. Which are to stay,
        ``local_retain_ms`` and ``local_retain_bytes`` of the stream say. What was dropped of moved
        segments is removed from there. Those who append do all this by themselves, in the
        background, after each ``segment_bytes``.

        Raises:
            InvalidInputError: there is no address, or no such stream, or all of it is to stay.
            UnavailableError: the storage does not answer; what is not moved stays, try again.
        """
        stream = self.stream(name)
        if not self.parts.settings.offload_address:
            raise InvalidInputError(
                "bus.offload_address is not set, so there is nowhere to move segments to; set it "
                "to s3://BUCKET/PREFIX in headrace.toml"
            )
        if not stream.settings.offloads:
            raise InvalidInputError(
                f"stream {name!r} keeps all segments on the disk; say how much may be moved: "
                f"headrace bus configure {name} --local-retain 7d",
                stream=name,
            )
        assert isinstance(stream, FileStream)
        return [stream.offload(partition) for partition in range(stream.spec.partitions)]

    def fence(self, fence: Fence) -> None:
        """Refuse requests of older generations of a job; see ``Bus.fence``."""
        self._check_open()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        super().fence(fence)

    def close(self) -> None:
        """Close all files and threads of the bus."""
        super().close()
        for thread in (self._flusher, self._watch):
            if thread is not None:
                thread.close()
        self.open_logs.close()

    def watch(self) -> FolderWatcher:
        """Return the one watch of the bus, started by the first waiter."""
        with self._lock:
            self._check_open()
            if self._watch is None:
                self._watch = FolderWatcher()
            return self._watch


def partition_name(partition: int) -> str:
    """Return the name of a partition's folder."""
    return f"p-{partition:05d}"


def spec_to_json(spec: StreamSpec, identity: str) -> bytes:
    """Return the file that says what a stream was created as."""
    content = {
        "format": CARRIED_FORMAT if spec.address else FORMAT,
        "identity": identity,
        "name": spec.name,
        "partitions": spec.partitions,
        "schema": schema_to_text(spec.schema),
        "time": spec.time,
        "key": spec.key,
        **({"compact": True} if spec.compact else {}),
        **({"address": spec.address} if spec.address else {}),
        "columns": {field.name: str(field.type) for field in spec.schema},
    }
    return signed_json(content)


def spec_from_json(data: bytes, origin: str) -> tuple[StreamSpec, str]:
    """Return what a stream is, and its identity; for an old one the digest of its file is that."""
    content = verified_json(data, origin, *_FORMATS)
    schema = schema_from_text(content["schema"])
    place = (content["name"], content["partitions"], schema, content["time"])
    compact = content.get("compact", False)
    identity = content.get("identity") or xxh3_64_hexdigest(data)
    key, address = tuple(content["key"]), content.get("address", "")
    return StreamSpec(*place, key=key, compact=compact, address=address), str(identity)
