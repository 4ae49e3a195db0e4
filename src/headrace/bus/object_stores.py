"""What a bus in an object storage keeps beside rows: settings, holds, aliases, which streams exist.

Each is a chain or a set of small objects, created by conditional puts and never changed. Fences are
those of a file bus, whose files may as well be objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from headrace.bus.spec import check_expected, stream_removed
from headrace.bus.stream_names import ALIAS_FORMAT, Incarnation, Incarnations
from headrace.bus.stream_stores import (
    FORMAT,
    CompactionPinFiles,
    FenceStore,
    SettingsFiles,
    StreamSettings,
    settings_from_json,
    signed_json,
    verified_json,
)
from headrace.clock import Clock
from headrace.faults import fault
from headrace.files import Files
from headrace.remote import RemoteFile

_SETTINGS = "settings-"
_REMOVED_AT_ONCE = 16


class ObjectSettings(SettingsFiles):
    """The objects ``settings-000001.json``, ``-000002`` and so on; the last one counts.

    The last of a stream that was removed says so. These stay when its rows go: a process
    that has the stream open asks for the next number before each append.

    Args:
        folder: of the stream.
        stream: its name.
        files: the objects.
        clock: for names.
    """

    def __init__(self, folder: Path, stream: str, files: Files, clock: Clock) -> None:
        super().__init__(folder, files, clock)
        self._stream, self._number = stream, 0
        self.is_removed = False

    def current(self) -> StreamSettings:
        """Return the newest settings.

        Raises:
            InvalidInputError: the stream was removed.
        """
        with self._lock:
            while not self.is_removed:
                path = self._path(self._number + 1)
                try:
                    data = self._files.read(path)
                except FileNotFoundError:
                    return self._settings
                self.is_removed = "removed" in verified_json(data, str(path), FORMAT)
                if not self.is_removed:
                    self._settings = settings_from_json(data, self._number + 1, str(path))
                    self._number += 1
        raise stream_removed(self._stream)

    def remove(self) -> bool:
        """Say in place of further settings that the stream is gone; False: others have."""
        while True:
            try:
                self.current()
            except Exception:
                if self.is_removed:
                    return False
                raise
            number = self._number + 1
            data = signed_json({"format": FORMAT, "number": number, "removed": True})
            if self._files.publish(self._path(number), data):
                self.is_removed = True
                return True


class CompactionPinObjects(CompactionPinFiles):
    """The objects ``holds/<reader>~<unique>.json`` of a stream; the lowest of a reader counts.

    A compaction that is about to count is announced by ``~<partition>-<unique>``. Who sets a hold
    bars those that it finds, by the next head of their partition: they may not have seen it.

    Args:
        folder: of the stream.
        files: the objects.
        clock: for names and times.
        fences: of the bus.
        bar: creates the next head of a partition, see ``ObjectLog.bar``.
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        clock: Clock,
        fences: FenceStore,
        bar: Callable[[int], None],
    ) -> None:
        super().__init__(folder, files, clock, fences)
        self._bar = bar

    @contextmanager
    def announced(self, partition: int) -> Iterator[None]:
        """Announce a compaction for a block: in it look at the newest head, then at the holds."""
        path = self._folder / f"~{partition}-{self._clock.new_id()}"
        self._files.publish(path, b"")
        try:
            yield
        finally:
            self._files.remove(path)

    def _stop_compactions(self) -> None:
        found = self._paths("~")
        for partition in sorted({int(path.name[1:].partition("-")[0]) for path in found}):
            self._bar(partition)
        self._remove(found)

    def _make_folder(self) -> None:
        """Do nothing: a bucket has no folders."""


class AliasObjects:
    """Aliases as objects ``<folder>/<number>``, each with all of them; the last one counts.

    None is ever removed, for a process that was frozen must not create one of them again.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder, self._files = folder, files
        self._number, self._newest = 0, dict[str, str]()

    def target(self, alias: str) -> str | None:
        """Return the stream that an alias stands for; ``None`` when there is no such alias."""
        return self.all().get(alias)

    def all(self) -> dict[str, str]:
        """Return the stream of each alias, as they were at one moment."""
        return dict(self._look()[1])

    def _look(self) -> tuple[int, Mapping[str, str]]:
        number, newest = self._number, self._newest
        while True:
            path = self._path(number + 1)
            try:
                data = self._files.read(path)
            except FileNotFoundError:
                self._number, self._newest = number, newest
                return number, newest
            number += 1
            newest = dict(verified_json(data, str(path), ALIAS_FORMAT)["aliases"])

    def set(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        """Let aliases stand for streams, or for nothing, durably and in one step.

        Raises:
            InvalidInputError: one does not stand for what is expected of it.
        """
        while True:
            number, newest = self._look()
            check_expected({alias: newest.get(alias) for alias in expected or ()}, expected)
            after = {**newest, **targets}
            kept = {alias: stream for alias, stream in after.items() if stream is not None}
            data = signed_json({"format": ALIAS_FORMAT, "aliases": kept})
            if self._files.publish(self._path(number + 1), data):
                return

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.json"


class ObjectIncarnations(Incarnations):
    """The streams of a bus in an object storage: ``streams/<name>/<number>`` has the rows.

    A stream is gone once its settings say so; that it was is then noted beside it.
    """

    def create(self, made: Incarnation, data: bytes) -> bool:
        """Let a stream exist; False when another was created meanwhile."""
        if not self._files.publish(made.file, data):
            return False
        if self._last(self._name(made)) == (made.number, True):
            return True
        self._files.remove(made.file)
        return False

    def settings(self, one: Incarnation) -> ObjectSettings:
        """Return the settings of a stream."""
        return ObjectSettings(one.folder, self._name(one), self._files, self._clock)

    def remove(self, gone: Incarnation) -> bool:
        """Let a stream exist no more, in one step; False when somebody else has removed it."""
        is_mine = self.settings(gone).remove()
        fault("stream.removed")
        self._files.publish(self._file(gone.file.parent, "removed", gone.number), b"")
        self.tidy(self._name(gone))
        return is_mine

    def tidy(self, name: str) -> None:
        """Remove the rows of streams of a name that exist no more, also where a removal died."""
        last, is_there = self._last(name)
        folder = self._folder / name
        for entry in self._files.names(folder):
            if self._is_kept(entry, last, is_there=is_there):
                continue
            if not entry.isdigit():
                self._files.remove(folder / entry)
                continue
            far = RemoteFile(folder / entry)
            storage = far.storage
            names = [one.name for one in storage.objects(far.name)]
            with ThreadPoolExecutor(_REMOVED_AT_ONCE) as pool:
                gone = [one for one in names if _SETTINGS not in one.rpartition("/")[2]]
                list(pool.map(storage.delete, gone))

    def _of(self, name: str, number: int) -> Incarnation:
        folder = self._folder / name
        return Incarnation(number, self._file(folder, "stream", number), folder / f"{number:06d}")
