"""Rows that tasks of Spark have, on their way into a stream: staged in files, appended once.

A task writes its rows to a file of frames, under a name that no other attempt uses, and tells
the driver where they are. The driver first publishes a *record* of the files of the batch, which
no second one can replace, then appends them under numbers of the batch's own. So an attempt that
is not in the record never counts, and a batch that is committed again, after a crash in between
too, appends what the record says and is not there yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from headrace.bus.bus import Stream
from headrace.bus.spec import Producer
from headrace.clock import Clock, SystemClock
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.records.evolution import with_defaults
from headrace.records.frame import encode_frame
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import event_times, normalise
from headrace.spark.frames.options import Place

FOLDER = "spark"
ONCE = "once-"
CHUNK_ROWS, CHUNK_BYTES = 1 << 20, 64 << 20
_PARTS = 1 << 20
"""The most appends of a batch; numbers of batches are this far apart."""

KEEP_UNUSED_MS = 86_400_000


class Part(msgspec.Struct, frozen=True):
    """Rows of one partition in a staged file, as ranges of bytes."""

    partition: int
    file: str
    ranges: list[tuple[int, int]]
    rows: int


class Record(msgspec.Struct, frozen=True):
    """What a batch appends, in this order; nothing once it has."""

    batch: int
    parts: list[Part]


@dataclass(frozen=True)
class Write:
    """Who appends: the batches of one have numbers, and each counts once.

    Args:
        place: of the stream.
        name: of the query or write, the same after a restart.
        is_once: of a write that nobody can repeat.
    """

    place: Place
    name: str
    is_once: bool = False

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
        self, write: Write, batch: int, task: int, files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._write, self._batch, self._task = write, batch, task
        self._files, self._clock = files or Files(), clock or SystemClock()

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[Part]:
        """Write rows, durably, and tell where they are; nothing is visible yet.

        Raises:
            InvalidInputError: rows that the stream cannot hold.
        """
        name = f"{self._batch:012d}-{self._task:06d}-{self._clock.new_id()}.seg"
        path = self._write.folder / name
        with self._write.place.open() as bus:
            stream = bus.stream(self._write.place.stream)
            chunks = (
                (partition, batch)
                for rows in _chunked(batches)
                for partition, batch in self._placed(stream, _fitted(stream, rows))
            )
            return self._written(path, stream, chunks)

    def _placed(self, stream: Stream, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Deal rows to partitions: by key, else all of a task to one, in turn."""
        settings = stream.settings
        partitions = settings.counts(stream.created.partitions)[0]
        if not stream.spec.key or partitions == 1:
            yield (self._task + self._batch) % partitions, rows
            return
        keys = encode_columns([rows.column(name) for name in stream.spec.key])
        places = key_groups(keys.hashes(), partitions)
        ordered = rows.take(pa.array(np.argsort(places, kind="stable")))
        present, counts = np.unique(places, return_counts=True)
        begin = 0
        for partition, count in zip(present.tolist(), counts.tolist(), strict=True):
            yield partition, ordered.slice(begin, count)
            begin += count

    def _written(
        self, path: Path, stream: Stream, chunks: Iterator[tuple[int, pa.RecordBatch]]
    ) -> list[Part]:
        version = len(stream.settings.columns)
        found: dict[int, tuple[list[tuple[int, int]], int]] = {}

        def frames() -> Iterator[bytes | pa.Buffer]:
            at = 0
            for partition, batch in chunks:
                frame = encode_frame(batch, version)
                end = at + sum(len(piece) for piece in frame)
                ranges, rows = found.get(partition, ([], 0))
                found[partition] = [*ranges, (at, end)], rows + batch.num_rows
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
        return [
            Part(partition, path.name, ranges, rows)
            for partition, (ranges, rows) in sorted(found.items())
        ]


def _chunked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put Spark's small batches together: a frame is what readers and index pay for."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _fitted(stream: Stream, rows: pa.Table) -> pa.RecordBatch:
    """Return rows as the stream holds them, refused now rather than when they are appended."""
    spec = stream.spec
    try:
        batch = normalise(with_defaults(rows, spec.schema, dict(spec.added)), spec.schema)
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
    """

    def __init__(self, write: Write, files: Files | None = None, clock: Clock | None = None):
        self._write = write
        self._files, self._clock = files or Files(), clock or SystemClock()

    def is_recorded(self, batch: int) -> bool:
        """Say whether it is decided what a batch is; to commit it needs no rows any more."""
        return (self._write.folder / _record_name(batch)).exists()

    def commit(self, batch: int, parts: Sequence[Part]) -> int:
        """Append a batch once, however often it is committed; return its rows.

        Args:
            batch: its number, which rises.
            parts: what the tasks have staged, in their order; those of a batch that was
                recorded before are passed over.

        Raises:
            InvalidInputError: there are too many parts; nothing of the batch is visible.
            UnavailableError: the disk refused; commit it again.
        """
        folder = self._write.folder
        path = folder / _record_name(batch)
        ordered = sorted(parts, key=lambda part: (part.file, part.partition))
        if len(ordered) > _PARTS:  # their numbers would be those of the next batch
            raise InvalidInputError(
                f"a batch for stream {self._write.place.stream!r} has {len(ordered)} parts, one "
                f"for each task and partition; expected at most {_PARTS}: coalesce the DataFrame",
                stream=self._write.place.stream,
            )
        record = Record(batch, ordered)
        folder.mkdir(parents=True, exist_ok=True)
        if not self._files.publish(path, msgspec.json.encode(record), self._clock.new_id()):
            record = msgspec.json.decode(self._files.read(path), type=Record)
        fault("spark.recorded")
        with self._write.place.open() as bus:
            stream = bus.stream(self._write.place.stream)
            for number, part in enumerate(record.parts):
                self._append(stream, part, batch * _PARTS + number)
        if record.parts:
            done = msgspec.json.encode(Record(batch, []))
            self._files.replace(path, done, self._clock.new_id())
        fault("spark.appended")
        self._clean(batch)
        return sum(part.rows for part in record.parts)

    def _append(self, stream: Stream, part: Part, sequence: int) -> None:
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

    def abort(self, parts: Iterable[Part]) -> None:
        """Remove what tasks have staged, unless a record names it.

        Of a write that nobody can repeat all goes, that of tasks which Spark did not hear of too.
        """
        names = self._files.names(self._write.folder)
        if any(name.endswith(".json") for name in names):
            return
        for name in names if self._write.is_once else [part.file for part in parts]:
            self._files.remove(self._write.folder / name)
        _remove_empty(self._write.folder)


def collect_leftovers(place: Place, files: Files, clock: Clock) -> None:
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
    return f"{batch:012d}-record.json"
