"""What goes wrong outside of the code under test, where no fault point stands for it."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.changes import context_of

from headrace.control import client
from headrace.coordinator import coordinator, epoch, epoch_placement
from headrace.coordinator.backup import open_copier
from headrace.coordinator.host_state import Standby
from headrace.coordinator.inspection import job_reader
from headrace.coordinator.leader_lease import LeaderLease
from headrace.coordinator.outputs import publish_outputs
from headrace.errors import UnavailableError
from headrace.faults import injected
from headrace.files import Bytes, DiskFullError, Files
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment import SegmentReader
from headrace.state.segment_writer import SegmentWriter
from headrace.testing import TestDriver
from headrace.testing.script import DriverCrash, SlotCrash

__all__ = [
    "Died",
    "SteppedFiles",
    "Turns",
    "answer_posts",
    "before_sources_open",
    "cut_reports",
    "die_at",
    "forge_segment",
    "hanging_lease",
    "loopback_is_far",
    "no_route",
    "refuse_lease_once",
    "refuse_loading_once",
    "refuse_publishing_once",
    "refused_folder",
    "refused_merges",
    "stall_files",
    "standbys_beside_their_tasks",
    "wait_at_the_start",
]


class Died(BaseException):
    """Raised where a process dies; nothing may catch it."""


def die_at(driver: TestDriver, points: Sequence[str], step: Callable[[], object]) -> list[str]:
    """Go through a step in which a process dies where each of some points is first passed.

    As with ``driver.advance_with_crash``, but slots may die on the way to the driver's own end.

    Returns:
        The points that were passed.
    """
    died: list[str] = []

    def die(point: str) -> None:
        if point in points and point not in died:
            died.append(point)
            raise SlotCrash(point) if point.startswith("slot.") else DriverCrash(point)

    with injected(die, tuple(points)):
        try:
            step()
        except DriverCrash:
            driver.crash()
    return died


class Turns:
    """Lets one of several threads run at a time, and hands over at steps by chance."""

    def __init__(self, dice: random.Random, actors: int) -> None:
        self._dice, self._left = dice, list(range(actors))
        self._turn, self._changed = 0, threading.Condition()
        self.handed_over = 0

    def step(self, me: int, *, is_over: bool = False) -> None:
        """Maybe let others run first; ``is_over``: this one needs no turn any more."""
        with self._changed:
            if is_over:
                self._left.remove(me)
            if self._left and (is_over or self._dice.random() < 0.15):
                self._turn = self._dice.choice(self._left)
                self.handed_over += 1
                self._changed.notify_all()
            if not is_over:
                self.wait(me)

    def wait(self, me: int) -> None:
        """Return when it is the turn of one."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._turn == me, timeout=60)


class SteppedFiles(Files):
    """Files of a process that calls back between its operations, to be frozen or to die there."""

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__(sync=False)
        self._step = step

    def append(self, descriptor: int, chunks: Iterable[Bytes]) -> None:
        first, *others = chunks
        self._step()
        super().append(descriptor, [first])
        self._step()
        super().append(descriptor, others)
        self._step()

    def write_new(self, path: Path, chunks: Iterable[Bytes], *, durable: bool = True) -> int:
        self._step()
        return super().write_new(path, chunks, durable=durable)

    def publish(
        self,
        path: Path,
        data: bytes,
        on_written: Callable[[], None] | None = None,
    ) -> bool:
        won = super().publish(path, data, on_written or self._step)
        self._step()
        return won

    def link(self, temporary: Path, path: Path, *, durable: bool = True) -> None:
        self._step()
        super().link(temporary, path, durable=durable)

    def read(self, path: Path) -> bytes:
        self._step()
        return super().read(path)

    def names(self, folder: Path | str) -> list[str]:
        found = super().names(folder)
        self._step()
        return found

    def rename(self, path: Path, name: Path) -> None:
        self._step()
        super().rename(path, name)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_file(self, descriptor: int) -> None:
        self._step()

    def sync_folder(self, folder: Path) -> None:
        self._step()


def refuse_publishing_once(patch: pytest.MonkeyPatch) -> list[Any]:
    """Let the bus refuse the outputs of one epoch; returns what was refused."""
    refused: list[Any] = []

    def refuse_once(*args: Any) -> int:
        if not refused:
            refused.append(args)
            raise UnavailableError("the disk is full")
        return publish_outputs(*args)

    patch.setattr(coordinator, "publish_outputs", refuse_once)
    return refused


@contextmanager
def cut_reports(driver: TestDriver) -> Iterator[None]:
    """Let the last report of each level be lost on the way to the driver."""
    whole = driver.runner.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.runner, "run", lambda orders: whole(orders)[:-1])
        yield


def refuse_lease_once(patch: pytest.MonkeyPatch) -> None:
    """Let the disk of job_dir be full when a driver next renews its lease."""
    renew, refusals = LeaderLease.renew, ["once"]

    def full(lease: LeaderLease) -> None:
        if refusals:
            refusals.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        renew(lease)

    patch.setattr(LeaderLease, "renew", full)


def refuse_loading_once(patch: pytest.MonkeyPatch) -> list[str]:
    """Let the disk be full when RocksDB is next given sorted files; returns what was refused."""
    load, refused = RocksDBBackend.load, list[str]()

    def loading(backend: RocksDBBackend, store: str, batches: Any) -> None:
        if not refused:
            refused.append(store)
            raise DiskFullError("no space left")
        load(backend, store, batches)

    patch.setattr(RocksDBBackend, "load", loading)
    return refused


@contextmanager
def hanging_lease() -> Iterator[None]:
    """Let job_dir not answer a driver that takes its lease, until the block is over."""
    hang, take = threading.Event(), LeaderLease.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LeaderLease, "take", lambda lease, number: hang.wait() and take(lease, number)
        )
        try:
            yield
        finally:
            hang.set()


def wait_at_the_start(driver: TestDriver) -> Any:
    """Hold the lease of a driver that has no epoch to copy yet; returns what renews it."""
    copier = open_copier(context_of(driver))
    assert copier is not None
    copier.begin(copier.before_generation() + 1)
    return copier._renew


def stall_files(driver: TestDriver, files: Files) -> None:
    """Have a driver that is not started use another file system."""
    driver._files = files


def standbys_beside_their_tasks(patch: pytest.MonkeyPatch) -> None:
    """Place each standby where none may be: on the host of its task."""

    def beside(actives: Any, hosts: Any, before: Any, copies: int) -> Any:
        return {name: (Standby(min(own)),) for name, own in actives.items()}

    patch.setattr(epoch_placement, "place_standbys", beside)


def before_sources_open(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between the look at manifests and the opening of the files they name."""
    opened = job_reader.open_sources

    def late(*args: Any) -> Any:
        act()
        return opened(*args)

    patch.setattr(job_reader, "open_sources", late)


@contextmanager
def refused_merges() -> Iterator[None]:
    """Let the driver find that no merged file fits any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "is_applicable", lambda task, merged: False)
        yield


def forge_segment(path: Path) -> None:
    """Put a valid segment in the place of another: of its size, with one value changed in each."""
    files = Files(sync=False)
    held = SegmentReader(files, path)
    forged = path.with_name("forged")
    writer = SegmentWriter(files, forged, held.header)
    for section in held.sections:
        groups = section.first_group, section.last_group + 1
        for keys, values in held.batches(section.store, groups):
            last = values[-1]
            changed = [*values[:-1], last and last[:-1] + bytes([last[-1] ^ 1])]
            writer.add(section.stage, section.task, section.store, keys, changed)
    writer.close()
    forged.replace(path)


def loopback_is_far(patch: pytest.MonkeyPatch) -> None:
    """Take no address for one of this host."""
    patch.setattr(client, "_is_loopback", lambda address: False)


def no_route(patch: pytest.MonkeyPatch) -> None:
    """Let no driver be reached by its API."""

    def unreachable(asked: client.Client, path: str, **body: object) -> Any:
        raise client.UnreachableError("no route", job=asked.job)

    patch.setattr(client.Client, "post", unreachable)


def answer_posts(patch: pytest.MonkeyPatch, answer: Any) -> None:
    """Let drivers answer everything that is asked of their API in this way."""
    patch.setattr(client.Client, "post", lambda *_: answer)


@contextmanager
def refused_folder(named: str) -> Iterator[None]:
    """Let no folder of this name be listed."""
    names = Files.names

    def refused(files: Files, folder: Path) -> list[str]:
        if folder.name == named:
            raise PermissionError(13, "Permission denied", str(folder))
        return names(files, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "names", refused)
        yield
