"""Runs a whole job in one thread without Spark: for users' tests and for our own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa

from headrace.bus import Bus, BusOptions, Fsync, StreamSpec, open_bus
from headrace.clock import ClockDeviation, SteadyClock
from headrace.closeable import Closeable
from headrace.config import (
    BusSettings,
    EpochSettings,
    JobSettings,
    PlacementSettings,
    Settings,
    StandbySettings,
    StateSettings,
    StorageSettings,
)
from headrace.config.inputs import read_inputs
from headrace.config.sections import read_outputs
from headrace.coordinator.backup import BackupCopier, BackupStatus
from headrace.coordinator.bounded_runs import bounded_bus
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deployment import Deployment, deploy
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.epoch_clock import accept_clock
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_parts import part_folders
from headrace.coordinator.job_storage import JobContext, job_storages
from headrace.coordinator.operations.recording_archive import ArchiveReader, Recording
from headrace.coordinator.placement import Slot
from headrace.coordinator.worker_host import open_host
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.graph.operators import Input, JobGraph
from headrace.records.evolution import default_values
from headrace.records.schema import normalise_schema
from headrace.remote import on_host
from headrace.runtime import exchange_server
from headrace.runtime.background import Background, InlineBackground
from headrace.runtime.exchange_file import RECORD
from headrace.runtime.exchange_network import FOLDER, NetworkAddress, NetworkExchange
from headrace.runtime.host_storage import StorageServer
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.runtime.slot import run_slot
from headrace.runtime.slot_host import SlotHost, release_all
from headrace.sources.bounded_bus import saved_inputs, share_sources, underlying_bus
from headrace.state.rocksdb import RocksDBSettings
from headrace.testing.committed_view import CommittedView
from headrace.testing.replay import Replay
from headrace.testing.script import DriverCrash, Item, ManualClock, SlotCrash, call_at, play

_SMALL_STORES = RocksDBSettings(memtable_bytes=1 << 20)
"""A filter over each memtable is cleared when a database is opened and flushed, by this size."""


class LocalRunner:
    """Slots as objects.

    Args:
        open_slot: makes the process of a slot, by number.
        slots: how many there are.
        tries: how often a slot is run again when its process dies.
    """

    def __init__(self, open_slot: Callable[[int], SlotHost], slots: int, tries: int = 4) -> None:
        self._open, self._count, self._tries = open_slot, slots, tries
        self._hosts: dict[int, SlotHost] = {}
        self.history: list[SlotOrder] = []
        self.down: set[int] = set()
        self._known: list[int] = []
        self.doubled: Literal["first", "last"] | None = None

    def host(self, slot: int) -> SlotHost:
        """Return the process of a slot, starting it when it is dead."""
        if slot not in self._hosts:
            self._hosts[slot] = self._open(slot)
        return self._hosts[slot]

    def slots(self) -> list[Slot]:
        """Return every slot with the identity of its host; each releases its stores."""
        hosts = {number: self.host(number) for number in self._answering()}
        for host in hosts.values():
            release_all(host)
        self._known = list(hosts)
        return [Slot(number, host.host, host.state_dir.name) for number, host in hosts.items()]

    def _answering(self) -> list[int]:
        return [number for number in range(self._count) if number not in self.down]

    def has_changed(self) -> bool:
        """Say whether slots have gone or come back."""
        return self._answering() != self._known

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run the orders one by one; a slot whose process dies is run again.

        Slots in
        ``down`` do not answer: their host is lost. With ``doubled`` two attempts of each order
        answer, and that report is returned.
        """
        if self.has_changed():
            raise MisplacedError(f"slots have changed: {len(self._known)} were known")
        if self.doubled is None:
            return [self.run_one(order) for order in orders]
        both = [(self.run_one(order), self.run_one(order)) for order in orders]
        return [pair[0 if self.doubled == "first" else 1] for pair in both]

    def run_one(self, order: SlotOrder) -> SlotReport:
        """Run one order until an attempt answers."""
        self.history.append(order)
        for _ in range(self._tries):
            try:
                report = run_slot(order, self.host(order.slot))
            except SlotCrash:
                self.kill(order.slot)
                continue
            if order.renew:
                self.kill(order.slot)
            return report
        raise UnavailableError(f"slot {order.slot} died {self._tries} times", slot=order.slot)

    def kill(self, slot: int) -> None:
        """End a slot's process: its memory goes, its disk stays."""
        host = self._hosts.pop(slot, None)
        if host is not None:
            for kept in host.runtimes.values():
                kept.task.abandon_calls()
            host.loop.close()
            host.registry.close_all()
            host.standbys.close()

    def kill_all(self, slots: Sequence[int] | None = None) -> None:
        """End several processes, all when none are named."""
        for slot in list(self._hosts) if slots is None else slots:
            self.kill(slot)


class TestDriver(CommittedView, Closeable):
    """A job with its bus, its state and its clock, for tests.

    Use it as a context manager, or call ``close``. Make the job's input streams with ``create``
    before the first ``feed``; the job starts at the first ``advance``.

    Args:
        job: made by ``headrace.job``.
        tasks: of each keyed stage.
        slots: number of processes that run the tasks.
        key_groups: of the job.
        max_rows, max_bytes: of an epoch.
        overlay_bytes: of one task's changes in an epoch.
        hosts: number of state directories that the slots are divided among.
        seed: of names.
        home: folder for files; by default a temporary one.
        memory_bus: keep streams in memory instead of files.
        background: makes the compaction of a slot's process; by default it runs at once.
        durability: as the setting ``state.durability``; with ``backup``, copies are only made by
            ``copy``.
        standby_copies: copies of each task's RocksDB stores on other hosts.
        job_settings: other settings of the section ``job``, such as ``call_timeout_s``.
        inputs: what replaces streams, as the tables ``[inputs.NAME]`` of the settings.
        outputs: what replaces outputs, as the tables ``[outputs.NAME]`` of the settings.
        placement: settings of the section ``placement``; by default the job does not wait for a
            lost host.
        storage: an address as of the setting ``storage.address``, where the job's files are.
        bus: an address as of the setting ``bus.address``, where its streams are.

    Attributes:
        hosts: number of hosts; ``slots`` likewise.
        job: the job; after a crash of the driver, you can set another version, which starts with
            the next ``start``.
        clock: of everything.
        bus: the streams.
        home: folder of files.
        settings: of the run; changes take effect at the next ``start``.
    """

    __test__ = False

    def __init__(  # noqa: PLR0913 - each is a knob of its own, by name, with a default
        self,
        job: Job,
        *,
        tasks: int = 4,
        slots: int = 2,
        key_groups: int = 64,
        max_rows: int = 1_000_000,
        max_bytes: int = 1 << 30,
        overlay_bytes: int = 128 << 20,
        hosts: int = 1,
        seed: int = 0,
        home: Path | None = None,
        memory_bus: bool = True,
        background: Callable[[], Background] = InlineBackground,
        durability: str = "epoch",
        keep_epochs: int = 100,
        start: str = "earliest",
        standby_copies: int = 0,
        job_settings: Mapping[str, Any] | None = None,
        placement: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        outputs: Mapping[str, Mapping[str, Any]] | None = None,
        storage: str = "",
        bus: str = "",
    ) -> None:
        self.job, self.slots, self.hosts = job, slots, hosts
        self._background = background
        self._own_home = home is None
        self.home = Path(tempfile.mkdtemp(prefix="headrace-")) if home is None else home
        self.clock = ManualClock(seed=seed)
        self._steady = SteadyClock(self.clock)
        self.settings = Settings(
            home=self.home,
            inputs=read_inputs(inputs or {}),
            outputs=read_outputs(outputs or {}),
            job=JobSettings(
                tasks=tasks, key_groups=key_groups, start=start, **(job_settings or {})
            ),
            placement=PlacementSettings(**{"wait_s": 0.0, **(placement or {})}),
            standby=StandbySettings(enabled=standby_copies > 0, copies=max(1, standby_copies)),
            storage=StorageSettings(address=storage),
            bus=BusSettings(address=bus),
            epoch=EpochSettings(max_rows=max_rows, max_bytes=max_bytes),
            state=StateSettings(
                dir=self.state_dir(0),
                overlay_bytes=overlay_bytes,
                durability=durability,
                keep_epochs=keep_epochs,
            ),
        )
        self._memory_bus = memory_bus and not bus
        self.bus = self._open_bus()
        self._files = Files(sync=False)
        self.runner = self._new_runner(job.name)
        self.runners = {job.name: self.runner}
        self._parts: list[Coordinator] = []
        self._turn = 0
        self.copier: BackupCopier | None = None
        self._server: StorageServer | None = None
        self._exchanges: dict[Path, exchange_server.ExchangeServer] = {}
        self._replay: Replay | None = None

    def _open_bus(self) -> Bus:
        address = "memory:" if self._memory_bus else str(self.settings.bus_dir)
        return open_bus(address, BusOptions(fsync=Fsync.NEVER), clock=self._steady)

    def _new_runner(self, part: str) -> LocalRunner:
        return LocalRunner(lambda slot: self._open_slot(part, slot), self.slots)

    def _open_slot(self, part: str, slot: int) -> SlotHost:
        state_dir = self.state_dir(slot % self.hosts)
        storage = on_host(job_storages(self.settings, part).storage, state_dir)
        copy = job_storages(self.settings, self.job.name).copy
        if self._server is not None:
            storage = self._server.served.path(state_dir, part)
        opened = open_host(
            storage=storage,
            bus=saved_inputs(underlying_bus(self.bus), storage),
            state_dir=state_dir,
            clock=self.clock,
            files=self._files,
            copy=None if copy is None else on_host(copy, state_dir),
            cache_bytes=self.settings.state.cache_bytes,
            background=self._background(),
            background_of_standbys=self._background(),
            network=NetworkAddress("127.0.0.1", os.getpid()) if self.hosts > 1 else None,
            rocksdb=_SMALL_STORES,
        )
        if isinstance(opened.exchange, NetworkExchange):
            self._serve_exchange(state_dir / FOLDER / storage.name)
        return opened

    def _serve_exchange(self, folder: Path) -> None:
        """Serve what a host sends to others from here: a process for it takes 0.2 s to begin."""
        if folder in self._exchanges:
            if (folder / RECORD).exists():
                return
            self._exchanges[folder].close()  # of a host whose disk is lost
        self._exchanges[folder] = exchange_server.begin(folder, "127.0.0.1")

    @property
    def storage(self) -> Path:
        """The job's folder."""
        return job_storages(self.settings, self.job.name).storage

    def state_dir(self, host: int) -> Path:
        """The folder of a host's stores."""
        return self.home / f"host-{host}"

    def create(
        self,
        stream: str,
        columns: pa.Schema | Mapping[str, pa.DataType],
        *,
        partitions: int = 1,
        time: str | None = None,
        key: Sequence[str] = (),
        compact: bool = False,
    ) -> None:
        """Make an input stream."""
        schema = columns if isinstance(columns, pa.Schema) else pa.schema(list(columns.items()))
        stored = normalise_schema(schema)
        spec = StreamSpec(stream, partitions, stored, time, tuple(key), compact=compact)
        self.bus.create(spec)

    def feed(
        self,
        stream: str,
        rows: Iterable[Mapping[str, Any]] | pa.Table,
        partition: int | None = None,
    ) -> None:
        """Append records; by key if the stream has one and no partition is given.

        A column that a row leaves out is null; a column that was added to the stream has its
        default.

        Raises:
            InvalidInputError: a column that the stream does not have, or a value that does
                not fit.
        """
        target = self.bus.stream(stream)
        table = rows if isinstance(rows, pa.Table) else _table(list(rows), target.spec)
        if partition is None:
            target.append_rows(table)
            return
        target.append(partition, table)

    @classmethod
    def replay(cls, job: Job, path: Path | str, **options: Any) -> Self:
        """Return a driver before a recorded epoch, with the rows that it read.

        ``advance`` runs that epoch and no other, and raises what it raised. Nothing leaves the
        test: streams are in memory, and sinks get nothing.

        Args:
            job: its current code, which can differ in ways that its state can follow.
            path: written by ``headrace jobs replay JOB --epoch N``.
            **options: of a driver, such as ``slots``.

        Raises:
            CorruptDataError: the file is damaged.
            InvalidInputError: there is no such file, or it belongs to another job.
        """
        with ArchiveReader(Path(path)) as archive:
            replay = Replay(archive, job, Path(path))
            driver = cls(job, **replay.options(), **options)
            try:
                driver._replay = replay
                driver.clock.advance(replay.recording.plan.time_ms - driver.clock.now_ms())
                replay.load(archive, driver._context)
            except BaseException:
                driver.close()
                raise
        return driver

    @property
    def recording(self) -> Recording | None:
        """What is replayed: the epoch, and its error; ``None``: nothing."""
        return None if self._replay is None else self._replay.recording

    def start(self) -> Coordinator:
        """Start a driver of all parts; a new one takes over from the one before.

        Returns:
            The coordinator of the first part; most jobs have only one.
        """
        graph = self.job.build()
        if self._replay is None:
            self.bus = bounded_bus(graph, self._context)
        deployed = self._deployed(graph)
        storages = (one.storage.root for one in deployed)
        share_sources(self.bus, storages, self._files)
        copiers = [hook for hook in deployed[0].hooks if isinstance(hook, BackupCopier)]
        self.copier = copiers[0] if copiers else None
        self._disconnect()
        self._serve(deployed[0])
        started, context = [], replace(self._context, clock=self._steady)
        try:
            for one in deployed:
                runner = self.runners.setdefault(one.plan.job, self._new_runner(one.plan.job))
                started.append(one.coordinator(runner, context))
                if self._replay is not None:
                    self._replay.prepare(started[-1])
                started[-1].start()
        except BaseException:
            for coordinator in started:
                coordinator.close()
            raise
        self._parts, self._turn = started, 0
        return started[0]

    def _deployed(self, graph: JobGraph) -> Sequence[Deployment]:
        context = self._context
        return deploy(graph, context) if not self._replay else self._replay.deployed(graph, context)

    @property
    def _context(self) -> JobContext:
        return JobContext(self.settings, self.job.name, self.bus, self._files, self.clock)

    def _serve(self, one: Deployment) -> None:
        """Serve a storage on the disk of the driver's host to slots, where these are on several."""
        if one.storage_host and self.hosts > 1:
            root = one.storage.root
            self._server = StorageServer(root, one.storage_host, "127.0.0.1", self._files)
            self._server.served.connect()

    def _disconnect(self) -> None:
        for coordinator in self._parts:
            coordinator.close()
        self._parts = []
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def coordinator(self) -> Coordinator:
        """The driver of the first part, started if there is none."""
        return self.parts[0]

    @property
    def parts(self) -> list[Coordinator]:
        """The drivers of all parts of the job, senders first, started if there are none.

        There is one, except for jobs with ``partition_by(..., via="bus")``.
        """
        if not self._parts:
            self.start()
        return self._parts

    def advance(self, *, part: int | None = None, force: bool = False) -> EpochSummary | None:
        """Run one epoch of one part, the parts in turn; ``None`` if there is nothing to do.

        Args:
            part: only this part, by its number in ``parts``.
            force: run every task even if nothing is due.
        """
        parts = self.parts
        if self._replay is not None and self._replay.is_over(parts[0].state.epoch):
            return None
        if part is not None:
            return parts[part].advance(force=force)
        for _ in parts:
            coordinator = parts[self._turn % len(parts)]
            self._turn += 1
            summary = coordinator.advance(force=force)
            if summary is not None:
                return summary
        return None

    def run(self, limit: int = 10_000) -> int:
        """Run epochs until nothing is left to do; returns how many.

        Raises:
            InvalidInputError: after ``limit`` epochs there is still something to do.
        """
        for epochs in range(limit):
            if self.advance() is None:
                return epochs
        raise InvalidInputError(f"still not idle after {limit} epochs")

    def play(self, stream: str, script: Iterable[Mapping[str, Any] | Item]) -> None:
        """Feed rows, with crashes and other events as items between them.

        Make items with functions of ``headrace.testing``: ``crash``, ``restart``,
        ``advance_clock``, ``jump_clock``, ``idle``, ``epoch``, ``settled``, ``finish``, and
        ``rows`` for rows of another stream or of one partition. Rows wait for the next item; at
        the end, epochs run until there is nothing to do.

        Args:
            stream: the stream of rows without ``rows``.
            script: rows and items, in the order in which they happen.

        Raises:
            InvalidInputError: a crash at a point that was not passed, or rows that do not fit.
        """
        play(self, stream, script)

    def idle_ms(self, stream: str) -> int:
        """Return the idle timeout of a stream's partitions, ms.

        Raises:
            InvalidInputError: no input that reads it has ``idle=``.
        """
        inputs = [o for o in self.job.build().operators if isinstance(o, Input)]
        found = [o.idle_ms for o in inputs if o.stream == stream and o.idle_ms is not None]
        if not found:
            raise InvalidInputError(
                f"stream {stream!r} is never idle: no input of job {self.job.name!r} reads it "
                'with idle=, such as g.input("events", time="at", idle="1m")'
            )
        return max(found)

    def finish(self) -> int:
        """End the inputs here: run to their ends, close all windows; return how many epochs."""
        for coordinator in self.parts:
            coordinator.end_at_present()
        return self.run()

    def crash(self, *, lose_hosts: Sequence[int] = ()) -> None:
        """End every process without warning, with or without the disks of some hosts."""
        self._disconnect()  # as the end of a process ends its connections
        for runner in self.runners.values():
            runner.kill_all()
        if not self._memory_bus:  # a bus in memory stands for a broker, which lives on
            self.bus.close()
            self.bus = self._open_bus()
        for host in lose_hosts:
            shutil.rmtree(self.state_dir(host), ignore_errors=True)

    @property
    def clock_doubt(self) -> ClockDeviation | None:
        """Why the driver does not believe the clock, after ``clock.jump``; ``None``: it does."""
        return self._steady.doubt

    def accept_clock(self) -> None:
        """Let the driver believe the clock as it is, as ``headrace jobs accept-clock`` does."""
        accept_clock(self._steady, self.storage, self._files)

    def lose_host(self, host: int) -> None:
        """Lose a host: its processes end, and its slots no longer answer."""
        slots = [slot for slot in range(self.slots) if slot % self.hosts == host]
        for runner in self.runners.values():
            runner.kill_all(slots)
            runner.down.update(slots)

    def bring_back(self, host: int) -> None:
        """Bring a lost host back, with the contents of its disk."""
        slots = {slot for slot in range(self.slots) if slot % self.hosts == host}
        for runner in self.runners.values():
            runner.down -= slots

    def advance_with_crash(
        self, point: str, nth: int = 1, step: Callable[[], object] | None = None
    ) -> bool:
        """Run one epoch, or another step, in which the process dies at a fault point.

        Points that start with ``slot.`` kill the slot's process, which runs again as with Spark;
        all others kill the driver, and with it everything.

        Args:
            point: its name.
            nth: at which pass of the point.
            step: what to run; by default an epoch.

        Returns:
            Whether the point was passed n times, so that the process really died.
        """

        def die() -> None:
            raise SlotCrash(point) if point.startswith("slot.") else DriverCrash(point)

        with call_at(point, die, nth) as passes:
            try:
                (step or self.advance)()
            except DriverCrash:
                self.crash()
        return len(passes) >= nth

    def copy(self) -> BackupStatus:
        """Copy the latest epoch to job_dir now; only with the durability ``backup``.

        Raises:
            InvalidInputError: there is no copy with another durability.
        """
        if self.copier is None:
            raise InvalidInputError("nothing is copied; expected durability='backup(30s)'")
        self.copier.step(force=True)
        return self.copier.status

    def _folders(self) -> list[Path]:
        return [self.storage, *part_folders(self.settings, self.job.name)]

    def close(self) -> None:
        """End everything and remove the temporary folder."""
        self.crash()
        self.bus.close()
        for folder, server in self._exchanges.items():
            server.close()
            (folder / RECORD).unlink(missing_ok=True)
        if self._own_home:
            shutil.rmtree(self.home, ignore_errors=True)


def _table(rows: list[Mapping[str, Any]], spec: StreamSpec) -> pa.Table:
    schema, added = spec.schema, default_values(spec.schema, dict(spec.added))
    unknown = sorted({name for row in rows for name in row} - set(schema.names))
    if unknown:
        raise InvalidInputError(
            f"rows have columns {unknown} that the stream has not; expected {schema.names}"
        )
    try:
        return pa.Table.from_pylist([{**added, **row} for row in rows], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(f"rows do not fit the columns of the stream: {error}") from error
