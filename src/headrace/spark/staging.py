"""Rows that Spark's tasks have, on their way into a stream: staged in files, appended once.

A task writes its rows to a file of frames, under a name that no other attempt uses, and reports to
the driver where they are. The driver first publishes a *record* of the files of the batch, which no
second one can replace, then appends them under numbers of the batch's own: an attempt that is not
in the record never counts, and a batch that is committed again appends only what is missing. The
record also says which rows the batch has, by Spark's offsets or by what is in them: other rows
under the same number are refused. Spark does not sync its offsets, so ``Checkpoint`` does: else a
loss of power could take away what Headrace has appended for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from headrace.bus import Fence, Producer, Stream
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.faults import fault
from headrace.files import Files
from headrace.records.evolution import with_defaults
from headrace.records.frame import encode_frame
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import event_times, normalise
from headrace.spark.arrow_rows import gathered
from headrace.spark.source_options import StreamLocation

OPTION = "checkpointlocation"
_HEAD_LINES = 2
"""The version and what a batch is run with, which another planning of it may change."""


class Checkpoint:
    """The folder of one query on a file system of this host.

    Args:
        folder: as Spark was given it.
        files: the file system.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder, self._files = folder, files

    @classmethod
    def of(cls, options: Mapping[str, str], files: Files) -> Checkpoint | None:
        """Return that of a writer's options; ``None``: none that this process can read."""
        given = {name.lower(): value for name, value in options.items()}.get(OPTION)
        if given is None:
            return None
        parts = urlsplit(given)
        folder = Path(unquote(parts.path) if parts.scheme == "file" else given)
        is_here = parts.scheme in {"", "file"} and folder.is_absolute() and folder.is_dir()
        return cls(folder, files) if is_here else None

    def entry(self, batch: int) -> str:
        """Return what Spark has written of a batch; empty: nothing that can be read."""
        with suppress(OSError, UnicodeDecodeError):
            return self._files.read(self._path(batch)).decode()
        return ""

    def sync(self) -> None:
        """Make durable what Spark has written, before anything durable depends on it."""
        self._files.sync_system(self._folder)

    def restore(self, entries: Mapping[int, str]) -> bool:
        """Put entries back that Spark has lost or replaced, and nothing after them.

        Args:
            entries: by batch.

        Returns:
            Whether that could be done.
        """
        last = max(entries, default=-1)
        try:
            for name in self._files.names(self._folder / "offsets"):
                if name.isdigit() and int(name) > last:
                    self._remove(self._path(int(name)))
            for name in self._files.names(self._folder / "commits"):
                if name.isdigit() and int(name) >= last:
                    self._remove(self._folder / "commits" / name)
            for batch, entry in sorted(entries.items()):
                path = self._path(batch)
                self._remove(path.with_name(f".{path.name}.crc"))  # else Spark finds it damaged
                self._files.replace(path, entry.encode())
        except OSError:
            return False
        return True

    def _path(self, batch: int) -> Path:
        return self._folder / "offsets" / str(batch)

    def _remove(self, path: Path) -> None:
        self._files.remove(path.with_name(f".{path.name}.crc"))
        self._files.remove(path)


def offsets_in(entry: str) -> list[str]:
    """Return the offsets of an entry, of each source; empty: there is none."""
    return entry.splitlines()[_HEAD_LINES:]


FOLDER = "spark"
QUERIES = "query "
_RECORD = "-record.json"
_MASK = (1 << 64) - 1
ONCE = "once-"
_PARTS = 1 << 20
"""The most appends of a batch; numbers of batches are this far apart."""

KEEP_UNUSED_MS = 86_400_000


class StagedPart(msgspec.Struct, frozen=True):
    """Rows of one partition in a staged file, as ranges of bytes.

    ``digest`` is the sum of a hash of each row, whatever their order; ``None``: of types without.
    """

    partition: int
    file: str
    ranges: list[tuple[int, int]]
    rows: int
    digest: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a batch appends, in this order; nothing once it has.

    ``entry`` is what Spark's checkpoint says of the batch, ``before`` of the one before it; empty
    where that cannot be read. ``rows`` and ``digest`` are of all rows; -1 and empty: not known, as
    of records that were written before these were.
    """

    batch: int
    parts: list[StagedPart]
    entry: str = ""
    before: str = ""
    rows: int = -1
    digest: str = ""


@dataclass(frozen=True)
class BatchWriterId:
    """Who appends: the batches of one have numbers, and each counts once.

    Args:
        place: of the stream.
        name: of the query or write, the same after a restart.
        is_once: of a write that nobody can repeat.
        fence: for whom, where it is for a job.
    """

    place: StreamLocation
    name: str
    is_once: bool = False
    fence: Fence | None = None

    @property
    def is_whole(self) -> bool:
        """Say whether it has one batch: it is no query's."""
        return not self.name.startswith(QUERIES)

    @property
    def folder(self) -> Path:
        """Where its files are: on the disk of the stream, so that they can be adopted."""
        digest = xxh3_128_hexdigest(f"{self.place.stream}\0{self.name}".encode())
        return self.place.bus_dir / FOLDER / f"{ONCE if self.is_once else ''}{digest}"

    @property
    def producer(self) -> Producer:
        """The name under which it appends."""
        return Producer(f"spark {self.name}", "")


class Stager:
    """Writes the rows of one task to a file.

    Args:
        write: who appends.
        batch: its number.
        task: number of the task.
        files: the file system.
        clock: for names.
    """

    def __init__(
        self, write: BatchWriterId, batch: int, task: int, files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._write, self._batch, self._task = write, batch, task
        self._files, self._clock = files or Files(), clock or SystemClock()

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[StagedPart]:
        """Write rows, durably, and return where they are; nothing is visible yet.

        Raises:
            InvalidInputError: rows that the stream cannot hold.
        """
        name = f"{self._batch:012d}-{self._task:06d}-{self._clock.new_id()}.seg"
        path = self._write.folder / name
        with self._write.place.open() as bus:
            stream = bus.stream(self._write.place.stream)
            chunks = (
                (partition, batch)
                for held in gathered(batches)
                for partition, batch in self._placed(stream, _fitted(stream, held))
            )
            return self._written(path, stream, chunks)

    def _placed(self, stream: Stream, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Deal rows to partitions: by key, else all of a task to one, in turn."""
        settings = stream.settings
        partitions = settings.counts(stream.created.partitions)[0]
        if not stream.spec.key or partitions == 1:
            yield (self._task + self._batch) % partitions, rows
            return
        yield from by_partition(rows, rows.select(list(stream.spec.key)), partitions)

    def _written(
        self, path: Path, stream: Stream, chunks: Iterator[tuple[int, pa.RecordBatch]]
    ) -> list[StagedPart]:
        version = len(stream.settings.columns)
        found: dict[int, StagedPart] = {}

        def frames() -> Iterator[bytes | pa.Buffer]:
            at = 0
            for partition, batch in chunks:
                frame = encode_frame(batch, version)
                end = at + sum(len(piece) for piece in frame)
                held = found.get(partition, StagedPart(partition, path.name, [], 0, 0))
                found[partition] = msgspec.structs.replace(
                    held,
                    ranges=[*held.ranges, (at, end)],
                    rows=held.rows + batch.num_rows,
                    digest=_summed(held.digest, _digest(batch)),
                )
                at = end
                yield from frame

        try:
            self._files.write_new(path, frames())
        except BaseException:
            self._files.remove(path)
            raise
        if not found:
            self._files.remove(path)
            return []
        self._files.sync_folder(path.parent)
        fault("spark.staged")
        return [found[partition] for partition in sorted(found)]


def by_partition(
    rows: pa.RecordBatch, keys: pa.RecordBatch, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition by their key, in their order.

    Args:
        rows: of any types.
        keys: their key columns, in stored form.
        partitions: how many there are.
    """
    places = key_groups(encode_columns(keys.columns).hashes(), partitions)
    ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
    present, counts = np.unique(places, return_counts=True)
    begin = 0
    for partition, count in zip(present.tolist(), counts.tolist(), strict=True):
        yield partition, ordered.slice(begin, count)
        begin += count


def _digest(batch: pa.RecordBatch) -> int | None:
    """Return the sum of a hash of each row; ``None``: of types that have none."""
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    try:
        return int(frame.hash_rows().to_numpy().sum(dtype=np.uint64))
    except pl.exceptions.PolarsError:
        return None


def _summed(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else (first + second) & _MASK


def _fitted(stream: Stream, rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return rows as the stream holds them, refused now rather than when they are appended."""
    spec = stream.spec
    try:
        table = with_defaults(pa.Table.from_batches(rows), spec.schema, dict(spec.added))
        batch = normalise(table, spec.schema)
        if spec.time is not None:
            event_times(batch.column(spec.time), f"stream {spec.name!r}")
    except InvalidInputError as error:
        error.fields.update(stream=spec.name)
        raise
    return batch


class Committer:
    """Appends what tasks have staged, on the driver's side.

    Args:
        write: who appends.
        files: the file system.
        clock: for names.
        checkpoint: of the query that the batches are of, where it can be read.
    """

    def __init__(
        self,
        write: BatchWriterId,
        files: Files | None = None,
        clock: Clock | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._write, self._checkpoint = write, checkpoint
        self._files, self._clock = files or Files(), clock or SystemClock()

    def needs_rows(self, batch: int) -> bool:
        """Say whether the rows of a batch are needed, to append them or to compare them.

        Not those of one that is recorded, with offsets that its query still has.
        """
        if not (self._write.folder / _record_name(batch)).exists():
            return self._newest() <= batch
        held = self._held(batch)
        is_known = held.rows < 0 or self._write.is_whole or bool(held.entry)
        return not is_known or bool(held.entry and not self._entry(batch))

    def commit(self, batch: int, parts: Sequence[StagedPart] | None) -> int:
        """Append a batch once, however often it is committed; return its rows.

        Args:
            batch: its number, which rises.
            parts: what the tasks have staged, in their order; those of a batch that was
                recorded before are passed over. ``None``: they are not needed.

        Raises:
            NotOwnerError: a newer driver of the job feeds the stream; stop.
            InvalidInputError: there are too many parts; nothing of the batch is visible. Or the
                batch is recorded, with other rows than it has now.
            UnavailableError: the disk refused; commit it again. Or Spark has lost what was in the
                batch, which was put back: start the query again.
        """
        newest = self._newest()
        if batch < newest:
            raise self._lost(newest)
        given = parts is not None
        parts = parts or ()
        folder = self._write.folder
        path = folder / _record_name(batch)
        ordered = sorted(parts, key=lambda part: (part.file, part.partition))
        if len(ordered) > _PARTS:  # their numbers would be those of the next batch
            raise InvalidInputError(
                f"a batch for stream {self._write.place.stream!r} has {len(ordered)} parts, one "
                f"for each task and partition; expected at most {_PARTS}: coalesce the DataFrame",
                stream=self._write.place.stream,
            )
        record = own = self._described(batch, ordered)
        folder.mkdir(parents=True, exist_ok=True)
        if self._checkpoint is not None and not path.exists():
            self._checkpoint.sync()
        if not self._files.publish(path, msgspec.json.encode(record)):
            record = self._held(batch)
        fault("spark.recorded")
        with self._write.place.open() as bus:
            stream = bus.stream(self._write.place.stream)
            for number, part in enumerate(record.parts):
                self._append(stream, part, batch * _PARTS + number)
        if record.parts:
            done = msgspec.structs.replace(record, parts=[])
            self._files.replace(path, msgspec.json.encode(done))
        fault("spark.appended")
        self._clean(batch)
        if record is not own and self._differs(record, own, has_rows=given):
            raise self._lost(batch)
        return sum(part.rows for part in record.parts)

    def _held(self, batch: int) -> BatchRecord:
        data = self._files.read(self._write.folder / _record_name(batch))
        return msgspec.json.decode(data, type=BatchRecord)

    def _newest(self) -> int:
        """Return the last batch that is recorded; -1: none."""
        names = self._files.names(self._write.folder)
        return max((int(name[:12]) for name in names if name.endswith(_RECORD)), default=-1)

    def _entry(self, batch: int) -> str:
        return "" if self._checkpoint is None or batch < 0 else self._checkpoint.entry(batch)

    def _described(self, batch: int, parts: list[StagedPart]) -> BatchRecord:
        rows, digest = sum(part.rows for part in parts), 0
        for part in parts:
            summed = _summed(digest, part.digest)
            if summed is None:
                return BatchRecord(batch, parts, self._entry(batch), self._entry(batch - 1), rows)
            digest = summed
        named = f"{pl.__version__} {digest:016x}"  # whose hashes differ from version to version
        return BatchRecord(batch, parts, self._entry(batch), self._entry(batch - 1), rows, named)

    def _differs(self, held: BatchRecord, now: BatchRecord, *, has_rows: bool) -> bool:
        """Say whether a batch that is recorded has other rows by now.

        By the offsets, of which the rows are a function; else by the rows themselves. Of a write
        that was given its name only their number counts: who repeats it may make them again.
        """
        if offsets_in(held.entry) and offsets_in(now.entry):
            return offsets_in(held.entry) != offsets_in(now.entry)
        if not has_rows or held.rows < 0:
            return False
        is_same_hash = held.digest.partition(" ")[0] == now.digest.partition(" ")[0] != ""
        compares = is_same_hash and not self._write.is_whole
        return held.rows != now.rows or (compares and held.digest != now.digest)

    def _lost(self, batch: int) -> HeadraceError:
        """Return the error of other rows under a number that is taken, with a way out."""
        held, write = self._held(batch), self._write
        name, stream = write.name, write.place.stream
        if write.is_whole:
            return InvalidInputError(
                f"{name!r} has appended {held.rows} rows to stream {stream!r} already, and now it "
                "has another number of rows, of which none is appended; give these another writeId",
                stream=stream,
            )
        lost = (
            f"batch {batch} of {name!r} was appended to stream {stream!r}, and Spark has planned "
            "it or one before it again, with other rows: its checkpoint has lost the offsets of "
            "that batch, as a loss of power may do"
        )
        entries = {batch: held.entry} | ({batch - 1: held.before} if held.before else {})
        if held.entry and self._checkpoint is not None and self._checkpoint.restore(entries):
            return UnavailableError(
                f"{lost}; they were put back: start it again, and no row is lost or doubled",
                stream=stream,
            )
        return InvalidInputError(
            f"{lost}; no row of this one is appended. Start the query with a new checkpoint, from "
            "the offsets behind that batch; or append everything again to a new stream",
            stream=stream,
        )

    def _append(self, stream: Stream, part: StagedPart, sequence: int) -> None:
        path = self._write.folder / part.file
        is_whole = part.ranges[0][0] == 0 and all(
            end == begin for (_, end), (begin, _) in zip(part.ranges, part.ranges[1:], strict=False)
        )
        whole = is_whole and part.ranges[-1][1] == path.stat().st_size
        stream.append_file(
            part.partition,
            path,
            None if whole else part.ranges,
            producer=self._write.producer,
            sequence=sequence,
            fence=self._write.fence,
        )
        fault("spark.part_appended")

    def _clean(self, batch: int) -> None:
        """Remove files and records of batches up to this one, but for its own record."""
        folder, own = self._write.folder, _record_name(batch)
        for name in self._files.names(folder):
            if name != own and name.partition("-")[0].isdigit() and int(name[:12]) <= batch:
                self._files.remove(folder / name)
        if self._write.is_once:
            self._files.remove(folder / own)
            _remove_empty(folder)

    def abort(self, parts: Iterable[StagedPart]) -> None:
        """Remove what tasks have staged, unless a record names it.

        Of a write that nobody can repeat all goes, that of tasks which Spark did not hear of too.
        """
        names = self._files.names(self._write.folder)
        if any(name.endswith(".json") for name in names):
            return
        for name in names if self._write.is_once else [part.file for part in parts]:
            self._files.remove(self._write.folder / name)
        _remove_empty(self._write.folder)


def collect_leftovers(place: StreamLocation, files: Files, clock: Clock) -> None:
    """Remove what writes that nobody can repeat left behind when they were killed."""
    root = place.bus_dir / FOLDER
    for name in files.names(root):
        if not name.startswith(ONCE):
            continue
        try:
            age_ms = clock.now_ms() - int(os.stat(root / name).st_mtime * 1000)
        except FileNotFoundError:
            continue
        if age_ms > KEEP_UNUSED_MS:
            for file in files.names(root / name):
                files.remove(root / name / file)
            _remove_empty(root / name)


def _remove_empty(folder: Path) -> None:
    """Remove a folder, unless an attempt that does not count has put a file there, or it is gone.

    What such an attempt leaves is collected later.
    """
    with suppress(OSError):
        folder.rmdir()


def _record_name(batch: int) -> str:
    return f"{batch:012d}{_RECORD}"
