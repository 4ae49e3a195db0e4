"""What a savepoint says: its manifest, written last and verified whenever it is read.

A savepoint is a folder: ``savepoint.json``, below ``parts/N`` the files that the state of the
N-th part names, and below ``streams/N`` the rows that wait in the N-th internal stream, a file
for each partition. Nothing in it is pickled, and it is the same under another name or elsewhere.
Here is also where savepoints are kept, how they are listed, renamed and deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from headrace.config import Settings
from headrace.coordinator.catalog import Catalog
from headrace.coordinator.job_storage import check_job_name
from headrace.coordinator.manifest import JobState
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError
from headrace.files import TRASH, Files
from headrace.objects import Address
from headrace.plan.compatibility import OPERATOR, SENT
from headrace.plan.parts import STREAM_SUFFIX, internal_stream_name
from headrace.remote import address_of, is_remote, local_path

FORMAT, FORMAT_OF_LOGS = 1, 2
"""The second is that of savepoints whose positions are in logs that are not of the bus."""

MANIFEST = "savepoint.json"
MANIFEST_BYTES = 1 << 30
CLAIM = "writer"
"""In an object storage, the object by which one of those that write a savepoint has its name."""
_FILE = re.compile(r"(segment|snapshot)/(?!\.)[^/\\\0]+")
_PART = re.compile(r"|@(?!\.)[^/\\\0]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SavedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a savepoint: where it is in its folder, its bytes, and their xxh3."""

    path: str
    size: int
    checksum: int


class SavedPart(msgspec.Struct, frozen=True):
    """One part of the job: what follows the job's name in its own, its state, what stores hold."""

    suffix: str
    state: JobState
    catalog: Catalog
    files: tuple[SavedFile, ...]


class SavedStream(msgspec.Struct, frozen=True):
    """The rows that wait in the internal stream of an operator, a file for each partition."""

    operator: str
    files: tuple[SavedFile, ...]


class Savepoint(msgspec.Struct, frozen=True):
    """One committed epoch of a job; of several parts, the epochs that belong together.

    ``logs`` has what positions are in besides streams, such as topics, in words: by the stream
    that they stand for. Where they are is for the job that starts to say: an address may have
    secrets.
    """

    format: int
    id: str
    name: str
    job: str
    time_ms: int
    parts: tuple[SavedPart, ...]
    streams: tuple[SavedStream, ...] = ()
    logs: dict[str, str] = {}

    @property
    def epoch(self) -> int:
        """The epoch, of the first part where there are several."""
        return self.parts[0].state.epoch

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(file.size for _, file in self.members())

    @property
    def generation(self) -> int:
        """A generation that is above those of all its files."""
        return max(part.state.generation for part in self.parts)

    def members(self) -> list[tuple[str, SavedFile]]:
        """Return every file with its path below the folder."""
        parts = [
            (f"{part_folder(number)}/{file.path}", file)
            for number, part in enumerate(self.parts)
            for file in part.files
        ]
        streams = [(file.path, file) for stream in self.streams for file in stream.files]
        return [*parts, *streams]


class _FormatOnly(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(Savepoint)
_FORMAT_DECODER = msgspec.json.Decoder(_FormatOnly)


def part_folder(number: int) -> str:
    """Return the folder of a part's files."""
    return f"parts/{number}"


def stream_file(number: int, partition: int) -> str:
    """Return the file of a partition of an internal stream."""
    return f"streams/{number}/{partition}.arrow"


def check_savepoint_name(name: str) -> str:
    """Return a name if it can name a savepoint.

    Raises:
        InvalidInputError: other characters than letters, digits, dot, dash, underscore.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"savepoint name {name!r} cannot be used; begin with a letter or digit, continue with "
            "letters, digits, '.', '_' or '-', 100 characters at most"
        )
    return name


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """Return the bytes of the manifest: a line of JSON, and the digest of that line."""
    line = msgspec.json.encode(savepoint)
    return line + b"\n" + hashlib.blake2b(line, digest_size=16).hexdigest().encode() + b"\n"


def read_savepoint(folder: Path) -> Savepoint:
    """Read what a savepoint says of itself; its files are not looked at.

    Raises:
        InvalidInputError: there is no savepoint, or another version wrote it.
        CorruptDataError: its manifest is damaged, or names what no savepoint holds.
    """
    path, files = folder / MANIFEST, Files(sync=False)
    try:
        if files.status(path).size > MANIFEST_BYTES:
            raise damaged_savepoint(folder, f"{MANIFEST} has more than {MANIFEST_BYTES:,} bytes")
        data = files.read(path)
    except (FileNotFoundError, NotADirectoryError):
        what = "is no savepoint" if files.exists(folder) else "does not exist"
        raise InvalidInputError(
            f"{address_of(folder)} {what}; expected a folder with {MANIFEST}, such as headrace "
            "jobs savepoints lists"
        ) from None
    line, _, rest = data.partition(b"\n")
    if rest != hashlib.blake2b(line, digest_size=16).hexdigest().encode() + b"\n":
        raise damaged_savepoint(folder, f"{MANIFEST} does not match its digest")
    try:
        form = _FORMAT_DECODER.decode(line).format
        if form not in (FORMAT, FORMAT_OF_LOGS):
            raise InvalidInputError(
                f"savepoint {address_of(folder)} has format {form}, this version reads {FORMAT} "
                f"and {FORMAT_OF_LOGS}; use the version that wrote it"
            )
        savepoint = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise damaged_savepoint(folder, f"{MANIFEST} cannot be read: {error}") from error
    _check(savepoint, folder)
    return savepoint


def _check(savepoint: Savepoint, folder: Path) -> None:
    """Make sure that nothing outside of the folder is read, or outside of a job's written.

    A savepoint may come from anybody, and its digests detect damage only.
    """
    if not savepoint.parts or savepoint.parts[0].suffix:
        raise damaged_savepoint(folder, "it has no first part")
    for part in savepoint.parts:
        held = {file.path for file in part.files}
        if not _PART.fullmatch(part.suffix):
            raise damaged_savepoint(folder, f"a part cannot be called {part.suffix!r}")
        if part.state.job != savepoint.job + part.suffix or not _NAME.fullmatch(savepoint.job):
            raise damaged_savepoint(
                folder, f"its part {part.suffix!r} is of job {part.state.job!r}"
            )
        for path in held:
            if not _FILE.fullmatch(path):
                raise damaged_savepoint(folder, f"it cannot hold {path!r}")
        if missing := sorted(part.state.files() - held):
            raise damaged_savepoint(
                folder, f"its state names {missing[0]!r}, which it does not hold"
            )
    for number, stream in enumerate(savepoint.streams):
        wanted = [stream_file(number, p) for p in range(len(stream.files))]
        if [file.path for file in stream.files] != wanted:
            raise damaged_savepoint(
                folder, f"it cannot hold the files of stream {stream.operator!r}"
            )


def damaged_savepoint(folder: Path, what: str) -> CorruptDataError:
    """Return the error of a savepoint that cannot be used."""
    return CorruptDataError(
        f"savepoint {address_of(folder)} is damaged: {what}; use another one, or a copy of it",
        file=str(folder),
    )


def renamed_part(part: SavedPart, before: str, job: str) -> SavedPart:
    """Return a part of a job as one of another job, which has read nothing of internal streams.

    Args:
        part: as it was saved.
        before: the job's name then.
        job: its name now.
    """
    state, catalog = part.state, part.catalog

    def stream(name: str) -> str:
        return internal_stream_name(
            job, name.removeprefix(f"{before}.").removesuffix(STREAM_SUFFIX)
        )

    fingerprint = {}
    for name, text in state.fingerprint.items():
        described = json.loads(text)
        is_sent = described["kind"] == SENT
        fingerprint[internal_stream_name(job, described[OPERATOR]) if is_sent else name] = text
    unread = {
        feed: {p: structs.replace(at, next_offset=0) for p, at in state.inputs[feed].items()}
        for feed in state.inputs.keys() & set(catalog.feeds)
    }
    inputs = {**state.inputs, **unread}
    return structs.replace(
        part,
        state=structs.replace(state, job=job + part.suffix, fingerprint=fingerprint, inputs=inputs),
        catalog=structs.replace(
            catalog,
            job=job + part.suffix,
            inputs=catalog.inputs | {feed: stream(catalog.inputs[feed]) for feed in catalog.feeds},
            sends=tuple(stream(name) for name in catalog.sends),
        ),
    )


SAVEPOINTS_FOLDER = "_savepoints"
"""Beside the storages of jobs; no job can have this name. It outlives the deletion of a job."""


@dataclass(frozen=True)
class FoundSavepoint:
    """A savepoint that was found: its folder, and what it says or why that cannot be read."""

    path: Path
    saved: Savepoint | None
    problem: str = ""


@dataclass(frozen=True)
class SavepointInfo:
    """A savepoint, and the folder that it is."""

    job: str
    name: str
    path: str
    epoch: int
    time_ms: int
    bytes: int
    files: int
    parts: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, saved: Savepoint) -> SavepointInfo:
        """Return what is shown of a savepoint."""
        parts = tuple(part.state.job for part in saved.parts)
        return cls(
            saved.job,
            saved.name,
            address_of(path),
            saved.epoch,
            saved.time_ms,
            saved.bytes,
            len(saved.members()),
            parts,
        )


def savepoints_dir(settings: Settings, job: str) -> Path:
    """Return the folder of a job's savepoints; in an object storage where its storage is."""
    return settings.jobs_dir / SAVEPOINTS_FOLDER / check_job_name(job)


def list_savepoints(folder: Path) -> Iterator[FoundSavepoint]:
    """Yield the savepoints in a folder, by their names; other things in it are passed over."""
    files = Files(sync=False)
    for name in files.names(folder):
        path = folder / name
        if not files.exists(path / MANIFEST):
            continue
        try:
            yield FoundSavepoint(path, read_savepoint(path))
        except HeadraceError as error:
            yield FoundSavepoint(path, None, error.message)


def find_savepoint(settings: Settings, job: str, word: str) -> Path:
    """Return the folder that is meant by a path, an address, or the name of a job's savepoint.

    Raises:
        InvalidInputError: there is none; names those that are there.
    """
    own = savepoints_dir(settings, job)
    is_address = "://" in word
    named = local_path(Address.read(word), settings.state_dir) if is_address else Path(word)
    for path in (named, own / word):
        if Files(sync=False).exists(path / MANIFEST):
            return path
    names = ", ".join(one.path.name for one in list_savepoints(own)) or "none"
    raise InvalidInputError(
        f"no savepoint {word!r}: it is no folder with {MANIFEST}, and job {job!r} has {names}",
        job=job,
    )


def delete_savepoint(folder: Path, name: str, files: Files) -> Path:
    """Remove a savepoint; it is gone, or complete, whatever dies.

    Raises:
        InvalidInputError: there is no table of that name.
    """
    path = folder / check_savepoint_name(name)
    if not files.exists(path / CLAIM):  # whose writer may have died
        with suppress(CorruptDataError):  # a damaged one may go as well
            read_savepoint(path)
    if is_remote(path):
        files.remove(path / MANIFEST)
    files.remove_tree(path)
    for left in (*folder.glob(f"{TRASH}*"), *folder.glob(".deleted-*")):
        shutil.rmtree(left, ignore_errors=True)
    return path
