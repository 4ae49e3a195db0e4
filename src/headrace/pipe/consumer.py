"""A named position in one partition of a stream, with the output that belongs to it.

``<home>/pipes/<name>/p-00000.json`` is the last checkpoint; replacing it is the commit. Output is
durable before it (``p-00000-<number>.out``, an Arrow IPC stream) and appended after it, with the
checkpoint's number as sequence, so that it is in its stream once. ``p-00000.lock`` is held by the
process that reads the partition.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.bus import Bus, Producer, Stream
from headrace.bus.file import partition_name
from headrace.bus.spec import stream_replaced
from headrace.bus.stream_stores import signed_json, verified_json
from headrace.clock import Clock
from headrace.closeable import Closeable
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Files, take_lock

FORMAT = 1
PIPES = "pipes"
TAKE_S = 1.0
"""A look at the lock takes it for a moment."""


@dataclass(frozen=True)
class StagedOutput:
    """Output rows of a checkpoint; ``partition`` is ``None`` where the key says which."""

    stream: str
    partition: int | None


@dataclass(frozen=True)
class Checkpoint:
    """How far a partition was acknowledged: all rows before ``offset``.

    ``number`` rises by one with each; ``lineage`` changes when a consumer starts over.
    """

    offset: int
    number: int
    lineage: str
    output: StagedOutput | None = None


@dataclass(frozen=True)
class ConsumerPlace:
    """Where the files of one partition of a consumer are, and what is known without its lock.

    Args:
        home: of the settings.
        name: of the consumer.
        stream: that is read.
        partition: of it.
    """

    home: Path
    name: str
    stream: Stream
    partition: int

    @property
    def folder(self) -> Path:
        """Where the files are of all partitions."""
        return self.home / PIPES / self.name

    def file(self, ending: str) -> Path:
        """Return one of the files of the partition."""
        return self.folder / f"{partition_name(self.partition)}{ending}"

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint; ``None``: there is none.

        Raises:
            CorruptDataError: its file is damaged.
            InvalidInputError: it is of another stream.
            StreamReplacedError: the stream was removed and created again.
        """
        path, spec = self.file(".json"), self.stream.spec
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        content = verified_json(data, str(path), FORMAT)
        if content["stream"] != spec.name:
            raise InvalidInputError(
                f"consumer {self.name!r} reads stream {content['stream']!r}, not {spec.name!r}; "
                "give this one another --name",
                stream=spec.name,
            )
        if content["identity"] != self.stream.identity:
            raise stream_replaced(
                *(spec.name, self.stream.identity, content["identity"], f"pipe {self.name!r}"),
                "start over with --reset",
            )
        output = content["output"] and StagedOutput(**content["output"])
        return Checkpoint(content["offset"], content["number"], content["lineage"], output)

    def holder(self) -> str | None:
        """Return the process and host that read the partition now; ``None``: nobody does."""
        try:
            lock = os.open(self.file(".lock"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _said(lock)
        finally:
            os.close(lock)
        return None


class PartitionConsumer(Closeable):
    """The one reader of a partition under a name, until it is closed or its process dies.

    Args:
        place: of its files.
        bus: has the streams of its output.
        files: the file system.
        clock: for names and times.

    Raises:
        NotOwnerError: another process reads the partition under this name.
    """

    def __init__(self, place: ConsumerPlace, bus: Bus, files: Files, clock: Clock) -> None:
        self.place, self._bus, self._files, self._clock = place, bus, files, clock
        files.make_missing(place.folder, 0o700)
        self._lock = os.open(place.file(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_lock(self._lock, clock, TAKE_S):
            holder = _said(self._lock)
            self.close()
            raise NotOwnerError(
                f"partition {place.partition} of stream {place.stream.spec.name!r} is read by "
                f"{holder} as consumer {place.name!r}; stop that one, read other partitions with "
                "--partition, or give this one another --name",
                stream=place.stream.spec.name,
                partition=place.partition,
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on host {os.uname().nodename}".encode(), 0)

    def open(self, start: int, *, reset: bool = False) -> Checkpoint:
        """Return the last checkpoint, once its output is in its stream; or the first one.

        Args:
            start: offset to begin with, where there is no checkpoint.
            reset: forget the checkpoint that there is.

        Raises:
            CorruptDataError: as for ``ConsumerPlace.read``, and the others that it names.
        """
        if reset:
            self._files.remove(self.place.file(".json"))
        at = self.place.read()
        for name in self._files.names(self.place.folder):
            begin = self.place.file("-").name
            if name.startswith(begin) and (at is None or name != self._staged(at.number).name):
                self._files.remove(self.place.folder / name)
        if at is None:
            return self._write(Checkpoint(start, 0, self._clock.new_id()))
        self._append(at)
        return at

    def commit(
        self,
        last: Checkpoint,
        offset: int,
        output: pa.RecordBatch | None = None,
        into: StagedOutput | None = None,
    ) -> Checkpoint:
        """Make an offset durable together with output, which then is in its stream once.

        1. Stage the output. 2. Replace the checkpoint: this is the commit. 3. Append the output.
        A process that dies behind 2 leaves 3 to the next ``open``.

        Args:
            last: the checkpoint before.
            offset: all rows before it are acknowledged.
            output: rows in the schema of their stream.
            into: where they go.

        Raises:
            UnavailableError: the disk failed; the checkpoint is as it was, or as asked.
        """
        at = Checkpoint(offset, last.number + 1, last.lineage, into if output else None)
        if output:
            path = self._staged(at.number)
            self._files.remove(path)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, output.schema) as writer:
                writer.write_batch(output)
            self._files.write_new(path, [sink.getvalue()])
            self._files.sync_folder(path.parent)
            fault("pipe.output_staged")
        self._write(at)
        fault("pipe.checkpointed")
        self._append(at)
        if last.output is not None:
            self._files.remove(self._staged(last.number))
        return at

    def append_letter(self, at: Checkpoint, stream: Stream, letter: pa.RecordBatch) -> None:
        """Append the dead letter of the record at a checkpoint, once."""
        producer = self._producer(at.lineage, "letters")
        stream.append(0, letter, producer=producer, sequence=at.offset)

    def close(self) -> None:
        """Let another process read the partition."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write(self, at: Checkpoint) -> Checkpoint:
        place = self.place
        content: dict[str, Any] = {
            "format": FORMAT,
            "consumer": place.name,
            "stream": place.stream.spec.name,
            "identity": place.stream.identity,
            "partition": place.partition,
            "at_ms": self._clock.now_ms(),
            "offset": at.offset,
            "number": at.number,
            "lineage": at.lineage,
            "output": at.output and asdict(at.output),
        }
        self._files.replace(place.file(".json"), signed_json(content))
        return at

    def _append(self, at: Checkpoint) -> None:
        """Append the output of a checkpoint; the bus knows if it is there already."""
        if at.output is None:
            return
        with pa.ipc.open_stream(self._files.map(self._staged(at.number))) as reader:
            rows = reader.read_all()
        stream = self._bus.stream(at.output.stream)
        producer = self._producer(at.lineage, "output")
        if at.output.partition is None:
            stream.append_rows(rows, producer=producer, sequence=at.number)
        else:
            stream.append(at.output.partition, rows, producer=producer, sequence=at.number)
        fault("pipe.appended")

    def _producer(self, lineage: str, role: str) -> Producer:
        return Producer(f"pipe/{self.place.name}/{self.place.partition}/{role}", lineage)

    def _staged(self, number: int) -> Path:
        return self.place.file(f"-{number}.out")


def _said(lock: int) -> str:
    return os.pread(lock, 300, 0).decode(errors="replace").strip() or "another process"
