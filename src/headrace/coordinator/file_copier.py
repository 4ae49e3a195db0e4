"""Copies the files that a state names from one storage to another, each whole and verified.

A copy is written under a temporary name, made durable, read back against the checksum that
the manifest has for it, and only then linked to its name. So a name that is there is right,
and copying again continues where a crash stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from xxhash import xxh3_64

from headrace.coordinator.manifest import JobState
from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files, local_copy, temporary_path
from headrace.remote import RemoteFile, address_of, is_remote
from headrace.state.segment import SegmentReader

CHUNK = 1 << 20
THREADS = 4
BEAT_S = 1.0


class CopiedFile(NamedTuple):
    """A file that a state names: its path below the storage, and its checksum where it has one."""

    path: str
    checksum: int | None


def named_files(state: JobState) -> list[CopiedFile]:
    """Return every file that a state names, once, in the order of their names."""
    sums: dict[str, int | None] = {part.path: None for part in state.outputs}
    sums.update((part.path, None) for part in state.sinks)
    for task in state.tasks.values():
        sums.update((ref.path, ref.checksum) for ref in task.files)
    return [CopiedFile(path, sums[path]) for path in sorted(sums)]


@dataclass(frozen=True)
class FileCopier:
    """Brings files from one root to another.

    Args:
        source: root of the files that are there.
        target: root of the copies.
        files: the file system.
        beat: called after each chunk with its bytes, and each second while an object storage is
            asked, which answers in its time or fails; may raise to end the copying.
    """

    source: Path
    target: Path
    files: Files
    beat: Callable[[int], None] = lambda size: None

    def bring(self, state: JobState, *, parallel: bool = False) -> int:
        """Copy what the state names and is not there yet; returns the bytes copied.

        Args:
            state: whose files.
            parallel: several at a time, for a source that answers slowly.

        Raises:
            CorruptDataError: a file does not match its checksum, or is missing.
            OSError: one of the two sides does not answer.
        """
        wanted = named_files(state)
        folders = {(self.target / file.path).parent for file in wanted}
        there = {folder / name for folder in folders for name in self.files.names(folder)}
        missing = [file for file in wanted if self.target / file.path not in there]
        for folder in folders:
            self.files.make_missing(folder)
        sizes = (
            self._several(missing)
            if parallel or is_remote(self.target)
            else [self.copy(file) for file in missing]
        )
        for folder in folders:  # a try before this one may have died before it did that
            self.files.sync_folder(folder)
        return sum(sizes)

    def _several(self, files: list[CopiedFile]) -> list[int]:
        """Copy several at a time, in threads that do not outlive a process that gives up."""
        left, sizes, failures = SimpleQueue[CopiedFile](), list[int](), list[BaseException]()
        for file in files:
            left.put(file)

        def work() -> None:
            try:
                while not failures:
                    sizes.append(self.copy(left.get_nowait()))
            except Empty:
                return
            except BaseException as error:  # noqa: BLE001 - raised by who waits
                failures.append(error)

        is_asking = is_remote(self.source) or is_remote(self.target)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(BEAT_S)
                if is_asking and not failures:
                    try:
                        self.beat(0)
                    except BaseException as error:  # noqa: BLE001 - raised below
                        failures.append(error)
        if failures:
            raise failures[0]
        return sizes

    def copy(self, file: CopiedFile) -> int:
        """Copy one file and return its bytes."""
        if is_remote(self.target):
            return self._send(file)
        temporary = self._write(file)
        try:
            fault("copy.file_written")
            self.files.link(temporary, self.target / file.path, durable=False)
        except FileExistsError:
            pass
        finally:
            size = temporary.stat().st_size
            self.files.remove(temporary)
        fault("copy.file_linked")
        return size

    def _send(self, file: CopiedFile) -> int:
        """Make an object of a verified file; what was sent is whole, or not there."""
        source = self.source / file.path
        local = self._here(source)
        if file.checksum is not None:
            self._verify(local, file, 0)
        fault("copy.file_written")
        with suppress(FileExistsError):
            self.files.link(local, self.target / file.path, durable=False)
        fault("copy.file_linked")
        size = local.stat().st_size
        self.beat(size)
        return size

    def _here(self, path: Path) -> Path:
        """Return a file of this host with the content of one that never changes.

        Raises:
            CorruptDataError: it is missing.
        """
        try:
            local = local_copy(path)
            local.stat()
        except FileNotFoundError as error:
            if not is_remote(path) and not path.parent.is_dir():
                raise
            raise CorruptDataError(
                f"file {address_of(path)} is missing, though a manifest names it", file=str(path)
            ) from error
        return local

    def replace(self, file: CopiedFile) -> None:
        """Put a good copy in the place of a damaged file; who maps that one keeps it.

        Raises:
            CorruptDataError: the copy is damaged too; the file is as it was, like after an OSError.
        """
        path, temporary = self.target / file.path, self._write(file)
        if is_remote(path):
            try:
                RemoteFile(path).upload(temporary, new=False)
            finally:
                temporary.unlink(missing_ok=True)
            return
        self.files.rename(temporary, path)
        self.files.sync_folder(path.parent)

    def _write(self, file: CopiedFile) -> Path:
        """Write a verified copy under a temporary name."""
        path = self.target / file.path
        temporary = temporary_path(path)
        digest = xxh3_64()

        def chunks() -> Iterator[bytes]:
            with open(self._here(self.source / file.path), "rb", buffering=0) as opened:
                while chunk := opened.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
                    self.beat(len(chunk))

        try:
            self.files.write_new(temporary, chunks())
            self._verify(temporary, file, digest.intdigest())
        except Exception:
            self.files.remove(temporary)
            raise
        return temporary

    def _verify(self, copy: Path, file: CopiedFile, digest: int) -> None:
        if file.checksum is not None:
            try:
                SegmentReader(self.files, copy, file.checksum).verify()
            except CorruptDataError as error:
                raise CorruptDataError(
                    f"the copy of {self.source / file.path} is damaged: {error.message}",
                    file=str(self.source / file.path),
                ) from error
        elif digest != _digest(copy):
            raise CorruptDataError(
                f"{copy.parent} does not give back what was written to it",
                file=str(self.source / file.path),
            )


def _digest(path: Path) -> int:
    digest = xxh3_64()
    with open(path, "rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    return digest.intdigest()
