"""Writes a savepoint: a folder that is there when it is complete.

1. The files that the epoch names get second names, so that no driver sweeps them meanwhile.
2. They are linked, or copied to another file system, and read back against the manifest's
checksums. 3. The rows that wait in internal streams are copied. 4. The manifest is written. 5. The
folder gets its name. Who dies before that leaves a folder with a hidden name; the next who writes a
savepoint there removes it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
from msgspec import structs
from xxhash import xxh3_64

from headrace.bus.bus import Bus
from headrace.bus.retention import OffsetGoneError
from headrace.clock import Clock
from headrace.coordinator.backup.copying import CopiedFile, named_files
from headrace.coordinator.inspection.inspection import TRIES, JobReader
from headrace.coordinator.manifest import JobState
from headrace.coordinator.savepoints.cutting import Cut, Cutting, cut_of_parts
from headrace.coordinator.savepoints.form import (
    FORMAT,
    MANIFEST,
    SavedFile,
    SavedPart,
    SavedStream,
    Savepoint,
    check_savepoint_name,
    encode_savepoint,
    part_folder,
    stream_file,
)
from headrace.coordinator.storage import is_alive
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.faults import fault
from headrace.files import Files
from headrace.plan.parts import STREAM_SUFFIX
from headrace.sources.listing import load_listing
from headrace.state.segment_reader import SegmentReader

HIDDEN = ".savepoint-"
CHUNK = 1 << 20
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


class _SweptError(Exception):
    """A file of the epoch, or a row, is gone: an epoch later than that is to be saved."""


@dataclass(frozen=True)
class SavepointWriter:
    """Writes savepoints of one job.

    Args:
        readers: of its parts, the first part's first.
        bus: with the internal streams.
        folder: that savepoints are put into; made when missing.
        files: the file system.
        clock: for time and names.
    """

    readers: Sequence[JobReader]
    bus: Bus
    folder: Path
    files: Files
    clock: Clock

    def write(self, cutting: Cutting, name: str | None = None) -> tuple[Path, Savepoint]:
        """Write a savepoint of the newest epoch.

        Args:
            cutting: finds that, of a job that runs or does not.
            name: of the savepoint; made of the time when left out.

        Returns:
            Its folder, and what it says.

        Raises:
            InvalidInputError: the name is taken, or the job has nothing to go on from.
            CorruptDataError: a file of the epoch is damaged.
            UnavailableError: the driver does not answer, or sweeps files faster than they can be
                linked.
        """
        self._check_inputs()
        moment = self.clock.now_ms()
        target = self.folder / check_savepoint_name(name or self._free_name(moment))
        _check_free(target)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _forget_dead(self.folder)
        for _ in range(TRIES):
            cuts = cut_of_parts(self.readers, cutting, TRIES)
            fault("savepoint.cut")
            with suppress(_SweptError), self._hidden(self.folder) as hidden:
                saved = self._fill(hidden, cuts, target.name, moment)
                self._name(hidden, target)
                return target, saved
        raise UnavailableError(
            f"job {self.readers[0].job!r} swept its files {TRIES} times before they could be "
            "linked; raise state.keep_epochs, or stop the job first",
            job=self.readers[0].job,
        )

    def _check_inputs(self) -> None:
        """Refuse positions in files or another stream: who begins would read the bus at them."""
        aliases = self.bus.aliases()
        for reader in self.readers:
            for name, source in (load_listing(reader.root) or {}).items():
                if source.stream not in (name, aliases.get(name)):
                    raise InvalidInputError(
                        f"job {reader.job!r} reads {source.said} in the place of stream {name!r}, "
                        "and who begins from a savepoint goes on in streams; let the run end, or "
                        "read a stream",
                        job=reader.job,
                        stream=name,
                    )

    def _free_name(self, moment: int) -> str:
        at = datetime.fromtimestamp(moment / 1000, UTC)
        name = f"{at:%Y%m%d-%H%M%S}"
        others = (f"{name}-{number}" for number in count(2))
        return next(one for one in chain([name], others) if not (self.folder / one).exists())

    @contextmanager
    def _hidden(self, folder: Path) -> Iterator[Path]:
        """Make a folder with a name that nobody else has, and that tells who uses it."""
        who = f"{os.uname().nodename}-{os.getpid()}-{self.clock.new_id()}"
        path = folder / f"{HIDDEN}{who}"
        path.mkdir(mode=0o700)
        try:
            yield path
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def _fill(self, hidden: Path, cuts: Sequence[Cut], name: str, moment: int) -> Savepoint:
        parts = tuple(self._part(hidden, number, cut) for number, cut in enumerate(cuts))
        streams = tuple(self._streams(hidden, cuts))
        job, unique = self.readers[0].job, self.clock.new_id()
        saved = Savepoint(FORMAT, unique, name, job, moment, parts, streams)
        fault("savepoint.filled")
        self.files.write_new(hidden / MANIFEST, [encode_savepoint(saved)])
        for folder, _, _ in os.walk(hidden):
            self.files.sync_folder(Path(folder))
        fault("savepoint.written")
        return saved

    def _name(self, hidden: Path, target: Path) -> None:
        try:
            self.files.rename(hidden, target)  # fails where somebody else's is there
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            _check_free(target)
        self.files.sync_folder(target.parent)
        fault("savepoint.named")

    def _part(self, hidden: Path, number: int, cut: Cut) -> SavedPart:
        state = _bare(cut.state)
        wanted = named_files(state)
        root = hidden / part_folder(number)
        with self._pinned(cut, wanted) as pinned:
            saved = tuple(self._bring(one, pinned / str(at), root) for at, one in enumerate(wanted))
        suffix = cut.state.job.removeprefix(self.readers[0].job)
        return SavedPart(suffix, state, cut.catalog, saved)

    @contextmanager
    def _pinned(self, cut: Cut, wanted: Sequence[CopiedFile]) -> Iterator[Path]:
        """Give the files of an epoch second names beside the job's storage, as long as needed."""
        root = cut.root
        _forget_dead(root.parent)
        with self._hidden(root.parent) as pins:
            for at, file in enumerate(wanted):
                try:
                    os.link(root / file.path, pins / str(at))
                except FileNotFoundError:
                    raise self._gone(cut, root / file.path) from None
            fault("savepoint.pinned")
            yield pins
            shutil.rmtree(pins)

    def _gone(self, cut: Cut, path: Path) -> Exception:
        reader = next(one for one in self.readers if one.root == cut.root)
        if reader.kept().oldest > cut.state.epoch:
            return _SweptError()
        return CorruptDataError(
            f"file {path} is missing, though epoch {cut.state.epoch} names it", file=str(path)
        )

    def _bring(self, file: CopiedFile, source: Path, root: Path) -> SavedFile:
        target = root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            with open(source, "rb", buffering=0) as opened:
                self.files.write_new(target, iter(lambda: opened.read(CHUNK), b""))
        SegmentReader(self.files, target, file.checksum).verify()
        size, checksum = summed(target)
        fault("savepoint.file_brought")
        return SavedFile(file.path, size, checksum)

    def _streams(self, hidden: Path, cuts: Sequence[Cut]) -> Iterator[SavedStream]:
        """Copy the rows between what readers have taken in and what senders have sent."""
        ends = {name: end for cut in cuts for name, end in cut.ends.items()}
        number = 0
        for cut in cuts:
            for operator in cut.catalog.feeds:
                name = cut.catalog.inputs[operator]
                begins = cut.state.inputs.get(operator, {})
                saved = []
                for partition, end in enumerate(ends[name]):
                    held = begins.get(partition)
                    begin = 0 if held is None else held.next_offset
                    path = stream_file(number, partition)
                    self._rows(hidden / path, name, partition, (begin, end))
                    saved.append(SavedFile(path, *summed(hidden / path)))
                yield SavedStream(
                    name.removeprefix(f"{self.readers[0].job}.").removesuffix(STREAM_SUFFIX),
                    tuple(saved),
                )
                fault("savepoint.stream_saved")
                number += 1

    def _rows(self, path: Path, name: str, partition: int, span: tuple[int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = self.bus.stream(name)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        try:
            with pa.ipc.new_stream(sink, stream.spec.schema, options=options) as writer:
                for part in stream.read(partition, *span):
                    writer.write_batch(part.batch)
        except OffsetGoneError:
            raise _SweptError from None  # the reader went on, and let go of them
        self.files.write_new(path, [sink.getvalue()])


def _bare(state: JobState) -> JobState:
    """Return a state that a driver anywhere can go on from: nothing is left to be sent."""
    return structs.replace(
        state,
        tasks={name: structs.replace(task, host="") for name, task in state.tasks.items()},
        standbys={},
        hosts={},
        story=(),
        outputs=(),
        sinks=(),
        copy_of="",
        kept_from=state.epoch,
    )


def summed(path: Path) -> tuple[int, int]:
    """Return the size of a file, and the xxh3 of its bytes."""
    size, digest = 0, xxh3_64()
    with open(path, "rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return size, digest.intdigest()


def _check_free(target: Path) -> None:
    if target.exists():
        raise InvalidInputError(
            f"{target} exists already, and savepoints are never overwritten; give another --name"
        )


def _forget_dead(folder: Path) -> None:
    """Remove what processes of this host left that were killed."""
    for path in folder.glob(f"{HIDDEN}{os.uname().nodename}-*"):
        process = path.name.removeprefix(f"{HIDDEN}{os.uname().nodename}-").partition("-")[0]
        if process.isdigit() and not is_alive(int(process)):
            shutil.rmtree(path, ignore_errors=True)
