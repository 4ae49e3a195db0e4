"""Other names of streams, in a folder: each a small file that is swapped in one step.

Of several the file ``.swap`` tells all first, in one step, and wins over their own until these say
the same. Whoever sets aliases next completes what somebody else began and died over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.bus.locks import take_lock
from headrace.bus.settings import signed_json, verified_json
from headrace.clock import Clock
from headrace.errors import CorruptDataError, UnavailableError
from headrace.faults import fault
from headrace.files import Files

FORMAT = 1
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
        content = verified_json(data, str(path), FORMAT)
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

    def set(self, targets: Mapping[str, str | None]) -> None:
        """Let aliases stand for streams, or for nothing, durably and in one step.

        Raises:
            UnavailableError: another process sets aliases all the time.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._write(self._pending())
            if len(targets) > 1:
                content = {"format": FORMAT, "aliases": dict(targets)}
                self._files.replace(self._swap, signed_json(content), self._clock.new_id())
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
        return dict(verified_json(data, str(self._swap), FORMAT)["aliases"])

    def _write(self, targets: Mapping[str, str | None]) -> None:
        for alias, stream in targets.items():
            if stream is None:
                self._files.remove(self._path(alias))
                continue
            content = {"format": FORMAT, "alias": alias, "stream": stream}
            self._files.replace(self._path(alias), signed_json(content), self._clock.new_id())
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
