"""What a bus keeps of a stream beside its rows, in memory or as files.

- ``StreamSettings``: what can change while a stream is in use: retention, compaction, columns.
  In numbered files; of two processes that change them at once one wins.
- ``FenceStore``: the newest generation of each job's driver; what an older one asks is refused,
  under the lock of the partition. It belongs to the bus and not to a stream, so a stream that is
  removed and created again is no way around it.
- ``CompactionPinStore``: where readers of a compacted stream stand; nothing from there on is
  compacted, so an epoch reads the same rows again after a crash. A pin that its reader has not
  renewed for ``StreamSettings.hold_ms`` no longer counts.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest

from headrace.bus.spec import MAX_PARTITIONS, ColumnChange, Fence, check_name
from headrace.clock import Clock
from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError
from headrace.files import Files

FORMAT = 1
_BY_OTHERS = ("partitions_before", "columns")
_OF_COMPACTION = ("compact_after_ms", "keep_deletes_ms", "hold_ms")
_OF_THE_DISK = ("local_retain_ms", "local_retain_bytes")
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class StreamSettings:
    """The properties of a stream that can change while it is in use.

    Args:
        retain_ms: rows appended longer ago can be removed, in whole segments; ``None``: never.
        retain_bytes: the oldest segments can be removed as long as this many bytes of a partition
            remain; ``None``: never.
        partitions: number of partitions that get new rows, the first ones; ``None``: all that the
            stream was created with. Others stay, and are read to their end.
        partitions_before: what ``partitions`` was before; not to be set.
        columns: how the schema was changed since the stream was created; by ``evolve``.
        compact_after_ms: for a compacted stream: rows younger than this are not compacted;
            ``None``: all are.
        keep_deletes_ms: for a compacted stream: how long deletes are kept after a compaction first
            finds them, so that slow readers see them.
        hold_ms: for a compacted stream: how long a silent reader holds compaction back.
        local_retain_ms: whole segments with only rows appended longer ago are moved to
            ``bus.offload_address``, and read from there; ``None``: they stay on the disk.
        local_retain_bytes: the oldest segments are moved as long as this many bytes of a partition
            remain on the disk; ``None``: they stay.
        address: of a stream whose rows are elsewhere: how that place is reached by now; ``None``:
            as when it was created.
    """

    retain_ms: int | None = None
    retain_bytes: int | None = None
    partitions: int | None = None
    partitions_before: tuple[int, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    compact_after_ms: int | None = None
    keep_deletes_ms: int = _DAY_MS
    hold_ms: int = 7 * _DAY_MS
    local_retain_ms: int | None = None
    local_retain_bytes: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        for name in ("retain_ms", "retain_bytes", *_OF_COMPACTION, *_OF_THE_DISK):
            value = getattr(self, name)
            may_be_none = StreamSettings.__dict__[name] is None
            if not (value is None and may_be_none) and not (isinstance(value, int) and value > 0):
                raise InvalidInputError(
                    f"stream setting {name} is {value!r}; expected a whole number from 1 on"
                    + (", or none to keep everything" if may_be_none else "")
                )
        if self.partitions is not None and not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidInputError(
                f"found {self.partitions} partitions, expected 1 to {MAX_PARTITIONS}"
            )
        object.__setattr__(self, "partitions_before", tuple(self.partitions_before))

    def counts(self, created: int) -> list[int]:
        """Return all numbers of partitions that rows went to, the current one first.

        Args:
            created: how many the stream was created with.
        """
        now = () if self.partitions is None else (self.partitions,)
        return list(dict.fromkeys((*now, *reversed(self.partitions_before), created)))

    @property
    def offloads(self) -> bool:
        """Return whether any segment can be moved from the disk to an object storage."""
        return self.local_retain_ms is not None or self.local_retain_bytes is not None

    @property
    def drops(self) -> bool:
        """Return whether any row can ever be removed."""
        return self.retain_ms is not None or self.retain_bytes is not None

    def changed(self, changes: Mapping[str, Any]) -> StreamSettings:
        """Return the settings with some of them changed.

        Raises:
            InvalidInputError: an invalid name or value.
        """
        known = [field.name for field in fields(StreamSettings) if field.name not in _BY_OTHERS]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise InvalidInputError(f"unknown stream settings {unknown}; expected some of {known}")
        before = self.partitions_before
        if self.partitions is not None and changes.get("partitions", 0) != self.partitions:
            before += (self.partitions,) if "partitions" in changes else ()
        return replace(self, **changes, partitions_before=before)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"columns": [change.to_plain() for change in self.columns]}


class SettingsStore(ABC):
    """Where the settings of a stream are kept. Safe for many threads."""

    @abstractmethod
    def current(self) -> StreamSettings:
        """Return the newest settings; cheap enough for every append."""

    @abstractmethod
    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more; says whether it did."""


class MemorySettings(SettingsStore):
    """The settings of a stream in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings = StreamSettings()

    def current(self) -> StreamSettings:
        """Return the newest settings."""
        return self._settings

    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more."""
        with self._lock:
            if self._settings is not before:
                return False
            self._settings = after
            return True


class SettingsFiles(SettingsStore):
    """The files ``settings-000001.json``, ``-000002`` and so on; the last one counts.

    None is ever removed, so a process that has read one finds the next by its name alone.
    """

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock
        self._lock = threading.Lock()
        self._number = -1
        self._following = ""  # the path of the file that would come next
        self._settings = StreamSettings()

    def current(self) -> StreamSettings:
        """Return the newest settings.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        with self._lock:
            if self._number < 0:
                self._number = self._last()
                if self._number:
                    self._settings = self._read(self._number)
                self._following = self._name(self._number + 1)
            while os.path.exists(self._following):
                self._settings = self._read(self._number + 1)
                self._number += 1
                self._following = self._name(self._number + 1)
            return self._settings

    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more."""
        self.current()
        with self._lock:  # of threads, too, one wins: the number has to be that behind ``before``
            if self._settings is not before:
                return False
            number = self._number + 1
        data = _to_json(number, after)
        return self._files.publish(self._path(number), data)

    def _name(self, number: int) -> str:
        return f"{self._folder}/settings-{number:06d}.json"

    def _path(self, number: int) -> Path:
        return Path(self._name(number))

    def _last(self) -> int:
        names = [n for n in self._files.names(self._folder) if n.startswith("settings-")]
        if names != [self._path(number + 1).name for number in range(len(names))]:
            raise CorruptDataError(
                f"{self._folder} has lost settings: found {names}, expected all numbers from 1 on",
                file=str(self._folder),
            )
        return len(names)

    def _read(self, number: int) -> StreamSettings:
        path = self._path(number)
        return settings_from_json(self._files.read(path), number, str(path))


def _to_json(number: int, settings: StreamSettings) -> bytes:
    plain = settings.plain()
    for name in ("columns", "address", *_OF_COMPACTION, *_OF_THE_DISK):
        if getattr(settings, name) == StreamSettings.__dict__[name]:
            del plain[name]  # versions that do not know of it may read the others
    return signed_json({"format": FORMAT, "number": number, "settings": plain})


def settings_from_json(data: bytes, number: int, origin: str) -> StreamSettings:
    """Read settings of a stream.

    Raises:
        CorruptDataError: they are damaged, or of another number.
        InvalidInputError: they are of a newer version.
    """
    content = verified_json(data, origin, FORMAT)
    if content["number"] != number:
        raise CorruptDataError(
            f"{origin} is damaged: it is file {content['number']}, expected {number}", file=origin
        )
    given = content["settings"]
    unknown = set(given) - {field.name for field in fields(StreamSettings)}
    if unknown:
        raise InvalidInputError(
            f"{origin} has settings {sorted(unknown)} that this version does not know; upgrade "
            "headrace",
            file=origin,
        )
    columns = tuple(map(ColumnChange.from_plain, given.pop("columns", ())))
    return StreamSettings(**given, columns=columns)


def signed_json(content: Mapping[str, Any]) -> bytes:
    """Return a small JSON file with a checksum of its content."""
    checksum = xxh3_64_hexdigest(msgspec.json.encode(content))
    return msgspec.json.format(msgspec.json.encode({**content, "checksum": checksum}))


def verified_json(data: bytes, origin: str, *expected: int) -> dict[str, Any]:
    """Read what ``signed_json`` wrote.

    Raises:
        CorruptDataError: it is damaged.
        InvalidInputError: its format is of another version.
    """
    try:
        content: dict[str, Any] = msgspec.json.decode(data)
        checksum = content.pop("checksum")
        is_good = checksum == xxh3_64_hexdigest(msgspec.json.encode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{origin} is damaged: it cannot be read", file=origin) from error
    if not is_good:
        raise CorruptDataError(f"{origin} is damaged: its checksum does not match", file=origin)
    if content.get("format") not in expected:
        known = " or ".join(map(str, expected))
        raise InvalidInputError(
            f"{origin} has format {content.get('format')}, expected {known}; upgrade headrace",
            file=origin,
        )
    return content


_KEPT = 8
"""Generations of a job that stay in its folder: a listing that runs while one is added and
another removed may miss both, but not all."""


class FenceStore(ABC):
    """The highest generation of each job. Safe for many threads and processes."""

    @abstractmethod
    def highest(self, job: str) -> int:
        """Return the highest generation announced of a job, never from memory; 0 without one."""

    @abstractmethod
    def _raise_to(self, fence: Fence) -> None:
        """Note a generation, durably; what is noted never falls."""

    def announce(self, fence: Fence) -> None:
        """Refuse from now on what older generations of a job ask.

        Raises:
            NotOwnerError: a newer one was announced.
        """
        if self.highest(fence.job) < fence.generation:
            self._raise_to(fence)
        self.check(fence)

    def check(self, fence: Fence | None) -> None:
        """Make sure that what is about to be done is not asked by an older generation.

        Call under the lock that the change counts under. A newer generation than any that was
        announced is announced by this.

        Raises:
            NotOwnerError: a newer generation was announced; nothing may be changed.
        """
        if fence is None:
            return
        found = self.highest(fence.job)
        if found < fence.generation:
            self.announce(fence)
        elif found > fence.generation:
            raise NotOwnerError.taken_over(
                f"job {fence.job!r}",
                fence.generation,
                newer=found,
                job=fence.job,
                generation=fence.generation,
            )


class MemoryFences(FenceStore):
    """Generations in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, int] = {}

    def highest(self, job: str) -> int:
        """Return the highest generation of a job."""
        return self._highest.get(job, 0)

    def _raise_to(self, fence: Fence) -> None:
        with self._lock:
            self._highest[fence.job] = max(fence.generation, self.highest(fence.job))


class FenceFiles(FenceStore):
    """Empty files ``<folder>/<job>/<generation>``; the highest counts.

    A generation is a file of its own, so that of two that are noted at once neither hides the
    other, and no lock is needed that a frozen process could keep.
    """

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock

    def highest(self, job: str) -> int:
        """Return the highest generation of a job."""
        names = self._files.names(f"{self._folder}/{job}")
        return int(names[-1]) if names else 0

    def _raise_to(self, fence: Fence) -> None:
        folder = self._folder / fence.job
        is_new = not folder.is_dir()
        self._files.publish(folder / f"{fence.generation:012d}", b"")
        if is_new:
            for parent in (self._folder, self._folder.parent):
                self._files.sync_folder(parent)
        for name in self._files.names(folder)[:-_KEPT]:
            self._files.remove(folder / name)


PIN_FORMAT = 1
NOT_PINNED = 2**63 - 1


class CompactionPin(NamedTuple):
    """What a reader holds: an offset of each partition, and when it said so."""

    reader: str
    offsets: tuple[int, ...]
    at_ms: int


class CompactionPinStore(ABC):
    """The holds of a stream. Safe for many threads and processes."""

    @abstractmethod
    def all(self) -> list[CompactionPin]:
        """Return what readers hold; of several of one reader, all count."""

    @abstractmethod
    def set(self, reader: str, offsets: Sequence[int], fence: Fence | None) -> None:
        """Replace the hold of a reader, durably; no compaction counts after it that ignores it.

        Raises:
            NotOwnerError: it is asked for a job that was taken over.
        """

    @abstractmethod
    def release(self, reader: str, fence: Fence | None) -> None:
        """Forget the hold of a reader, if it has one.

        Raises:
            NotOwnerError: it is asked for a job that was taken over.
        """

    def lowest(self, partition: int, now_ms: int, hold_ms: int) -> int:
        """Return the offset of a partition that holds the most back."""
        return min(
            (
                hold.offsets[partition]
                for hold in self.all()
                if partition < len(hold.offsets) and hold.at_ms + hold_ms > now_ms
            ),
            default=NOT_PINNED,
        )


class MemoryCompactionPins(CompactionPinStore):
    """The holds of a stream in memory."""

    def __init__(self, clock: Clock, fences: FenceStore) -> None:
        self._clock, self._fences = clock, fences
        self.lock = threading.RLock()
        """Keeps holds from being set; a compaction counts with it."""
        self._holds: dict[str, CompactionPin] = {}

    def all(self) -> list[CompactionPin]:
        """Return what readers hold."""
        with self.lock:
            return list(self._holds.values())

    def set(self, reader: str, offsets: Sequence[int], fence: Fence | None) -> None:
        """Replace the hold of a reader."""
        check_name(reader)
        with self.lock:
            self._fences.check(fence)
            self._holds[reader] = CompactionPin(reader, tuple(offsets), self._clock.now_ms())

    def release(self, reader: str, fence: Fence | None) -> None:
        """Forget the hold of a reader, if it has one."""
        with self.lock:
            self._fences.check(fence)
            self._holds.pop(reader, None)


class CompactionPinFiles(CompactionPinStore):
    """The files ``holds/<reader>~<unique>.json`` of a stream; the lowest of a reader counts.

    No lock is needed that a frozen process could keep. A file is created once, and removed by those
    that had listed it before their fence was compared: a process of an older generation, whenever
    it wakes up, may add a hold, but removes none of its successor. A compaction counts by a link of
    a file ``~<partition>-<unique>`` of this folder, which who sets a hold removes.
    Former versions wrote ``<reader>.json``.
    """

    def __init__(self, folder: Path, files: Files, clock: Clock, fences: FenceStore) -> None:
        self._folder, self._files, self._clock = folder / "holds", files, clock
        self._fences = fences

    def all(self) -> list[CompactionPin]:
        """Return what readers hold.

        Raises:
            CorruptDataError: a file is damaged.
        """
        while True:
            try:
                return [self._read(path) for path in self._paths() if path.suffix == ".json"]
            except FileNotFoundError:  # its reader has another one by now
                continue

    def _read(self, path: Path) -> CompactionPin:
        content = verified_json(self._files.read(path), str(path), PIN_FORMAT)
        return CompactionPin(content["reader"], tuple(content["offsets"]), content["at_ms"])

    def set(self, reader: str, offsets: Sequence[int], fence: Fence | None) -> None:
        """Replace the hold of a reader, durably.

        1. List the files of the reader. 2. Create another one. 3. Remove the files of compactions
        that are about to count, for they may not have seen it. 4. Compare the fence. 5. Remove the
        files of step 1; not before step 3, so that each compaction meets one or the other.
        """
        check_name(reader)
        content = {
            "format": PIN_FORMAT,
            "reader": reader,
            "offsets": list(offsets),
            "at_ms": self._clock.now_ms(),
        }
        before = self._of(reader)
        self._make_folder()
        is_made = False
        while not is_made:
            unique = self._clock.new_id()
            path = self._folder / f"{reader}~{unique}.json"
            is_made = self._files.publish(path, signed_json(content))
        self._stop_compactions()
        try:
            self._fences.check(fence)
        except NotOwnerError:
            self._files.remove(path)
            raise
        self._remove(before)

    def release(self, reader: str, fence: Fence | None) -> None:
        """Forget the hold of a reader, if it has one."""
        check_name(reader)
        before = self._of(reader)
        self._fences.check(fence)
        self._remove(before)

    def publish(
        self, path: Path, data: bytes, partition: int, may_count: Callable[[], bool]
    ) -> bool:
        """Create the file by which a compaction counts, durably, unless a hold is in its way.

        1. Write it into this folder. 2. Ask ``may_count``, which looks at the holds. 3. Link it to
        ``path``. A hold that is set after step 2 removes the file of step 1, so 3 fails.

        Returns:
            Whether it was created; not if ``path`` is there, nor if a hold was set meanwhile.
        """
        self._make_folder()
        self._remove(self._paths(f"~{partition}-"))  # of compactions that died
        draft = self._folder / f"~{partition}-{self._clock.new_id()}"
        self._files.write_new(draft, [data])
        try:
            if not may_count():
                return False
            self._files.link(draft, path)
        except (FileExistsError, FileNotFoundError):
            return False
        finally:
            self._files.remove(draft)
        return True

    def _stop_compactions(self) -> None:
        """Let no compaction count that may not have seen a hold which is there by now."""
        self._remove(self._paths("~"))

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            self._files.sync_folder(self._folder.parent)

    def _paths(self, begin: str = "") -> list[Path]:
        names = self._files.names(self._folder)
        return [self._folder / name for name in names if name.startswith(begin)]

    def _of(self, reader: str) -> list[Path]:
        found = self._paths(reader)
        return [path for path in found if path.name.removesuffix(".json").split("~")[0] == reader]

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._files.remove(path)
