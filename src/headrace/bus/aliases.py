"""Other names of streams, in a folder: each a small file that is swapped in one step."""

from __future__ import annotations

from pathlib import Path

from headrace.bus.settings import signed_json, verified_json
from headrace.clock import Clock
from headrace.errors import CorruptDataError
from headrace.files import Files

FORMAT = 1


class AliasFiles:
    """Aliases as ``<folder>/<alias>.json``. Safe for many threads and processes."""

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock

    def target(self, alias: str) -> str | None:
        """Return the stream that an alias stands for; ``None`` when there is no such alias.

        Raises:
            CorruptDataError: its file is damaged.
        """
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
        """Return the stream of each alias."""
        names = [name for name in self._files.names(self._folder) if name.endswith(".json")]
        found = {name[:-5]: self.target(name[:-5]) for name in names}
        return {alias: stream for alias, stream in found.items() if stream is not None}

    def set(self, alias: str, stream: str) -> None:
        """Let an alias stand for a stream, durably and in one step."""
        content = {"format": FORMAT, "alias": alias, "stream": stream}
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files.replace(self._path(alias), signed_json(content), self._clock.new_id())

    def remove(self, alias: str) -> None:
        """Remove an alias durably."""
        self._files.remove(self._path(alias))
        self._files.sync_folder(self._folder)

    def _path(self, alias: str) -> Path:
        return self._folder / f"{alias}.json"
