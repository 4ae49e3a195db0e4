"""A recorded epoch as a file: what it says, and its members, verified whenever they are read.

A recording is a zip archive. ``recording.json`` is a line of JSON, a ``Recording``, and the
BLAKE2 digest of that line; it names every other member with its size and digest. Rows are Arrow
streams, state is the files that the job's manifests name, and nothing is pickled.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import pyarrow as pa

from headrace.bus import Stream, StreamSpec
from headrace.closeable import Closeable
from headrace.coordinator.epoch_records import EpochPlan
from headrace.coordinator.manifest import JobState
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import temporary_path
from headrace.records.schema import schema_from_text, schema_to_text

FORMAT = "headrace recording"
VERSION = 1
MANIFEST = "recording.json"

Kind = Literal["committed", "failed", "next"]


class Member(msgspec.Struct, frozen=True):
    """A member of the archive: its bytes before they were packed, and their BLAKE2 digest."""

    size: int
    digest: str


class RecordedPartition(msgspec.Struct, frozen=True):
    """Offsets ``begin`` to before ``end`` of a partition; its rows, where there are any."""

    begin: int
    end: int
    rows: int = 0
    member: str = ""


class RecordedStream(msgspec.Struct, frozen=True):
    """A stream that the job reads, with what the epoch needs of it, or that it sends to.

    ``added`` are columns that were added since it was created, with what older rows have;
    ``identity`` distinguishes it from others of its name.
    """

    name: str
    columns: str
    time: str | None
    key: tuple[str, ...]
    compact: bool
    partitions: int
    added: dict[str, Any] = {}
    parts: tuple[RecordedPartition, ...] = ()
    identity: str = ""

    @classmethod
    def of(cls, name: str, stream: Stream, partitions: int) -> RecordedStream:
        """Describe a stream under the name that the job has for it."""
        spec = stream.spec
        columns = schema_to_text(spec.schema)
        place = (spec.time, spec.key, spec.compact, partitions)
        return cls(name, columns, *place, added=dict(spec.added), identity=stream.identity)

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return schema_from_text(self.columns)

    @property
    def spec(self) -> StreamSpec:
        """What it was created as, without what was added since."""
        first = pa.schema([field for field in self.schema if field.name not in self.added])
        return StreamSpec(self.name, self.partitions, first, self.time, self.key, self.compact)


class RecordedFile(msgspec.Struct, frozen=True):
    """A file of a broadcast store: the user's name of it, the storage's, and its member."""

    file: str
    path: str
    digest: str
    member: str


class Failure(msgspec.Struct, frozen=True):
    """The error that the epoch ended with."""

    code: str
    kind: str
    message: str


class Recording(msgspec.Struct, frozen=True):
    """One epoch of one part of a job: the state before it, its plan, and what it read.

    ``settings`` are those that can change results, by section; ``unlogged`` names stores that
    begin empty, for no file holds them; ``aliases`` other names of streams.
    """

    format: str
    version: int
    job: str
    epoch: int
    kind: Kind
    state: JobState
    plan: EpochPlan
    settings: dict[str, dict[str, Any]]
    streams: tuple[RecordedStream, ...]
    files: tuple[RecordedFile, ...]
    members: dict[str, Member]
    failure: Failure | None = None
    unlogged: tuple[str, ...] = ()
    aliases: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """How many input rows it holds."""
        return sum(part.rows for stream in self.streams for part in stream.parts)


class _FormatOnly(msgspec.Struct):
    format: str
    version: int


_DECODER = msgspec.json.Decoder(Recording)
_FORMAT_DECODER = msgspec.json.Decoder(_FormatOnly)


def encode_recording(recording: Recording) -> bytes:
    """Return the bytes of ``recording.json``."""
    line = msgspec.json.encode(recording)
    return line + b"\n" + _digest(line).encode() + b"\n"


def decode_recording(data: bytes, origin: str) -> Recording:
    """Read and verify ``recording.json``.

    Args:
        data: its bytes.
        origin: the archive's name, for errors.

    Raises:
        CorruptDataError: it does not match its digest, or is of another format.
    """
    line, _, rest = data.partition(b"\n")
    if rest != _digest(line).encode() + b"\n":
        raise CorruptDataError(
            f"recording {origin} is damaged: {MANIFEST} does not match its digest; record the "
            "epoch again",
            file=origin,
        )
    try:
        form = _FORMAT_DECODER.decode(line)
        if (form.format, form.version) != (FORMAT, VERSION):
            raise CorruptDataError(
                f"{origin} is a {form.format} of version {form.version}; expected a {FORMAT} of "
                f"version {VERSION}: record the epoch again with this version of Headrace",
                file=origin,
            )
        return _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise CorruptDataError(
            f"recording {origin} cannot be read: {error}", file=origin
        ) from error


def _digest(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=16).hexdigest()


CHUNK_BYTES = 1 << 20
MANIFEST_BYTES = 256 << 20
"""No recording says more; what does was made to fill the memory of its reader."""
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, KeyError, EOFError, OSError, ValueError),
    *(NotImplementedError, RuntimeError),  # a flipped bit asks for a password, or a new version
)
_BEGIN = (1980, 1, 1, 0, 0, 0)  # the same content is the same archive


class ArchiveWriter(Closeable):
    """Writes an archive that takes its name when it is whole.

    Use as a context manager; one that is left by an error leaves nothing.

    Args:
        path: of the archive; one that is there is replaced.

    Raises:
        InvalidInputError: the folder is not there.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise InvalidInputError(f"no folder {path.parent} to record to; make it first")
        self._path = path
        self._temporary = temporary_path(path)
        self._temporary.touch(mode=0o600)
        self._zip = zipfile.ZipFile(self._temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self.members: dict[str, Member] = {}

    def add(self, name: str, chunks: Iterable[bytes]) -> None:
        """Add a member."""
        with self._zip.open(_info(name), "w", force_zip64=True) as target:
            counted = _Counted(target)
            for chunk in chunks:
                counted.write(chunk)
        self.members[name] = counted.member

    def add_file(self, name: str, path: Path) -> None:
        """Add the content of a file.

        Raises:
            FileNotFoundError: it is not there.
        """
        with open(path, "rb") as source:
            self.add(name, iter(lambda: source.read(CHUNK_BYTES), b""))

    def add_batches(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Add batches as an Arrow stream; returns the rows."""
        rows = 0
        info = _info(name)
        info.compress_type = zipfile.ZIP_STORED  # Arrow does it better
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with self._zip.open(info, "w", force_zip64=True) as target:
            counted = _Counted(target)
            sink = pa.PythonFile(counted, "w")
            with pa.ipc.new_stream(sink, schema, options=options) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        self.members[name] = counted.member
        return rows

    def finish(self, recording: Recording) -> int:
        """Add what the recording says, and give the archive its name; returns its bytes."""
        self._zip.writestr(_info(MANIFEST), encode_recording(recording))
        self._zip.close()
        size = self._temporary.stat().st_size
        self._temporary.replace(self._path)
        return size

    def close(self) -> None:
        """Leave nothing unless it was finished."""
        self._zip.close()
        self._temporary.unlink(missing_ok=True)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _BEGIN)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    return info


class _Counted:
    """Counts what goes to a member, as a file that Arrow can write to."""

    closed = False

    def __init__(self, target: IO[bytes]) -> None:
        self._target, self._size = target, 0
        self._sum = hashlib.blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self._target.write(data)
        self._sum.update(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def flush(self) -> None:
        """Do nothing: the archive is flushed when it is closed."""

    def close(self) -> None:
        """Do nothing: the archive closes its members itself."""

    @property
    def member(self) -> Member:
        return Member(self._size, self._sum.hexdigest())


class ArchiveReader(Closeable):
    """Reads an archive; use as a context manager.

    Args:
        path: of the archive.

    Raises:
        InvalidInputError: there is no such file.
        CorruptDataError: it is no recording, is not whole, or does not match its digest.
    """

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        if not path.is_file():
            raise InvalidInputError(
                f"no recording {path}; record one with: headrace jobs replay JOB --epoch N"
            )
        try:
            self._zip = zipfile.ZipFile(path)
            with self._zip.open(MANIFEST) as source:
                data = source.read(MANIFEST_BYTES + 1)
            self.recording = decode_recording(data, self.origin)
        except _UNREADABLE as error:
            raise self._damaged(f"it is not a whole archive with {MANIFEST} ({error})") from error

    def read(self, name: str) -> bytes:
        """Return a member.

        Raises:
            CorruptDataError: it is missing or does not match its digest.
        """
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a member's bytes; what was yielded counts only once nothing was raised.

        Raises:
            CorruptDataError: it is missing or does not match its digest.
        """
        wanted = self.recording.members.get(name)
        if wanted is None:
            raise self._damaged(f"{MANIFEST} does not name {name}")
        found = hashlib.blake2b(digest_size=16)
        size = 0
        try:
            with self._zip.open(name) as source:
                while chunk := source.read(CHUNK_BYTES):
                    found.update(chunk)
                    size += len(chunk)
                    if size > wanted.size:
                        break
                    yield chunk
        except _UNREADABLE as error:
            raise self._damaged(f"{name} cannot be read ({error})") from error
        if (size, found.hexdigest()) != (wanted.size, wanted.digest):
            raise self._damaged(f"{name} does not match its digest")

    def _damaged(self, what: str) -> CorruptDataError:
        return CorruptDataError(
            f"recording {self.origin} is damaged: {what}; record the epoch again",
            file=self.origin,
        )

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
