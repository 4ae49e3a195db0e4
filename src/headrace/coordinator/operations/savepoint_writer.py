"""Writes a savepoint: a folder that is there when it is complete.

First an epoch of each part is found, so that together they are one state of the job: a driver is
asked for its last epoch once all that it sent is out, parts readers first. 1. The files that the
epoch names get second names, so that no driver sweeps them meanwhile. 2. They are linked, or
copied to another file system, and read back against the manifest's checksums. 3. The rows that
wait in internal streams are copied. 4. The manifest is written. 5. The folder gets its name. A
writer that dies before that leaves a folder with a hidden name, which the next one removes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
from msgspec import structs
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace.bus import OffsetGoneError
from headrace.clock import Clock
from headrace.coordinator.catalog import Catalog
from headrace.coordinator.commands import Command, CutAnswer, CutSavepoint
from headrace.coordinator.commit_log import load_state
from headrace.coordinator.file_copier import CopiedFile, named_files
from headrace.coordinator.inspection.job_reader import TRIES, JobReader, part_readers
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.manifest import JobState
from headrace.coordinator.operations.savepoint_format import (
    CLAIM,
    FORMAT,
    FORMAT_OF_LOGS,
    MANIFEST,
    SavedFile,
    SavedPart,
    SavedStream,
    Savepoint,
    check_savepoint_name,
    encode_savepoint,
    part_folder,
    savepoints_dir,
    stream_file,
)
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.faults import fault
from headrace.files import is_alive, local_copy
from headrace.plan.parts import STREAM_SUFFIX
from headrace.remote import address_of, is_remote
from headrace.sources.listing import load_listing
from headrace.state.segment import SegmentReader

StreamEnds = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """An epoch of one part.

    Args:
        root: the part's storage.
        state: after the epoch.
        catalog: what its stores hold.
        ends: of each internal stream that it sends to, where the rows of the epoch end.
    """

    root: Path
    state: JobState
    catalog: Catalog
    ends: StreamEnds


HALF_EPOCH_WAIT_S = 0.25
"""After so long the other half may be committed."""

AskPart = Callable[[Path, Command[CutAnswer], float], CutAnswer]
"""Has a command run on the part with this storage; the seconds are for its answer."""


def cut_of_parts(
    context: JobContext, readers: Sequence[JobReader], ask: AskPart, wait_s: float
) -> list[Cut]:
    """Return an epoch of each part of a job, in the order given, that belong together.

    Args:
        context: of the job.
        readers: of the parts.
        ask: has a part publish all that its last epoch sends.
        wait_s: how long the driver of a part may take to answer.

    Raises:
        InvalidInputError: the job has ended, or a part of it; or it has not begun since a reset.
    """
    found: dict[str, Cut] = {}
    for reader in _readers_first(readers):
        looks = (_cut_of_part(context, reader, ask, wait_s) for _ in range(TRIES))
        cut = next((one for one in looks if one is not None), None)
        if cut is None:
            raise InvalidInputError(
                f"job {reader.job!r} commits no epoch with state and offsets together; see "
                "state_semantics",
                job=reader.job,
            )
        _check(cut.state)
        found[reader.job] = cut
    return [found[reader.job] for reader in readers]


def _cut_of_part(context: JobContext, reader: JobReader, ask: AskPart, wait_s: float) -> Cut | None:
    """Return an epoch of a part; ``None``: look again, for it is none that can be used."""
    answer = ask(reader.root, CutSavepoint(), wait_s)
    if reader.is_half(answer.epoch):  # the other half is the next epoch
        context.clock.sleep(HALF_EPOCH_WAIT_S)
        return None
    state = load_state(reader.log, answer.epoch)  # though it may not be kept any more by now
    if state is None or state.epoch != answer.epoch:
        return None
    return Cut(reader.root, state, reader.catalog(state), answer.ends)


def _readers_first(readers: Sequence[JobReader]) -> list[JobReader]:
    if len(readers) == 1:
        return list(readers)
    catalogs = {reader: reader.catalog(reader.state()) for reader in readers}
    takes = {
        reader: {catalog.inputs[name] for name in catalog.feeds}
        for reader, catalog in catalogs.items()
    }
    after = {
        sender: {reader for reader in readers if takes[reader] & set(catalog.sends)}
        for sender, catalog in catalogs.items()
    }
    return list(TopologicalSorter(after).static_order())


def _check(state: JobState) -> None:
    if state.ended:
        raise InvalidInputError(
            f"job {state.job!r} has ended with epoch {state.epoch}: all its windows are closed, "
            "and no job could continue from there",
            job=state.job,
        )
    if not state.fingerprint:
        raise InvalidInputError(
            f"job {state.job!r} was reset and not started since; there is no state to save",
            job=state.job,
        )


HIDDEN_PREFIX = ".savepoint-"
CHUNK = 1 << 20
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}


class _SweptError(Exception):
    """A file of the epoch, or a row, is gone: an epoch later than that is to be saved."""


@dataclass(frozen=True)
class SavepointWriter:
    """Writes savepoints of one job.

    Args:
        context: of the job.
        readers: of its parts, the first part's first.
        folder: that savepoints are put into; made when missing.
    """

    context: JobContext
    readers: Sequence[JobReader]
    folder: Path

    def write(self, ask: AskPart, name: str | None, wait_s: float) -> tuple[Path, Savepoint]:
        """Write a savepoint of the newest epoch; see ``save_job``.

        Returns:
            Its folder, and what it says.

        Raises:
            InvalidInputError: the name is taken, or the job has nothing to continue from.
            CorruptDataError: a file of the epoch is damaged.
            UnavailableError: the driver does not answer, or sweeps files faster than they can be
                linked.
        """
        self._logs()
        moment = self.context.clock.now_ms()
        target = self.folder / check_savepoint_name(name or self._free_name(moment))
        self._check_free(target)
        if not is_remote(self.folder):
            self.context.files.make_folder(self.folder, 0o700)
            _forget_dead(self.folder)
        for _ in range(TRIES):
            cuts = cut_of_parts(self.context, self.readers, ask, wait_s)
            fault("savepoint.cut")
            with suppress(_SweptError), self._begun(target) as folder:
                saved = self._fill(folder, cuts, target.name, moment)
                if folder != target:
                    self._name(folder, target)
                return target, saved
        raise UnavailableError(
            f"job {self.readers[0].job!r} swept its files {TRIES} times before they could be "
            "linked; raise state.keep_epochs, or stop the job first",
            job=self.readers[0].job,
        )

    def _logs(self) -> dict[str, str]:
        """Return what the job reads besides streams, in words, by the stream that it stands for.

        Positions in files, or in a range of another stream, are refused: who begins would read
        the stream at them.
        """
        aliases = self.context.bus.aliases()
        found = {}
        for reader in self.readers:
            for name, source in (load_listing(reader.root) or {}).items():
                if source.address:
                    found[name] = source.said
                elif source.stream not in (name, aliases.get(name)):
                    raise InvalidInputError(
                        f"job {reader.job!r} reads {source.said} instead of stream {name!r}, "
                        "and a job that starts from a savepoint continues in streams and topics; "
                        "let the run end, or read a stream",
                        job=reader.job,
                        stream=name,
                    )
        return found

    def _free_name(self, moment: int) -> str:
        at = datetime.fromtimestamp(moment / 1000, UTC)
        name = f"{at:%Y%m%d-%H%M%S}"
        others = (f"{name}-{number}" for number in count(2))
        return next(one for one in chain([name], others) if not self._is_taken(self.folder / one))

    @contextmanager
    def _begun(self, target: Path) -> Iterator[Path]:
        """Yield the folder to fill.

        In an object storage that is the savepoint's own, which is one when its manifest is there;
        the name is claimed first. It stays so if this process dies: who wants it deletes it.
        """
        files = self.context.files
        if not is_remote(target):
            with self._hidden(target.parent) as hidden:
                yield hidden
            return
        if not files.publish(target / CLAIM, _who(self.context.clock).encode()):
            raise _taken(target)
        try:
            yield target
        except Exception:
            files.remove_tree(target)
            raise

    @contextmanager
    def _hidden(self, folder: Path) -> Iterator[Path]:
        """Make a folder with a name that nobody else has, and that says who uses it."""
        path = folder / f"{HIDDEN_PREFIX}{_who(self.context.clock)}"
        self.context.files.make_missing(path, 0o700, durable=False)
        try:
            yield path
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def _fill(self, hidden: Path, cuts: Sequence[Cut], name: str, moment: int) -> Savepoint:
        parts = tuple(self._part(hidden, number, cut) for number, cut in enumerate(cuts))
        streams = tuple(self._streams(hidden, cuts))
        job, unique = self.readers[0].job, self.context.clock.new_id()
        logs = self._logs()
        form = FORMAT_OF_LOGS if logs else FORMAT
        saved = Savepoint(form, unique, name, job, moment, parts, streams, logs)
        fault("savepoint.filled")
        self.context.files.write_new(hidden / MANIFEST, [encode_savepoint(saved)])
        for folder, _, _ in os.walk(hidden):
            self.context.files.sync_folder(Path(folder))
        fault("savepoint.written")
        return saved

    def _name(self, hidden: Path, target: Path) -> None:
        try:
            self.context.files.rename(hidden, target)  # fails where somebody else's is there
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            self._check_free(target)
        self.context.files.sync_folder(target.parent)
        fault("savepoint.named")

    def _part(self, hidden: Path, number: int, cut: Cut) -> SavedPart:
        state = _detached_state(cut.state)
        wanted = named_files(state)
        root = hidden / part_folder(number)
        with self._pinned(cut, wanted) as pinned:
            saved = tuple(
                self._bring(one, pinned / _pin(at), root) for at, one in enumerate(wanted)
            )
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
                    self.context.files.link(root / file.path, pins / _pin(at), durable=False)
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
        self.context.files.make_missing(target.parent, durable=False)
        try:
            self.context.files.link(source, target, durable=False)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            with open(source, "rb", buffering=0) as opened:
                self.context.files.write_new(target, iter(lambda: opened.read(CHUNK), b""))
        SegmentReader(self.context.files, target, file.checksum).verify()
        size, checksum = size_and_checksum(target)
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
                    data = self._rows(hidden / path, name, partition, (begin, end))
                    saved.append(SavedFile(path, data.size, xxh3_64_intdigest(data)))
                yield SavedStream(
                    name.removeprefix(f"{self.readers[0].job}.").removesuffix(STREAM_SUFFIX),
                    tuple(saved),
                )
                fault("savepoint.stream_saved")
                number += 1

    def _rows(self, path: Path, name: str, partition: int, span: tuple[int, int]) -> pa.Buffer:
        stream = self.context.bus.stream(name)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        try:
            with pa.ipc.new_stream(sink, stream.spec.schema, options=options) as writer:
                for part in stream.read(partition, *span):
                    writer.write_batch(part.batch)
        except OffsetGoneError:
            raise _SweptError from None  # the reader went on, and released them
        data = sink.getvalue()
        self.context.files.write_new(path, [data])
        return data

    def _check_free(self, target: Path) -> None:
        if self._is_taken(target):
            raise _taken(target)

    def _is_taken(self, target: Path) -> bool:
        names = [target / CLAIM, target / MANIFEST] if is_remote(target) else [target]
        return any(map(self.context.files.exists, names))


def _detached_state(state: JobState) -> JobState:
    """Return a state that a driver anywhere can continue from: nothing is left to be sent."""
    return structs.replace(
        state,
        tasks={name: structs.replace(task, host="") for name, task in state.tasks.items()},
        standbys={},
        hosts={},
        host_events=(),
        outputs=(),
        sinks=(),
        copy_of="",
        kept_from=state.epoch,
    )


def size_and_checksum(path: Path) -> tuple[int, int]:
    """Return the size of a file, and the xxh3 of its bytes."""
    size, digest = 0, xxh3_64()
    with open(local_copy(path), "rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return size, digest.intdigest()


def _taken(target: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{address_of(target)} exists already, and savepoints are never overwritten; give another "
        "--name"
    )


def _who(clock: Clock) -> str:
    """Return a name that nobody else has, and that says which process of which host has it."""
    return f"{os.uname().nodename}-{os.getpid()}-{clock.new_id()}"


def _pin(number: int) -> str:
    """Return the second name of a file: a hidden one, which is on this host in any case."""
    return f".{number}"


def _forget_dead(folder: Path) -> None:
    """Remove what processes of this host left that were killed."""
    for path in folder.glob(f"{HIDDEN_PREFIX}{os.uname().nodename}-*"):
        process = path.name.removeprefix(f"{HIDDEN_PREFIX}{os.uname().nodename}-").partition("-")[0]
        if process.isdigit() and not is_alive(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def save_job(
    context: JobContext,
    ask: AskPart,
    name: str | None,
    wait_s: float,
    folder: Path | None = None,
) -> tuple[Path, Savepoint]:
    """Make a savepoint of a job, which runs or does not.

    Args:
        context: of the job.
        ask: has a command run on a part, as a ``JobHandle`` does.
        name: of the savepoint; made of the time when left out.
        wait_s: how long the driver of a part may take to answer: its epoch may be long.
        folder: that savepoints are put into; the job's own when left out.

    Returns:
        The folder of the savepoint, and what it says.

    Raises:
        InvalidInputError: there is no such job, or nothing could continue from it.
        UnavailableError: the driver does not answer.
    """
    readers = part_readers(context.settings, context.job)
    folder = folder or savepoints_dir(context.settings, context.job)
    return SavepointWriter(context, readers, folder).write(ask, name, wait_s)
