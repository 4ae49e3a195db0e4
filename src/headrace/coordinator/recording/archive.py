"""The archive of a recording: members are written once and verified whenever they are read."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from headrace.closing import Closing
from headrace.coordinator.recording.form import (
    MANIFEST,
    Member,
    Recording,
    decode_recording,
    encode_recording,
)
from headrace.errors import CorruptDataError, InvalidInputError

CHUNK_BYTES = 1 << 20
MANIFEST_BYTES = 256 << 20
"""No recording says more; what does was made to fill the memory of its reader."""
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, KeyError, EOFError, OSError, ValueError),
    *(NotImplementedError, RuntimeError),  # a flipped bit asks for a password, or a new version
)
_BEGIN = (1980, 1, 1, 0, 0, 0)  # the same content is the same archive


class ArchiveWriter(Closing):
    """Writes an archive that takes its name when it is whole.

    Use as a context manager; one that is left by an error leaves nothing.

    Args:
        path: of the archive; one that is there is replaced.
        unique: a name part that no other writer uses.

    Raises:
        InvalidInputError: the folder is not there.
    """

    def __init__(self, path: Path, unique: str) -> None:
        if not path.parent.is_dir():
            raise InvalidInputError(f"no folder {path.parent} to record to; make it first")
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{unique}.tmp")
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


class ArchiveReader(Closing):
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
            raise self._damaged(f"{MANIFEST} does not tell of {name}")
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
