"""A table in an object storage: what it holds is a chain of objects, each created once.

Below the table's prefix, ``_table/versions/<n>`` has what commit ``n`` changes, or all that the
table holds since; ``_table/data/ds=<day>`` has the files. A commit puts its files, and then creates
the next version, if that is absent: of two writers one commits it, and the other one reads it and
tries again behind it. Readers follow the versions, so they see whole epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.clock import Deadline
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.fencing import FencedFiles
from headrace.fencing_objects import FencedObjects
from headrace.files import Files
from headrace.graph.sinks import DailyTable, ReceiverAwayError, SinkEpoch
from headrace.objects import StorageAwayError
from headrace.remote import RemoteFile, address_of, is_remote
from headrace.warehouse import snapshot as snapshots
from headrace.warehouse.day_files import DayRows
from headrace.warehouse.receiver import TableReceiver, mark_of
from headrace.warehouse.snapshot import (
    FORMAT,
    MARK,
    DataFile,
    Snapshot,
    SnapshotChange,
    SnapshotDraft,
    TableLocation,
    apply_changes,
    folder_of,
)

CONTROL = "_table"
KEPT_VERSIONS = 2
"""So many whole snapshots stay, with the changes since, for readers that have begun."""

WRITE_S = 900.0
ORPHAN_S = 3600.0
"""A file that no version names goes when it is older; a write of ``WRITE_S`` is begun again."""

MARKED_AT_ONCE = 16
TRIES = 100
_FILES = Files(sync=False)


class TableVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A commit: what the table holds since, or what it changes."""

    whole: Snapshot | None = None
    change: SnapshotChange | None = None


@dataclass(frozen=True)
class ObjectTableLocation(TableLocation):
    """Where a table lies whose path stands for a prefix of an object storage."""

    @cached_property
    def control(self) -> Path:
        """The prefix of all that the table has, but for marks of days."""
        return self.root / CONTROL

    @property
    def versions(self) -> Path:
        """The prefix of the commits."""
        return self.control / "versions"

    @property
    def snapshot(self) -> Path:
        """What a message names as the place of the snapshot."""
        return self.versions

    def change(self, version: int) -> Path:
        """Return the object of the commit that makes a version."""
        return self.versions / f"{version:012d}.json"

    def read(self) -> Snapshot | None:
        """Return what the table holds; ``None``: there is none.

        Raises:
            CorruptDataError: it cannot be read.
            StorageAwayError: the storage does not answer.
        """
        for _ in range(TRIES):  # versions may go meanwhile, when newer ones came
            versions = self._versions()
            if not versions:
                return None
            with suppress(FileNotFoundError):
                return self._folded(versions)
        raise CorruptDataError(
            f"versions of {address_of(self.root)} are missing: found {versions[:3]}, expected all "
            f"up to {versions[-1]}; put them back",
            file=address_of(self.versions),
        )

    def _versions(self) -> list[int]:
        return [int(name[:12]) for name in _FILES.names(self.versions)]

    def _folded(self, versions: Sequence[int]) -> Snapshot:
        changes: list[SnapshotChange] = []
        for version in range(versions[-1], 0, -1):
            path = self.change(version)
            found = _decoded(path, _FILES.read(path))
            if found.change is not None:
                changes.append(found.change)
            if found.whole is not None:
                if found.whole.format > FORMAT:
                    raise CorruptDataError(
                        f"version {address_of(path)} has format {found.whole.format}, this "
                        f"release reads up to {FORMAT}; use a release that wrote it",
                        file=address_of(path),
                    )
                return apply_changes(found.whole, reversed(changes)) if changes else found.whole
        raise FileNotFoundError(self.change(0))

    def write(self, draft: SnapshotDraft, files: Files) -> Snapshot:
        """Let a commit count, in one step; return what the table holds since.

        Raises:
            FileExistsError: there is another commit of that number, or much later ones.
        """
        change = draft.change
        made = apply_changes(draft.held, [change])
        encoded = msgspec.json.encode(TableVersion(whole=made))
        is_due = change.version % snapshots.MOST_CHANGES == 0
        if not is_due and len(encoded) > snapshots.SMALL_BYTES:
            encoded = msgspec.json.encode(TableVersion(change=change))
        self._create(change.version, encoded, files)
        if is_due:
            self._drop(change.version, files)
        return made

    def write_whole(self, snapshot: Snapshot, files: Files) -> Snapshot:
        """Commit all that the table holds; see ``write``."""
        self._create(snapshot.version, msgspec.json.encode(TableVersion(whole=snapshot)), files)
        return snapshot

    def _create(self, version: int, encoded: bytes, files: Files) -> None:
        path = self.change(version)
        if not files.publish(path, encoded):
            raise FileExistsError(address_of(path))
        if version > 1 and version - 1 not in self._versions():
            # It stood still until the versions around it had gone: nobody reads this one.
            files.remove(path)
            raise FileExistsError(address_of(path))

    def _drop(self, version: int, files: Files) -> None:
        """Remove versions that no reader needs who has begun a while ago, the oldest first."""
        first = version - KEPT_VERSIONS * snapshots.MOST_CHANGES
        for old in self._versions():
            if old < first:
                files.remove(self.change(old))


def _decoded(path: Path, content: bytes) -> TableVersion:
    try:
        found = msgspec.json.decode(content, type=TableVersion)
    except msgspec.DecodeError as error:
        raise CorruptDataError(
            f"version {address_of(path)} cannot be read: {error}", file=address_of(path)
        ) from error
    if found.whole is None and found.change is None:
        raise CorruptDataError(
            f"version {address_of(path)} says nothing that this release knows; use a release that "
            "wrote it",
            file=address_of(path),
        )
    return found


class DayMarks:
    """The objects ``ds=<day>/_SUCCESS`` of complete days, for schedulers that wait for one."""

    def __init__(self, place: TableLocation, files: Files) -> None:
        self._place, self._files = place, files
        self._shown: dict[str, bytes] = {}

    def find(self) -> None:
        """Look which marks there are; what they say is not known."""
        begin = folder_of("")
        names = self._files.names(self._place.root)
        self._shown = {name.removeprefix(begin): b"" for name in names if name.startswith(begin)}

    @property
    def days(self) -> set[str]:
        """The days that have a mark, as far as is known."""
        return set(self._shown)

    def show(self, snapshot: Snapshot, days: set[str]) -> None:
        """Bring the marks of days in line with a snapshot; at a start these are all days."""
        with ThreadPoolExecutor(MARKED_AT_ONCE if len(days) > 1 else 1) as pool:
            deque(pool.map(partial(self._show, snapshot), sorted(days)), maxlen=0)

    def _show(self, snapshot: Snapshot, name: str) -> None:
        path = self._place.root / folder_of(name) / MARK
        day = snapshot.days.get(name)
        if day is None or day.completed_ms is None:
            if self._shown.pop(name, None) is not None:
                self._files.remove(path)
            return
        content = mark_of(day)
        if self._shown.get(name) != content:
            self._files.replace(path, content)
            self._shown[name] = content


class ObjectTableReceiver(TableReceiver):
    """Commits epochs into a table in an object storage; see ``TableReceiver``."""

    _place: ObjectTableLocation

    def _fenced(self) -> FencedFiles:
        return FencedObjects(self._site.files, self._place.control)

    def _begin(self) -> None:
        self.can_compact = True
        self._held: Snapshot | None = None
        self._marks = DayMarks(self._place, self._files)
        self._begun = Deadline(self._clock, WRITE_S)
        with self._answering():
            self._claim()

    def _claim(self) -> None:
        self._take()
        for _ in range(TRIES):
            try:
                snapshot = self._claimed()
                break
            except FileExistsError:
                continue
        else:
            raise self._changed()
        self._learn(snapshot)
        if self._site.generation:
            self._tidy(snapshot)
            complete = {name for name, day in snapshot.days.items() if day.completed_ms is not None}
            self._marks.find()
            self._show(snapshot, complete | self._marks.days)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except StorageAwayError as error:
            raise ReceiverAwayError(error.message) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Look for a newer driver; of two that commit, the version decides."""
        with self._answering():
            try:
                self._files.check()
            except FileNotFoundError as error:
                raise self._gone() from error
            self._begun = Deadline(self._clock, WRITE_S)
            yield

    def _foreign(self) -> list[str]:
        found = self._files.names(self._place.root)
        return [name for name in found if name != CONTROL]

    def commit(self, epoch: SinkEpoch) -> None:
        """Add the rows of an epoch, mark what is complete by its watermark, merge what is due.

        Raises:
            ReceiverAwayError: the storage does not answer, or others write all the time.
            NotOwnerError: a newer driver sends to it.
        """
        for _ in range(TRIES):
            with self._alone():
                try:
                    self._commit(self._read(), epoch)
                except FileExistsError:  # of another commit: read it, and try behind it
                    self._held = None
                    continue
                except BaseException:
                    self._held = None
                    raise
                return
        raise self._changed()

    def _changed(self) -> ReceiverAwayError:
        return ReceiverAwayError(
            f"table {self._table.name!r} was changed by somebody else {TRIES} times meanwhile"
        )

    def _write_draft(self, draft: SnapshotDraft) -> Snapshot:
        if self._begun.expired:  # its files may have been taken for those of a dead writer
            raise ReceiverAwayError(
                f"writing to table {self._table.name!r} took more than {WRITE_S:.0f} s; it is done "
                "again"
            )
        return self._place.write(draft, self._files)

    def _know(self, snapshot: Snapshot) -> None:
        self._held = snapshot

    def _read(self) -> Snapshot:
        """Return the snapshot, read again where another version came."""
        held = self._held
        if held is not None and RemoteFile(self._place.change(held.version + 1)).info() is None:
            return held
        found = self._place.read()
        if found is None:
            raise self._gone()
        self._learn(found)
        return found

    def _gone(self) -> ReceiverAwayError:
        return ReceiverAwayError(f"table {address_of(self._place.root)} is gone; put it back")

    def _tidy(self, snapshot: Snapshot) -> None:
        """Remove files that no version names, once nobody can be about to name them."""
        named = {f"{folder_of(d)}/{f.name}" for d, day in snapshot.days.items() for f in day.files}
        named |= set(snapshot.replaced)
        now = self._files.now_s(self._place.control)
        for folder in self._files.names(self._place.data):
            for name in self._files.names(self._place.data / folder):
                path = self._place.data / folder / name
                if f"{folder}/{name}" in named:
                    continue
                with suppress(FileNotFoundError):
                    if now - self._files.status(path).written_s > ORPHAN_S:
                        self._files.remove(path)

    def _show(self, snapshot: Snapshot, days: set[str]) -> None:
        self._marks.show(snapshot, days)

    def compact(self, on_step: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Merge the small files of all days, however few they are; see ``TableReceiver``."""
        try:
            return super().compact(on_step)
        except FileExistsError as error:
            self._held = None
            raise ReceiverAwayError(
                f"table {self._table.name!r} was changed by somebody else meanwhile"
            ) from error

    def _shown_days(self) -> set[str]:
        return set()

    def _empty(self) -> None:
        """Do nothing: nothing is out of sight."""

    def _placed(self, piece: DayRows, content: pa.Buffer, name: str) -> DataFile:
        self._put(piece.day, name, content.slice(piece.begin, piece.bytes))
        return DataFile(name, piece.rows, piece.bytes)

    def _put(self, day: str, name: str, content: pa.Buffer) -> None:
        """Put a file; one that is there, of a commit that died, becomes as new."""
        path = self._place.path(day, name)
        temporary = path.with_name(f".{name}.{self._clock.new_id()}")
        self._files.beneath.write_new(temporary, [content], durable=False)
        try:
            RemoteFile(path).upload(temporary, new=False)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_durable(self, folders: Sequence[Path], files: Sequence[Path] = ()) -> None:
        """Do nothing: what was put is durable."""

    def _local(self, path: Path) -> Path:
        return RemoteFile(path).local()

    def _store(self, day: str, name: str, content: pa.Buffer) -> None:
        self._put(day, name, content)


def location_of(root: Path) -> TableLocation:
    """Return where a table lies, in a folder or in an object storage."""
    return ObjectTableLocation(root) if is_remote(root) else TableLocation(root)


def refuse_delta(table: DailyTable, warehouse: str) -> None:
    """Refuse a table of Delta in an object storage, which would need commits of its own there.

    Raises:
        InvalidInputError: it is one.
    """
    if table.form == "delta":
        raise InvalidInputError(
            f"table {table.name!r} has format='delta', and warehouse.address is {warehouse}; use "
            "format='parquet' there, or a folder as warehouse.dir"
        )
