"""A folder of committed epochs: how one appears, how small files are merged, how to read it.

``folder/<epoch>-<lineage>/part-NNNN.<suffix>`` is one epoch. It is put together in
``.<folder>.headrace`` beside the folder, and renamed into its place: readers that list see it
whole or not at all, and a second try finds it there. Merging cannot be one rename, so what was
merged is told by ``listing.json`` beside the folder, which ``committed_files`` goes by.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from os import PathLike
from pathlib import Path

import msgspec

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.sinks import Prepared, Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.sinks.formats import Format

LISTING = "listing.json"
FORMAT = 1
_EPOCH = re.compile(r"(\d{12})-[0-9a-f]{8}")
_MERGED = "merged-"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES}
_TRIES = 100


class Listing(msgspec.Struct, frozen=True):
    """Whose folder it is, and what was merged in it.

    ``merged`` names the folders that count, ``replaced`` those whose rows are in them, with the
    wall clock since when, ms. ``marks`` is the last epoch of each lineage that was merged.
    """

    format: int
    job: str
    operator: str
    suffix: str
    merged: tuple[str, ...] = ()
    replaced: dict[str, int] = {}
    marks: dict[str, int] = {}


@dataclass(frozen=True)
class Merging:
    """When files are merged: at so many bytes, or epochs; and how long they stay after that."""

    bytes: int
    epochs: int
    keep_ms: int


def control_folder(folder: Path) -> Path:
    """Return where the listing of a folder is, and what is not committed yet."""
    return folder.with_name(f".{folder.name}.headrace")


def committed_files(folder: str | PathLike[str]) -> list[str]:
    """Return the files that hold the committed epochs of a file sink, each row once.

    Give them to any reader: ``duckdb.read_parquet``, ``polars.scan_parquet``,
    ``pyarrow.dataset.dataset``. They stay for the sink's ``keep`` after they were merged.

    Args:
        folder: that of the sink.

    Raises:
        InvalidInputError: no sink has ever opened it.
    """
    root = Path(folder)
    for _ in range(_TRIES):  # what changes meanwhile is looked at again
        listing = _read_listing(root)
        if listing is None:
            raise InvalidInputError(f"{root} is not the folder of a sink; expected {LISTING} in "
                                    f"{control_folder(root)}")  # fmt: skip
        with suppress(FileNotFoundError):
            names = [*_epochs(root, listing), *listing.merged]
            names.sort(key=lambda name: name.removeprefix(_MERGED))
            found = [str(root / name / part) for name in names for part in _parts(root / name)]
            if _read_listing(root) == listing:
                return found
    raise ReceiverAwayError(f"the files of {root} changed {_TRIES} times while they were listed")


def _parts(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def _epochs(root: Path, listing: Listing) -> list[str]:
    """Folders of epochs whose rows are in no other, by their epoch."""
    names = [name for name in os.listdir(root) if _EPOCH.fullmatch(name)]
    return sorted(name for name in names if name not in listing.replaced)


def _read_listing(root: Path) -> Listing | None:
    path = control_folder(root) / LISTING
    try:
        return msgspec.json.decode(path.read_bytes(), type=Listing)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"listing {path} cannot be read: {error}", file=str(path)) from error


def _tag(lineage: str) -> str:
    return hashlib.blake2b(lineage.encode(), digest_size=4).hexdigest()


class FolderReceiver(Receiver):
    """The driver's side of a file sink.

    Args:
        folder: made when it is missing.
        form: of its files.
        merging: of small files; ``None``: they stay.
        site: who sends.

    Raises:
        InvalidInputError: the folder is of another sender, or cannot be one.
    """

    def __init__(self, folder: Path, form: Format, merging: Merging | None, site: SinkSite) -> None:
        self._root, self._control = folder, control_folder(folder)
        self._form, self._merging, self._site = form, merging, site
        self._files: Files = site.files
        folder.mkdir(parents=True, exist_ok=True)
        (self._control / "stage").mkdir(parents=True, exist_ok=True)
        if folder.stat().st_dev != self._control.stat().st_dev:
            raise InvalidInputError(
                f"folder {folder} is where a file system is mounted, and epochs cannot be moved "
                f"into it in one step; give a folder below it, such as {folder / site.operator}"
            )
        with self._alone():
            self._claim()
            self._tidy()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder against another driver of the job, which may be about to end."""
        try:
            lock = os.open(self._control / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError as error:
            raise ReceiverAwayError(
                f"folder {self._control} is gone; mount its file system again, or put it back"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise ReceiverAwayError(f"another driver is writing to {self._root}") from error
        finally:
            os.close(lock)

    def _claim(self) -> None:
        site, listing = self._site, _read_listing(self._root)
        if listing is None:
            if any(self._root.iterdir()):
                raise InvalidInputError(
                    f"folder {self._root} holds files that no sink put there; found "
                    f"{sorted(os.listdir(self._root))[:3]}, expected an empty folder"
                )
            self._write(Listing(FORMAT, site.job, site.operator, self._form.suffix))
            return
        found = (listing.job, listing.operator, listing.suffix)
        if found != (site.job, site.operator, self._form.suffix):
            raise InvalidInputError(
                f"folder {self._root} is of job {found[0]!r}, operator {found[1]!r}, with files "
                f"of {found[2]}; expected job {site.job!r}, operator {site.operator!r} and "
                f"{self._form.suffix}; give each sink a folder of its own"
            )

    def _write(self, listing: Listing) -> None:
        unique = self._site.clock.new_id()
        self._files.replace(self._control / LISTING, msgspec.json.encode(listing), unique)

    def _tidy(self) -> None:
        """Remove what a driver left that was killed."""
        for path in (self._control / "stage").iterdir():
            shutil.rmtree(path)
        merged = self._listing().merged
        for path in self._root.glob(f"{_MERGED}*"):
            if path.name not in merged:
                shutil.rmtree(path)

    def _listing(self) -> Listing:
        listing = _read_listing(self._root)
        if listing is None:
            raise ReceiverAwayError(f"listing {self._control / LISTING} is gone; put it back")
        return listing

    def commit(self, epoch: SinkEpoch) -> None:
        """Put an epoch in its place, then merge what is due.

        1. Put its folder together beside the others, out of sight. 2. Rename it.

        Raises:
            ReceiverAwayError: the folder is gone, or another driver is writing to it.
        """
        with self._alone():
            listing = self._listing()
            target = self._root / f"{epoch.epoch:012d}-{_tag(epoch.lineage)}"
            is_merged = epoch.epoch <= listing.marks.get(_tag(epoch.lineage), -1)
            if not (is_merged or target.exists()):
                self._place(self._staged(epoch.files), target)
            if self._merging is not None:
                self._merge(self._cleaned(listing, self._merging), self._merging)

    def _stage(self) -> Path:
        stage = self._control / "stage" / self._site.clock.new_id()
        stage.mkdir()
        return stage

    def _staged(self, files: Sequence[Prepared]) -> Path:
        stage = self._stage()
        for number, file in enumerate(files):
            self._bring(file.path, stage / f"part-{number:04d}.{self._form.suffix}")
        return stage

    def _bring(self, source: Path, target: Path) -> None:
        """Give a prepared file a name here; where that cannot be, copy it."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._files.write_new(target, [self._files.map(source)])

    def _place(self, stage: Path, target: Path) -> None:
        self._files.sync_folder(stage)
        fault("sink.sent")
        os.rename(stage, target)
        self._files.sync_folder(self._root)

    def _merge(self, listing: Listing, merging: Merging) -> None:
        """Merge the files of epochs once there are enough.

        1. Write the merged folder out of sight. 2. Rename it; nobody counts it yet. 3. Name it in
        the listing, and what it replaces. These go when nobody reads them any more.
        """
        names = _epochs(self._root, listing)
        sizes = sum(p.stat().st_size for name in names for p in (self._root / name).iterdir())
        if len(names) < 2 or (sizes < merging.bytes and len(names) < merging.epochs):
            return
        form = self._form.form(self._first(names[0]))
        names = list(takewhile(lambda name: self._form.form(self._first(name)) == form, names))
        stage = self._stage()
        target = stage / f"part-0000.{self._form.suffix}"
        parts = [self._root / name / part for name in names for part in _parts(self._root / name)]
        self._form.merge(parts, target)
        with target.open("rb") as file:
            self._files.sync_file(file.fileno())
        self._files.sync_folder(stage)
        unique = self._site.clock.new_id()[:8]
        merged = f"{_MERGED}{names[0][:12]}-{names[-1][:12]}-{unique}"
        os.rename(stage, self._root / merged)
        self._files.sync_folder(self._root)
        fault("sink.merged")
        marks = dict(listing.marks)
        for name in names:
            marks[name[13:]] = max(marks.get(name[13:], -1), int(name[:12]))
        now = self._site.clock.now_ms()
        self._write(
            msgspec.structs.replace(
                listing,
                merged=(*listing.merged, merged),
                replaced={**listing.replaced, **dict.fromkeys(names, now)},
                marks=marks,
            )
        )
        fault("sink.listed")

    def _first(self, name: str) -> Path:
        return self._root / name / _parts(self._root / name)[0]

    def _cleaned(self, listing: Listing, merging: Merging) -> Listing:
        """Remove replaced folders that have been so for long enough."""
        due = self._site.clock.now_ms() - merging.keep_ms
        gone = [name for name, since in listing.replaced.items() if since <= due]
        if not gone:
            return listing
        for name in gone:
            shutil.rmtree(self._root / name, ignore_errors=True)
        self._files.sync_folder(self._root)
        left = {name: since for name, since in listing.replaced.items() if name not in gone}
        cleaned = msgspec.structs.replace(listing, replaced=left)
        self._write(cleaned)
        return cleaned
