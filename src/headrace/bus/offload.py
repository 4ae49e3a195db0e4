"""Segments of the file bus that were moved to an object storage, and are read from there.

A segment ``<name>.seg`` to which nothing is appended any more is moved in these steps:

1. Create ``<name>.far``, which says what the object will be called. 2. Put the object. 3. Under the
lock of the partition, remove ``<name>.seg``; readers find the object by ``<name>.far``.

While the file is there, it counts. Who drops a segment, or compacts it, removes its file alone. Who
moves segments next finds that no entry of the index names it, and removes its object, then
``<name>.far``; also objects without one: a process was frozen before it put them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.bus.index_table import IndexView, segment_spans
from headrace.bus.log import segment_name
from headrace.bus.stream_stores import StreamSettings, signed_json, verified_json
from headrace.errors import HeadraceError, UnavailableError
from headrace.faults import fault
from headrace.files import Files
from headrace.objects import Address
from headrace.remote import RemoteFile, local_path

FORMAT = 1
_FILE, _NOTE = ".seg", ".far"


class Offloaded(NamedTuple):
    """How many segments were moved, and their bytes."""

    segments: int
    bytes: int


class Segment(NamedTuple):
    """A segment of a partition: its first offset, its name, its bytes, its last append."""

    first_offset: int
    segment: int
    nonce: int
    bytes: int
    last_ms: int

    @property
    def name(self) -> str:
        """Of its file, and of its object."""
        return segment_name(self.segment, self.nonce)


def segments_of(view: IndexView) -> list[Segment]:
    """Return the segments that an index names, the oldest first."""
    found: list[Segment] = []
    for entries in view.blocks():
        for begin, end, size in segment_spans(entries):
            entry, last_ms = entries[begin], int(entries["appended_ms"][end - 1])
            key = int(entry["segment"]), int(entry["nonce"])
            if found and found[-1][1:3] == key:
                before = found[-1]
                found[-1] = before._replace(bytes=before.bytes + size, last_ms=last_ms)
            else:
                found.append(Segment(int(entry["first_offset"]), *key, size, last_ms))
    return found


def surplus(held: Sequence[Segment], settings: StreamSettings, now_ms: int) -> Iterator[Segment]:
    """Yield the segments that need not stay on this disk.

    Args:
        held: those whose files are here and complete, the oldest first.
        settings: of the stream.
        now_ms: the wall time.
    """
    left = sum(one.bytes for one in held)
    for one in held:
        age, most = settings.local_retain_ms, settings.local_retain_bytes
        is_old = age is not None and one.last_ms < now_ms - age
        if not is_old and (most is None or left <= most):
            return
        left -= one.bytes
        yield one


class MovedSegments:
    """The segments of a bus that are in an object storage.

    Args:
        files: the file system.
        root: of the bus; copies of objects that were read are below it, of each host its own.
        address: that segments of one partition are moved to; empty: none is moved.
    """

    def __init__(self, files: Files, root: Path, address: str = "") -> None:
        self._files, self.address = files, address
        self._copies = root / "copies" / os.uname().nodename

    def place(self, segment: Path) -> Path | None:
        """Return the path that stands for the object of a segment; ``None``: it was not moved.

        Raises:
            CorruptDataError: the file that says so is damaged.
        """
        note = segment.with_suffix(_NOTE)
        try:
            data = self._files.read(note)
        except FileNotFoundError:
            return None
        return self._path(str(verified_json(data, str(note), FORMAT)["address"]))

    def put(self, segment: Path) -> None:
        """Do the first two steps: note where the object of a segment will be, and put it there.

        Raises:
            FileNotFoundError: the segment was removed meanwhile.
            UnavailableError: the storage does not answer, or does not have it whole.
        """
        content = {"format": FORMAT, "address": f"{self.address}/{segment.name}"}
        self._files.publish(segment.with_suffix(_NOTE), signed_json(content))
        fault("offload.noted")
        # It may be there already, and name another place, of former settings.
        if (place := self.place(segment)) is not None:
            far = RemoteFile(place)
            with segment.open("rb") as file:  # it may be removed meanwhile
                size = os.fstat(file.fileno()).st_size
                far.storage.put_file(far.name, Path(f"/dev/fd/{file.fileno()}"))
            found = far.info()
            if found is None or found.size != size:
                raise UnavailableError(
                    f"segment {segment} has {size} bytes, its object has "
                    f"{'none' if found is None else found.size}; the file stays, try again"
                )

    def tidy(self, folder: Path, named: Callable[[], Iterable[str]]) -> None:
        """Remove the objects of segments that are no more; also those that nobody has noted.

        Args:
            folder: of the partition.
            named: returns the segments that it has; called when it is known what may be removed.

        Raises:
            StorageAwayError: the storage does not answer; what is left goes another time.
        """
        notes = [name for name in self._files.names(folder) if name.endswith(_NOTE)]
        noted = {f"{name.removesuffix(_NOTE)}{_FILE}" for name in notes}
        far = self._path(self.address)
        strays = set(self._files.names(far)) - noted
        kept = set(named())
        for name in sorted(noted - kept):
            if (place := self.place(folder / name)) is not None:
                self._files.remove(place)
                fault("offload.object_removed")
                self._files.remove((folder / name).with_suffix(_NOTE))
        for name in strays - kept:
            self._files.remove(far / name)

    def remove_all(self, folder: Path) -> bool:
        """Remove the objects of a removed stream; False where the storage is away, or is gone.

        Args:
            folder: with all that was left of it.
        """
        notes = folder.rglob(f"*{_NOTE}")
        try:
            places = [place for note in notes if (place := self.place(note)) is not None]
            for stream in {place.parents[2] for place in places}:
                self._files.remove_tree(stream)
        except HeadraceError:
            return False
        return True

    def _path(self, address: str) -> Path:
        return local_path(Address.read(address), self._copies)
