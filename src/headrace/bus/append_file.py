"""A file that an appender has open, and what is known of its syncs."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import CorruptDataError
from headrace.files import Files


class AppendFile:
    """The one file of a kind that an appender has open: its segment, or its index.

    ``failure`` is that of a sync. After one, nobody knows what is on the disk, and trying
    again would seem to succeed; so nothing more may be appended.
    """

    def __init__(self, files: Files, *, sync_before_close: bool) -> None:
        self._files = files
        self._sync_before_close = sync_before_close
        self._path: Path | None = None
        self._descriptor = -1
        self.failure: OSError | None = None

    def at(self, path: Path, flags: int = 0) -> int:
        """Return the file's descriptor, opened to append; any other file is closed."""
        if path != self._path:
            self.close()
            try:
                mode = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags
                self._descriptor = os.open(path, mode, 0o644)
            except FileNotFoundError as error:
                raise CorruptDataError(
                    f"{path} is missing, though the index names it", file=str(path)
                ) from error
            self._path = path
        return self._descriptor

    def sync(self) -> None:
        """Make what was written durable."""
        if self._path is None:
            return
        try:
            self._files.sync_file(self._descriptor)
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._path is None:
            return
        try:
            if self._sync_before_close:
                self.sync()
        finally:
            self._path = None
            os.close(self._descriptor)
