"""The file bus: streams in a folder, shared by all processes of a host or a shared disk."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.bus.aliases import AliasFiles
from headrace.bus.background import BackgroundWork
from headrace.bus.bell import FolderWatch
from headrace.bus.bus import Bus, Stream
from headrace.bus.compacting.holds import HoldFiles
from headrace.bus.file_log import FileLog, Flusher, OpenLogs
from headrace.bus.log import Log, Parts
from headrace.bus.log_stream import LogStream
from headrace.bus.maps import SegmentMaps
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.refusals import alias_taken, unknown_stream
from headrace.bus.sameness import check_same
from headrace.bus.settings import SettingsFiles, signed_json, verified_json
from headrace.bus.spec import StreamSpec
from headrace.clock import Clock, SystemClock
from headrace.errors import ClosedError, CorruptDataError
from headrace.files import Files
from headrace.records.schema import schema_from_text, schema_to_text

FORMAT = 1
COMPACTED_FORMAT = 2
_REMOVED = ".removed-"
_UNWATCHED_RECHECK_S = 0.05


class FileStream(LogStream):
    """A stream in a folder."""

    def __init__(self, spec: StreamSpec, bus: FileBus, folder: Path) -> None:
        self._bus = bus
        self.folder = folder
        self.identity = _identity(folder)
        settings = SettingsFiles(folder, bus.parts.files, bus.parts.clock)

        def make_log(partition: int) -> FileLog:
            return FileLog(
                f"{folder}/{partition_name(partition)}",
                partition,
                bus.parts,
                maps=bus.maps,
                open_logs=bus.open_logs,
                settings=settings,
            )

        holds = HoldFiles(folder, bus.parts.files, bus.parts.clock)
        super().__init__(spec, make_log, bus.parts, settings, holds)
        self._check_partitions_known()

    def _check_partitions_known(self) -> None:
        """Find settings that were lost, by rows in a partition that they do not tell of."""
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

    def _run_soon(self, work: Callable[[], None]) -> None:
        self._bus.compactions.put(work)

    def _listen_to(self, logs: Sequence[Log]) -> None:
        watch = self._bus.watch()
        added = [watch.add(log.folder, self._bell) for log in logs if isinstance(log, FileLog)]
        if not all(added):
            self.recheck_s = _UNWATCHED_RECHECK_S


class FileBus(Bus):
    """Streams under ``<root>/streams``.

    Many processes may open the same root, append to the same partitions and read them.

    Args:
        root: made when missing, once a stream is created.
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
        self.root = Path(root).absolute()
        self.parts = Parts(settings or BusOptions(), clock or SystemClock(), files or Files())
        self.maps = SegmentMaps(self.parts.files, self.parts.settings.open_segments)
        self.open_logs = OpenLogs(self.parts.settings.open_partitions)
        self._folder = self.root / "streams"
        parts = self.parts
        self._aliases = AliasFiles(self.root / "aliases", parts.files, parts.clock)
        self._lock = threading.Lock()
        self._streams: dict[str, FileStream] = {}
        self._watch: FolderWatch | None = None
        self._flusher: Flusher | None = None
        self.compactions = BackgroundWork("headrace-bus-compact")
        self._is_closed = False

    def create(self, spec: StreamSpec, *, exist_ok: bool = False) -> Stream:
        """Create a stream; see ``Bus.create``.

        1. Make the folders of all partitions. 2. Publish ``stream.json``, which makes the
        stream exist.
        """
        folder = self._folder / spec.name
        with self._lock:
            self._check_open()
            if (target := self._aliases.target(spec.name)) is not None:
                raise alias_taken(spec.name, target)
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)  # records are the owner's
            for partition in range(spec.partitions):
                (folder / partition_name(partition)).mkdir(parents=True, exist_ok=True)
            text = _spec_to_json(spec)
            if self.parts.files.publish(folder / "stream.json", text, self.parts.clock.new_id()):
                for parent in (self._folder, self.root):
                    self.parts.files.sync_folder(parent)
            else:
                there = self._open(spec.name)
                check_same(there, spec, there.schemas.all, exist_ok)
            return self._open(spec.name)

    def stream(self, name: str) -> Stream:
        """Return a stream; see ``Bus.stream``."""
        with self._lock:
            self._check_open()
            if self._is_known(name):
                return self._streams[name]
            if not self._exists(name):
                name = self._aliases.target(name) or name
            return self._open(name)

    def _is_known(self, name: str) -> bool:
        """Say whether a stream is open, and let go of one that was removed, or made anew."""
        if name not in self._streams:
            return False
        stream = self._streams[name]
        if stream.identity == _identity(stream.folder):
            return True
        del self._streams[name]
        return False

    def aliases(self) -> dict[str, str]:
        """Return the stream that each alias stands for."""
        self._check_open()
        return self._aliases.all()

    def _remove(self, name: str) -> None:
        with self._lock:
            self._check_open()
            if (opened := self._streams.pop(name, None)) is not None:
                opened.close()
            gone = self.root / f"{_REMOVED}{self.parts.clock.new_id()}"
            (self._folder / name).rename(gone)
            for parent in (self._folder, self.root):
                self.parts.files.sync_folder(parent)
        for path in self.root.glob(f"{_REMOVED}*"):  # those of a process that died here, too
            shutil.rmtree(path, ignore_errors=True)

    def _set_aliases(self, targets: Mapping[str, str | None]) -> None:
        self._check_open()
        self._aliases.set(targets)

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        with self._lock:
            self._check_open()
            return self._names()

    def close(self) -> None:
        """Close all files and threads of the bus."""
        with self._lock:
            self._is_closed = True
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close()
        for thread in (self._flusher, self._watch):
            if thread is not None:
                thread.close()
        self.compactions.close()
        self.open_logs.close()
        self.maps.clear()

    def watch(self) -> FolderWatch:
        """Return the one watch of the bus, begun with the first who waits."""
        with self._lock:
            self._check_open()
            if self._watch is None:
                self._watch = FolderWatch()
            return self._watch

    def _open(self, name: str) -> FileStream:
        if not self._is_known(name):
            folder = Path(f"{self._folder}/{name}")
            self._streams[name] = FileStream(self._read_spec(name), self, folder)
            if self.parts.settings.fsync is Fsync.INTERVAL and self._flusher is None:
                self._flusher = Flusher(self.open_logs.flush, self.parts.settings.fsync_interval_ms)
        return self._streams[name]

    def _read_spec(self, name: str) -> StreamSpec:
        path = self._folder / name / "stream.json"
        try:
            return _spec_from_json(self.parts.files.read(path), str(path))
        except (FileNotFoundError, NotADirectoryError):
            known = [*self._names(), *self._aliases.all()]
            raise unknown_stream(name, sorted(known)) from None

    def _names(self) -> list[str]:
        names = self.parts.files.names(self._folder)
        return [name for name in names if self._exists(name)]

    def _exists(self, name: str) -> bool:
        return os.path.exists(f"{self._folder}/{name}/stream.json")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the bus in {self.root} is closed")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Tell a stream from another one of its name; ``None`` when there is none."""
    try:
        found = os.stat(f"{folder}/stream.json")
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def partition_name(partition: int) -> str:
    """Return the name of a partition's folder."""
    return f"p-{partition:05d}"


def _spec_to_json(spec: StreamSpec) -> bytes:
    content = {
        "format": COMPACTED_FORMAT if spec.compact else FORMAT,
        "name": spec.name,
        "partitions": spec.partitions,
        "schema": schema_to_text(spec.schema),
        "time": spec.time,
        "key": spec.key,
        **({"compact": True} if spec.compact else {}),
        "columns": {field.name: str(field.type) for field in spec.schema},
    }
    return signed_json(content)


def _spec_from_json(data: bytes, origin: str) -> StreamSpec:
    content = verified_json(data, origin, FORMAT, COMPACTED_FORMAT)
    schema = schema_from_text(content["schema"])
    place = (content["name"], content["partitions"], schema, content["time"])
    compact = content.get("compact", False)
    return StreamSpec(*place, key=tuple(content["key"]), compact=compact)
