"""Names of streams in a folder: which stream has a name by now, and what an alias stands for.

The first stream of a name lies in ``streams/<name>`` with ``stream.json`` there; the n-th after it
in ``streams/<name>/<n>`` with ``stream-<n>.json``. One is created by linking that file and removed
by renaming it to ``removed-<n>.json``, which stays, so that a number never comes twice: whatever a
frozen process does to an older stream, it does to a path that the newer one does not have.
Aliases are small files; where several change at once, the file ``.swap`` names all first and wins
over their own until these say the same. The next process that sets aliases completes a swap that
another one did not finish.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.bus.offload import MovedSegments
from headrace.bus.spec import check_expected
from headrace.bus.stream_stores import signed_json, verified_json
from headrace.clock import Clock
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Files, take_lock

_FILE = re.compile(r"(stream|removed)(?:-(\d{6}))?\.json")
_TRASH = ".removed-"


class Incarnation(NamedTuple):
    """One of the streams that have or had a name: its number, its file, where its rows are."""

    number: int
    file: Path
    folder: Path


class Incarnations:
    """The streams below a folder. Safe for many processes.

    Args:
        root: of the bus; streams are in ``<root>/streams``.
        files: the file system.
        clock: for names.
    """

    def __init__(self, root: Path, files: Files, clock: Clock) -> None:
        self._root, self._folder = root, root / "streams"
        self._files, self._clock = files, clock
        self._moved = MovedSegments(files, root)

    def names(self) -> list[str]:
        """Return the names of the streams that there are, sorted."""
        return [name for name in self._files.names(self._folder) if self.current(name) is not None]

    def current(self, name: str) -> Incarnation | None:
        """Return the stream of a name; ``None`` when there is none, or it was removed."""
        last, is_there = self._last(name)
        return self._of(name, last) if is_there else None

    def following(self, name: str) -> Incarnation:
        """Return the stream that may be created under a name that has none now."""
        return self._of(name, self._last(name)[0] + 1)

    def create(self, made: Incarnation, data: bytes) -> bool:
        """Let a stream exist; False when another was created meanwhile.

        Its folders are there. A number that was taken and removed before this process woke up is
        not taken again.
        """
        if not self._files.publish(made.file, data):
            return False
        if self._last(self._name(made)) != (made.number, True):
            self._files.remove(made.file)
            return False
        for parent in (self._folder, self._root):
            self._files.sync_folder(parent)
        return True

    def remove(self, gone: Incarnation) -> bool:
        """Let a stream exist no more, in one step; False when somebody else has removed it."""
        try:
            self._files.rename(gone.file, self._file(gone.file.parent, "removed", gone.number))
        except FileNotFoundError:
            return False
        self._files.sync_folder(gone.file.parent)
        fault("stream.removed")
        self.tidy(self._name(gone))
        return True

    def tidy(self, name: str) -> None:
        """Remove the rows of streams of a name that exist no more, also where a removal died."""
        last, is_there = self._last(name)
        folder, trash = self._folder / name, self._root / f"{_TRASH}{self._clock.new_id()}"
        over = [
            entry
            for entry in self._files.names(folder)
            if not self._is_kept(entry, last, is_there=is_there)
        ]
        if over:
            trash.mkdir()
            for entry in over:
                with contextlib.suppress(FileNotFoundError):  # of another who tidies
                    (folder / entry).rename(trash / entry)
        for path in self._root.glob(f"{_TRASH}*"):  # those of a process that died here, too
            if self._moved.remove_all(path):
                shutil.rmtree(path, ignore_errors=True)

    def _is_kept(self, entry: str, last: int, *, is_there: bool) -> bool:
        if (match := _FILE.fullmatch(entry)) is not None:
            return int(match[2] or 0) >= last
        number = int(entry) if entry.isdigit() else 0
        return number > last or (number == last and is_there)

    def _last(self, name: str) -> tuple[int, bool]:
        """Return the highest number that was ever taken, -1 for none, and whether it is there."""
        there = gone = -1
        for entry in self._files.names(f"{self._folder}/{name}"):
            if (match := _FILE.fullmatch(entry)) is not None:
                number = int(match[2] or 0)
                if match[1] == "stream":
                    there = max(there, number)
                else:
                    gone = max(gone, number)
        return max(there, gone), there > gone

    def _of(self, name: str, number: int) -> Incarnation:
        folder = self._folder / name
        rows = folder / f"{number:06d}" if number else folder
        return Incarnation(number, self._file(folder, "stream", number), rows)

    def _file(self, folder: Path, kind: str, number: int) -> Path:
        is_first = kind == "stream" and not number
        return folder / (f"{kind}.json" if is_first else f"{kind}-{number:06d}.json")

    def _name(self, one: Incarnation) -> str:
        return one.file.parent.name


ALIAS_FORMAT = 1
ALONE_S = 10.0


class AliasFiles:
    """Aliases as ``<folder>/<alias>.json``. Safe for many threads and processes."""

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock

    def target(self, alias: str) -> str | None:
        """Return the stream that an alias stands for; ``None`` when there is no such alias.

        Raises:
            CorruptDataError: its file is damaged.
        """
        pending = self._pending()
        if alias in pending:
            return pending[alias]
        path = self._path(alias)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None
        content = verified_json(data, str(path), ALIAS_FORMAT)
        if content["alias"] != alias:
            raise CorruptDataError(
                f"{path} is damaged: it is of alias {content['alias']!r}", file=str(path)
            )
        return str(content["stream"])

    def all(self) -> dict[str, str]:
        """Return the stream of each alias, as they were at one moment."""
        found = self._look()
        while found != (again := self._look()):
            found = again
        return found

    def _look(self) -> dict[str, str]:
        pending = self._pending()
        names = [name for name in self._files.names(self._folder) if name.endswith(".json")]
        found = {alias: self.target(alias) for alias in (*(n[:-5] for n in names), *pending)}
        return {alias: stream for alias, stream in found.items() if stream is not None}

    def set(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        """Let aliases stand for streams, or for nothing, durably and in one step.

        Raises:
            InvalidInputError: one does not stand for what is expected of it.
            UnavailableError: another process sets aliases all the time.
        """
        self._files.make_missing(self._folder)
        with self._alone():
            self._write(self._pending())
            check_expected({alias: self.target(alias) for alias in expected or ()}, expected)
            if len(targets) > 1:
                content = {"format": ALIAS_FORMAT, "aliases": dict(targets)}
                self._files.replace(self._swap, signed_json(content))
                fault("aliases.swapped")
            self._write(targets)
            self._files.remove(self._swap)

    @property
    def _swap(self) -> Path:
        return self._folder / ".swap"

    def _pending(self) -> dict[str, str | None]:
        try:
            data = self._files.read(self._swap)
        except FileNotFoundError:
            return {}
        return dict(verified_json(data, str(self._swap), ALIAS_FORMAT)["aliases"])

    def _write(self, targets: Mapping[str, str | None]) -> None:
        for alias, stream in targets.items():
            if stream is None:
                self._files.remove(self._path(alias))
                continue
            content = {"format": ALIAS_FORMAT, "alias": alias, "stream": stream}
            self._files.replace(self._path(alias), signed_json(content))
            fault("aliases.one_written")
        self._files.sync_folder(self._folder)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not take_lock(descriptor, self._clock, ALONE_S):
                raise UnavailableError("another process sets aliases of the bus; try again")
            yield
        finally:
            os.close(descriptor)

    def _path(self, alias: str) -> Path:
        return self._folder / f"{alias}.json"
