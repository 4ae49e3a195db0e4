"""What a recording says: JSON with a digest of its own, beside the rows and the state's files.

A recording is a zip archive. ``recording.json`` is a line of JSON, a ``Recording``, and the
BLAKE2 digest of that line; it names every other member with its size and digest. Rows are Arrow
streams, state is the files that the job's manifests name, and nothing is pickled.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headrace.bus.spec import StreamSpec
from headrace.coordinator.epoch_plan import EpochPlan
from headrace.coordinator.manifest import JobState
from headrace.errors import CorruptDataError
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

    ``added`` are columns that were added since it was created, with what older rows have.
    """

    name: str
    columns: str
    time: str | None
    key: tuple[str, ...]
    compact: bool
    partitions: int
    added: dict[str, Any] = {}
    parts: tuple[RecordedPartition, ...] = ()

    @classmethod
    def of(cls, name: str, spec: StreamSpec, partitions: int) -> RecordedStream:
        """Describe a stream under the name that the job has for it."""
        columns = schema_to_text(spec.schema)
        place = (spec.time, spec.key, spec.compact, partitions)
        return cls(name, columns, *place, added=dict(spec.added))

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


class _Form(msgspec.Struct):
    format: str
    version: int


_DECODER = msgspec.json.Decoder(Recording)
_FORM = msgspec.json.Decoder(_Form)


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
        form = _FORM.decode(line)
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
