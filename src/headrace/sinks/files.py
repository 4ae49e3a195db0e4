"""File sinks: each epoch is a folder of files, which appears in one step.

``folder/<epoch>-<lineage>/part-NNNN.<suffix>`` is one epoch. It is put together in
``.<folder>.headrace`` beside the folder, and renamed into its place: readers that list see it
whole or not at all, and a retry finds it there. Compaction of small files cannot be one rename, so
``listing.json`` beside the folder says what was compacted, and ``committed_files`` reads it. All of
it goes through ``headrace.fencing``: a driver that was replaced neither adds nor removes a name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import takewhile
from os import PathLike, fspath
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from headrace.durations import Duration, duration_ms
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.files import Bytes
from headrace.graph.sinks import Prepared, Receiver, ReceiverAwayError, Sink, SinkEpoch, SinkSite

CHUNK = 1 << 20
_Test = Callable[[pa.DataType], bool]
_INSTANT = "%Y-%m-%dT%H:%M:%SZ"  # %S has the fraction of a second


class Format(ABC):
    """How rows are written; stateless, and named by what its files end with."""

    name: str
    suffix: str

    @abstractmethod
    def refuses(self, kind: pa.DataType) -> bool:
        """Say whether it has no form for a type of columns."""

    @abstractmethod
    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the content of a file."""

    def form(self, path: Path) -> Hashable:
        """Return what files must have in common to be merged."""
        return None

    @abstractmethod
    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Write the rows of several files into one, in their order; returns its bytes."""


class Parquet(Format):
    """Columns with statistics, zstd."""

    name, suffix = "Parquet", "parquet"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse nothing that a stream can hold."""
        return False

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return one file, of row groups of a million rows at most."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return [sink.getvalue()]

    def form(self, path: Path) -> Hashable:
        """Return the columns."""
        return str(pq.read_schema(path))

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Write row groups of about a million rows, however small those of the parts are."""
        schema = pq.read_schema(paths[0])
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for table in _gathered(paths, schema):
                writer.write_table(table)
        return target.stat().st_size


def _gathered(paths: Sequence[Path], schema: pa.Schema, rows: int = CHUNK) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                held.append(batch)
                if sum(part.num_rows for part in held) >= rows:
                    yield pa.Table.from_batches(held, schema)
                    held = []
    if held:
        yield pa.Table.from_batches(held, schema)


class JsonLines(Format):
    """One object a line; instants as ISO 8601 in UTC."""

    name, suffix = "JSON lines", "jsonl"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse bytes, durations and decimals, and instants within lists and structs."""
        return _holds(kind, pa.types.is_binary, pa.types.is_duration, pa.types.is_decimal)

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the lines."""
        frame = pl.from_arrow(_instants_as_text(table))
        assert isinstance(frame, pl.DataFrame)
        file = BytesIO()
        frame.write_ndjson(file)
        return [file.getvalue()]

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Join the lines."""
        return _joined(paths, target, headers=False)


class Csv(Format):
    """A line of names, then the rows; null is empty, and empty text is ``""``."""

    name, suffix = "CSV", "csv"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse lists, structs, bytes and durations."""
        return pa.types.is_nested(kind) or _holds(kind, pa.types.is_binary, pa.types.is_duration)

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the lines."""
        sink = pa.BufferOutputStream()
        arrow_csv.write_csv(_instants_as_text(table), sink)
        return [sink.getvalue()]

    def form(self, path: Path) -> Hashable:
        """Return the line of names."""
        with path.open("rb") as file:
            return file.readline()

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Join the lines under one line of names."""
        return _joined(paths, target, headers=True)


def _instants_as_text(table: pa.Table) -> pa.Table:
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            text = pc.strftime(table.column(at), format=_INSTANT)
            table = table.set_column(at, field.name, text)
    return table


def _holds(kind: pa.DataType, *tests: _Test) -> bool:
    if pa.types.is_nested(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return any(_holds(part, pa.types.is_timestamp, *tests) for part in inner)
    return any(test(kind) for test in tests)


def _joined(paths: Sequence[Path], target: Path, *, headers: bool) -> int:
    with target.open("xb") as out:
        for number, path in enumerate(paths):
            with path.open("rb") as part:
                if headers and number:
                    part.readline()
                while chunk := part.read(CHUNK):
                    out.write(chunk)
        return out.tell()


LISTING = "listing.json"
FORMAT = 1
_EPOCH = re.compile(r"(\d{12})-[0-9a-f]{8}")
_MERGED = "merged-"
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES}
_TRIES = 100


class FolderListing(msgspec.Struct, frozen=True):
    """Whose folder it is, and what was merged in it.

    ``merged`` names the folders that count, ``replaced`` those whose rows are in them, with the
    wall clock since when, ms. ``marks`` is the last epoch of each lineage that was merged.
    ``levels`` says how often the rows of a merged folder have been merged before, if they have.
    """

    format: int
    job: str
    operator: str
    suffix: str
    merged: tuple[str, ...] = ()
    replaced: dict[str, int] = {}
    marks: dict[str, int] = {}
    levels: dict[str, int] = {}


@dataclass(frozen=True)
class CompactionOptions:
    """When files are merged: at so many bytes, or epochs; and how long they stay after that."""

    bytes: int
    epochs: int
    keep_ms: int


def control_folder(folder: Path) -> Path:
    """Return where the listing of a folder is, and what is not committed yet."""
    return folder.with_name(f".{folder.name}.headrace")


def committed_files(folder: str | PathLike[str]) -> list[str]:
    """Return the files with the committed epochs of a file sink, each row once.

    Pass them to any reader: ``duckdb.read_parquet``, ``polars.scan_parquet``,
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


def _epochs(root: Path, listing: FolderListing) -> list[str]:
    """Folders of epochs whose rows are in no other, by their epoch."""
    names = [name for name in os.listdir(root) if _EPOCH.fullmatch(name)]
    return sorted(name for name in names if name not in listing.replaced)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _read_listing(root: Path) -> FolderListing | None:
    path = control_folder(root) / LISTING
    try:
        return msgspec.json.decode(path.read_bytes(), type=FolderListing)
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

    def __init__(
        self, folder: Path, form: Format, merging: CompactionOptions | None, site: SinkSite
    ) -> None:
        self._root, self._control = folder, control_folder(folder)
        self._form, self._merging, self._site = form, merging, site
        self._files = FencedFiles(site.files, self._control, folder)
        self._known: tuple[tuple[int, int], FolderListing] | None = None
        self._sizes: dict[str, int] = {}
        self._listed_ns = -1
        for place in (folder, self._control):
            self._files.make_folder(place)
        if folder.stat().st_dev != self._control.stat().st_dev:
            raise InvalidInputError(
                f"folder {folder} is where a file system is mounted, and epochs cannot be moved "
                f"into it in one step; give a folder below it, such as {folder / site.operator}"
            )
        self._hold()
        with self._alone():
            self._claim()
            self._tidy()
            for place in (folder, self._control):  # a driver before may have died before it did
                self._files.sync_folder(place)

    def _hold(self) -> None:
        site = self._site
        if site.generation:
            self._files.take(site.generation, site.origin)
        else:
            self._files.join()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder against who sends to it at the same time, such as a backfill."""
        if not self._control.exists():
            raise ReceiverAwayError(
                f"folder {self._control} is gone; mount its file system again, or put it back"
            )
        try:
            with self._files.alone(self._control / "lock", self._site.clock, 0.0):
                yield
        except BlockingIOError as error:
            raise ReceiverAwayError(f"another process is writing to {self._root}") from error

    def _claim(self) -> None:
        site, listing = self._site, _read_listing(self._root)
        if listing is None:
            if any(self._root.iterdir()):
                raise InvalidInputError(
                    f"folder {self._root} holds files that no sink put there; found "
                    f"{sorted(os.listdir(self._root))[:3]}, expected an empty folder"
                )
            self._write(FolderListing(FORMAT, site.job, site.operator, self._form.suffix))
            return
        found = (listing.job, listing.operator, listing.suffix)
        if found != (site.job, site.operator, self._form.suffix):
            raise InvalidInputError(
                f"folder {self._root} is of job {found[0]!r}, operator {found[1]!r}, with files "
                f"of {found[2]}; expected job {site.job!r}, operator {site.operator!r} and "
                f"{self._form.suffix}; give each sink a folder of its own"
            )

    def _write(self, listing: FolderListing) -> None:
        data = msgspec.json.encode(listing)
        self._files.replace(self._control / LISTING, data)

    def _tidy(self) -> None:
        """Remove what a driver left that was killed."""
        self._files.remove_tree(self._control / "stage")  # of a former version
        listing = self._listing()
        named = {*listing.merged, *listing.replaced}
        for path in self._root.glob(f"{_MERGED}*"):
            if path.name not in named:
                self._files.remove_tree(path)

    def _unique(self) -> str:
        return self._site.clock.new_id()

    def _listing(self) -> FolderListing:
        """Return the listing, read again only where it is another one."""
        with suppress(FileNotFoundError):
            found = (self._control / LISTING).stat()
            version = (found.st_ino, found.st_mtime_ns)
            if self._known is None or self._known[0] != version:
                listing = _read_listing(self._root)
                if listing is not None:
                    self._known = version, listing
            if self._known is not None and self._known[0] == version:
                return self._known[1]
        raise ReceiverAwayError(f"listing {self._control / LISTING} is gone; put it back")

    def commit(self, epoch: SinkEpoch) -> None:
        """Put an epoch in its place, then merge what is due.

        1. Put its folder together beside the others, out of sight. 2. Rename it.

        Raises:
            ReceiverAwayError: the folder is gone, or another process is writing to it.
            NotOwnerError: a newer driver sends to it.
        """
        with self._alone(), self._files.holding():
            listing = self._listing()
            if self._merging is not None:
                self._list(listing)
            self._listed_ns = -1  # where this fails they are listed again
            target = self._root / f"{epoch.epoch:012d}-{_tag(epoch.lineage)}"
            is_merged = epoch.epoch <= listing.marks.get(_tag(epoch.lineage), -1)
            if target.exists():
                self._files.sync_folder(self._root)  # it may have been renamed, and no more
            elif not is_merged:
                self._place(self._staged(epoch.files), target)
                self._sizes[target.name] = _size(target)
            if self._merging is not None:
                self._merge(self._cleaned(listing, self._merging), self._merging)
                self._listed_ns = self._root.stat().st_mtime_ns

    def _list(self, listing: FolderListing) -> None:
        """Learn which folders there are, unless nobody else has put any here since."""
        if self._root.stat().st_mtime_ns != self._listed_ns:
            names = [*_epochs(self._root, listing), *listing.merged]
            self._sizes = {name: _size(self._root / name) for name in names}

    def _stage(self) -> Path:
        stage = self._files.staged(self._unique())
        self._files.make_missing(stage)
        return stage

    def _staged(self, files: Sequence[Prepared]) -> Path:
        stage = self._stage()
        for number, file in enumerate(files):
            self._bring(file.path, stage / f"part-{number:04d}.{self._form.suffix}")
        return stage

    def _bring(self, source: Path, target: Path) -> None:
        """Give a prepared file a name here; where that cannot be, copy it."""
        try:
            self._files.link(source, target, durable=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._files.write_new(target, [self._files.map(source)])

    def _place(self, stage: Path, target: Path) -> None:
        self._files.sync_folder(stage)
        fault("sink.sent")
        self._files.rename(stage, target)
        self._files.sync_folder(self._root)

    def _merge(self, listing: FolderListing, merging: CompactionOptions) -> None:
        """Merge the files of epochs once there are enough.

        1. Write the merged folder out of sight. 2. Rename it; nobody counts it yet. 3. Name it in
        the listing, and what it replaces. These go when nobody reads them any more.
        """
        names, level = self._due(listing, merging)
        if not names:
            return
        stage = self._stage()
        target = stage / f"part-0000.{self._form.suffix}"
        parts = [self._root / name / part for name in names for part in _parts(self._root / name)]
        self._form.merge(parts, target)
        with target.open("rb") as file:
            self._files.sync_file(file.fileno())
        self._files.sync_folder(stage)
        first, last = (name.removeprefix(_MERGED) for name in (names[0], names[-1]))
        last = last[13:] if names[-1].startswith(_MERGED) else last
        merged = f"{_MERGED}{first[:12]}-{last[:12]}-{self._unique()[:8]}"
        self._files.rename(stage, self._root / merged)
        self._files.sync_folder(self._root)
        fault("sink.merged")
        marks = dict(listing.marks)
        for name in filter(_EPOCH.fullmatch, names):
            marks[name[13:]] = max(marks.get(name[13:], -1), int(name[:12]))
        now, gone = self._site.clock.now_ms(), set(names)
        levels = {name: of for name, of in listing.levels.items() if name not in gone}
        self._write(
            msgspec.structs.replace(
                listing,
                merged=(*(name for name in listing.merged if name not in gone), merged),
                replaced={**listing.replaced, **dict.fromkeys(names, now)},
                marks=marks,
                levels={**levels, merged: level} if level else levels,
            )
        )
        fault("sink.listed")
        for name in names:
            self._sizes.pop(name, None)
        self._sizes[merged] = _size(self._root / merged)

    def _due(self, listing: FolderListing, merging: CompactionOptions) -> tuple[list[str], int]:
        """Which folders are merged next, and how often their rows have been; none is fine.

        Those of epochs once there are enough, else as many small ones that were merged last.
        """
        names = sorted(name for name in self._sizes if _EPOCH.fullmatch(name))
        total = sum(self._sizes[name] for name in names)
        if len(names) > 1 and (total >= merging.bytes or len(names) >= merging.epochs):
            return self._alike(names), 0
        latest = listing.levels.get(listing.merged[-1], 0) if listing.merged else 0

        def is_of_it(name: str) -> bool:
            return self._sizes[name] < merging.bytes and listing.levels.get(name, 0) == latest

        tail = list(takewhile(is_of_it, reversed(listing.merged)))[::-1]
        if len(tail) < max(2, merging.epochs) or self._alike(tail) != tail:
            return [], 0
        return tail, latest + 1

    def _alike(self, names: list[str]) -> list[str]:
        """Return the first ones, as far as their files have the same columns."""
        form = self._form.form(self._first(names[0]))
        return list(takewhile(lambda name: self._form.form(self._first(name)) == form, names))

    def _first(self, name: str) -> Path:
        return self._root / name / _parts(self._root / name)[0]

    def _cleaned(self, listing: FolderListing, merging: CompactionOptions) -> FolderListing:
        """Remove replaced folders that have been so for long enough."""
        due = self._site.clock.now_ms() - merging.keep_ms
        held = listing.replaced.items()  # in the order of time
        gone = [name for name, _ in takewhile(lambda item: item[1] <= due, held)]
        if not gone:
            return listing
        for name in gone:
            self._files.remove_tree(self._root / name)
        self._files.sync_folder(self._root)
        left = {name: since for name, since in listing.replaced.items() if name not in gone}
        cleaned = msgspec.structs.replace(listing, replaced=left)
        self._write(cleaned)
        return cleaned


_FORMATS: dict[str, Format] = {"parquet": Parquet(), "jsonl": JsonLines(), "csv": Csv()}


@dataclass(frozen=True)
class FileSink(Sink):
    """A folder that takes each committed epoch; made by ``parquet``, ``json_lines``, ``csv``.

    Args:
        folder: absolute, and used by this sink only; the driver's host must reach it.
        form: ``parquet``, ``jsonl`` or ``csv``.
        merge_bytes: files of epochs are merged into one when they have this many bytes together.
        merge_epochs: or when they come from this many epochs; only with ``merge_bytes``.
        keep: how long merged files stay for readers that have already started.
    """

    folder: str
    form: str = "parquet"
    merge_bytes: int | None = None
    merge_epochs: int = 100
    keep: Duration = "1h"

    @property
    def label(self) -> str:
        """The folder's own name."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", Path(self.folder).name)

    @property
    def identity(self) -> str:
        """Format and folder."""
        return f"{self.format.name} files in {self.folder}"

    @property
    def promise(self) -> str:
        """The guarantee for readers."""
        readers = f"read {self.folder}/*/*.{self.suffix}"
        if self.merge_bytes is not None:
            readers = "small files are merged, so readers go by hr.sinks.committed_files(folder)"
        return f"exactly-once: an epoch is there whole or not at all, and once; {readers}"

    @property
    def format(self) -> Format:
        """The format of rows."""
        return _FORMATS[self.form]

    @property
    def suffix(self) -> str:
        """The end of the names of files."""
        return self.format.suffix

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        wrong = []
        folder = Path(self.folder)
        if not folder.is_absolute() or not folder.name:
            wrong.append(f"folder is {self.folder!r}; expected an absolute path below /")
        for name in ("merge_bytes", "merge_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                wrong.append(f"{name} is {value}; expected at least 1")
        try:
            duration_ms(self.keep, "keep", least=0)
        except InvalidInputError as error:
            wrong.append(error.message)
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the mistakes: columns that the format cannot represent."""
        return [
            f"column {field.name!r} is {field.type}, for which {self.format.name} has no form "
            "here; cast it with map, or send to hr.sinks.parquet"
            for field in schema
            if self.format.refuses(field.type)
        ]

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return one file."""
        return self.format.encode(pa.Table.from_batches(batches, schema))

    def open(self, site: SinkSite) -> FolderReceiver:
        """Open the folder; create it if needed."""
        merging = None
        if self.merge_bytes is not None:
            keep_ms = duration_ms(self.keep, "keep", least=0)
            merging = CompactionOptions(self.merge_bytes, self.merge_epochs, keep_ms)
        return FolderReceiver(Path(self.folder), self.format, merging, site)


def parquet(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to Parquet files in a folder, committed by epoch, exactly-once.

    Readers use ``folder/*/*.parquet`` and see each epoch completely or not at all. With
    ``merge_bytes``, they must use ``committed_files(folder)``.

    Args:
        folder: absolute, and used by this sink only; the driver's host must reach it.
        merge_bytes: merge files of epochs when they have this many bytes together. Default: never.
        merge_epochs: or when they come from this many epochs.
        keep: how long merged files stay for readers that have already started.
    """
    return FileSink(fspath(folder), "parquet", merge_bytes, merge_epochs, keep)


def json_lines(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to files of JSON lines in a folder; see ``parquet`` for the guarantee.

    Timestamps are ISO 8601 text in UTC. NaN and infinity, which JSON does not have, become null.

    Args:
        folder: absolute, and used by this sink only; the driver's host must reach it.
        merge_bytes: merge files of epochs when they have this many bytes together. Default: never.
        merge_epochs: or when they come from this many epochs.
        keep: how long merged files stay for readers that have already started.
    """
    return FileSink(fspath(folder), "jsonl", merge_bytes, merge_epochs, keep)


def csv(
    folder: str | PathLike[str],
    *,
    merge_bytes: int | None = None,
    merge_epochs: int = 100,
    keep: Duration = "1h",
) -> FileSink:
    """Send to CSV files in a folder, each with a header; see ``parquet``.

    Timestamps are ISO 8601 text in UTC; null is nothing between commas, empty text is ``""``.

    Args:
        folder: absolute, and used by this sink only; the driver's host must reach it.
        merge_bytes: merge files of epochs when they have this many bytes together. Default: never.
        merge_epochs: or when they come from this many epochs.
        keep: how long merged files stay for readers that have already started.
    """
    return FileSink(fspath(folder), "csv", merge_bytes, merge_epochs, keep)
