"""Mapped segments, the most recently used of them kept for the next read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

import pyarrow as pa

from headrace.errors import CorruptDataError
from headrace.files import Files


class SegmentMaps:
    """Maps files of a bus, at most ``limit`` of them at a time; safe for many threads.

    A map that was given out lives as long as something refers to it, also when it is no
    longer kept here and when its file has a longer map by now.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._maps: OrderedDict[Path, pa.Buffer] = OrderedDict()

    def get(self, path: Path, end: int) -> pa.Buffer:
        """Return the content of a file, at least up to byte ``end``.

        Raises:
            CorruptDataError: the file is missing, or ends earlier than its index says.
        """
        with self._lock:
            data = self._maps.get(path)
            if data is None or data.size < end:
                data = self._map(path, end)
            self._maps[path] = data
            self._maps.move_to_end(path)
            while len(self._maps) > self._limit:
                self._maps.popitem(last=False)
            return data

    def _map(self, path: Path, end: int) -> pa.Buffer:
        try:
            is_empty = path.stat().st_size == 0
        except FileNotFoundError:
            is_empty = False  # to map it tells what is missing
        data = pa.py_buffer(b"") if is_empty else self._files.map(path)
        if data.size < end:
            raise CorruptDataError(
                f"{path} is damaged at byte {data.size}: the file ends there, the index "
                f"expects {end} bytes",
                file=str(path),
            )
        return data

    def drop(self, folder: Path) -> None:
        """Let go of the maps of the files of a folder, so that removed ones free their room."""
        with self._lock:
            for path in [path for path in self._maps if path.parent == folder]:
                del self._maps[path]

    def clear(self) -> None:
        """Let go of all maps."""
        with self._lock:
            self._maps.clear()
