"""Runs a whole job in one thread without Spark: for users' tests and for our own.

The code is the one that runs in production, from the coordinator to the stores; only the
runner, the clock and fsync are replaced.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.options import BusOptions, Fsync
from headrace.bus.spec import StreamSpec
from headrace.closing import Closing
from headrace.config import (
    EpochSettings,
    JobSettings,
    PlacementSettings,
    Settings,
    StandbySettings,
    StateSettings,
)
from headrace.config.inputs import read_inputs
from headrace.coordinator.backup.copier import Copier, CopyStatus
from headrace.coordinator.backup.places import places
from headrace.coordinator.bounded import sourced_bus, tell_parts
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deploy import Deployment, deploy
from headrace.coordinator.hosting import open_host
from headrace.coordinator.parts import part_folders
from headrace.coordinator.recording.archive import ArchiveReader
from headrace.coordinator.recording.form import Recording
from headrace.coordinator.summary import EpochSummary
from headrace.errors import InvalidInputError
from headrace.faults import injected
from headrace.files import Files
from headrace.graph.jobs import Job
from headrace.graph.operators import Input
from headrace.records.evolution import default_values
from headrace.records.schema import normalise_schema
from headrace.sources.sourced import plain, saved
from headrace.task.background import Background, InlineBackground
from headrace.task.slot_host import SlotHost
from headrace.testing.clock import ManualClock
from headrace.testing.local_runner import LocalRunner, SlotCrash
from headrace.testing.looking import Looking
from headrace.testing.replaying import Replay
from headrace.testing.script import Item, play


class DriverCrash(BaseException):
    """Raised by a fault hook: the driver dies here."""


class TestDriver(Looking, Closing):
    """A job with its bus, its state and its clock, all in reach of a test.

    Use as a context manager, or call ``close``. Streams that the job reads are made with
    ``create`` before the first ``feed``; the job starts at the first ``advance``.

    Args:
        job: made by ``headrace.job``.
        tasks: of each keyed stage.
        slots: how many processes the tasks are spread over.
        key_groups: of the job.
        max_rows, max_bytes: of an epoch.
        overlay_bytes: of one task's changes in an epoch.
        hosts: state directories that the slots are dealt to.
        seed: of names.
        home: where files go; a temporary folder when left out.
        memory_bus: keep streams in memory instead of files.
        background: makes what a slot's process merges files in; at once when left out.
        durability: as the setting ``state.durability``; of ``backup`` copies are made by
            ``copy`` only, when the test wants one.
        standby_copies: copies of each task's RocksDB stores on other hosts.
        job_settings: further settings of the section ``job``, such as ``call_timeout_s``.
        inputs: what stands for streams, as the tables ``[inputs.NAME]`` of the settings say it.
        placement: settings of the section ``placement``; a lost host is not waited for unless they
            say so.
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
    ) -> None:
        self._job, self._slots, self._hosts = job, slots, hosts
        self._background = background
        self._own_home = home is None
        self.home = Path(tempfile.mkdtemp(prefix="headrace-")) if home is None else home
        self.clock = ManualClock(seed=seed)
        self.settings = Settings(
            home=self.home,
            inputs=read_inputs(inputs or {}),
            job=JobSettings(
                tasks=tasks, key_groups=key_groups, start=start, **(job_settings or {})
            ),
            placement=PlacementSettings(**{"wait_s": 0.0, **(placement or {})}),
            standby=StandbySettings(enabled=standby_copies > 0, copies=max(1, standby_copies)),
            epoch=EpochSettings(max_rows=max_rows, max_bytes=max_bytes),
            state=StateSettings(
                dir=self.state_dir(0),
                overlay_bytes=overlay_bytes,
                durability=durability,
                keep_epochs=keep_epochs,
            ),
        )
        self._memory_bus = memory_bus
        self.bus = self._open_bus()
        self._files = Files(sync=False)
        self.runner = self._new_runner(job.name)
        self.runners = {job.name: self.runner}
        self._parts: list[Coordinator] = []
        self._turn = 0
        self.copier: Copier | None = None
        self._replay: Replay | None = None

    def _open_bus(self) -> Bus:
        address = "memory:" if self._memory_bus else str(self.settings.bus_dir)
        return open_bus(address, BusOptions(fsync=Fsync.NEVER), clock=self.clock)

    def _new_runner(self, part: str) -> LocalRunner:
        return LocalRunner(lambda slot: self._open_slot(part, slot), self._slots)

    def _open_slot(self, part: str, slot: int) -> SlotHost:
        return open_host(
            storage=places(self.settings, part).storage,
            bus=saved(plain(self.bus), places(self.settings, part).storage),
            state_dir=self.state_dir(slot % self._hosts),
            clock=self.clock,
            files=self._files,
            copy=places(self.settings, self._job.name).copy,
            cache_bytes=self.settings.state.cache_bytes,
            background=self._background(),
            background_of_standbys=self._background(),
        )

    @property
    def storage(self) -> Path:
        """The job's folder."""
        return places(self.settings, self._job.name).storage

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
        """Append records; by key where the stream has one and no partition is named.

        A column that a row leaves out is null; one that was added to the stream has its default.

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
        """Return a driver that stands before an epoch that was recorded, with what it read.

        ``advance`` runs that epoch and no other, and raises what it raised. Nothing leaves the
        test: streams are in memory, and sinks get nothing.

        Args:
            job: as it is now; may have changed in ways that its state can follow.
            path: written by ``headrace jobs replay JOB --epoch N``.
            **options: of a driver, such as ``slots``.

        Raises:
            CorruptDataError: the file is damaged.
            InvalidInputError: there is no such file, or it is of another job.
        """
        with ArchiveReader(Path(path)) as archive:
            replay = Replay(archive, job, Path(path))
            driver = cls(job, **replay.options(), **options)
            try:
                driver._replay = replay
                driver.clock.advance(replay.recording.plan.time_ms - driver.clock.now_ms())
                replay.load(archive, driver.bus, driver.settings, driver.clock, driver._files)
            except BaseException:
                driver.close()
                raise
        return driver

    @property
    def recording(self) -> Recording | None:
        """What is replayed: which epoch, and the error that it ended with; ``None``: nothing."""
        return None if self._replay is None else self._replay.recording

    def start(self) -> Coordinator:
        """Start a driver of all parts; a new one takes over from the one before.

        Returns:
            The coordinator of the first part, which most jobs have only.
        """
        if self._replay is None:
            graph = self._job.build()
            self.bus = sourced_bus(graph, self.bus, self.settings, self._files, self.clock)
        deployed = self._deployed()
        storages = (one.storage.root for one in deployed)
        tell_parts(self.bus, storages, self._files, self.clock)
        self.copier = deployed[0].copier
        self._let_go()
        started = []
        try:
            for one in deployed:
                runner = self.runners.setdefault(one.plan.job, self._new_runner(one.plan.job))
                started.append(one.coordinator(runner, self.bus, self.clock, self.settings))
                if self._replay is not None:
                    self._replay.prepare(started[-1])
                started[-1].start()
        except BaseException:
            for coordinator in started:
                coordinator.close()
            raise
        self._parts, self._turn = started, 0
        return started[0]

    def _deployed(self) -> Sequence[Deployment]:
        parts = (self._job.build(), self.bus, self.settings, self.clock, self._files)
        return deploy(*parts) if self._replay is None else self._replay.deployed(*parts)

    def _let_go(self) -> None:
        for coordinator in self._parts:
            coordinator.close()
        self._parts = []

    @property
    def coordinator(self) -> Coordinator:
        """The driver of the first part, started when there is none."""
        return self.parts[0]

    @property
    def parts(self) -> list[Coordinator]:
        """The drivers of all parts of the job, senders first, started when there are none.

        There is one, but for jobs with ``partition_by(..., via="bus")``.
        """
        if not self._parts:
            self.start()
        return self._parts

    def advance(self, *, part: int | None = None, force: bool = False) -> EpochSummary | None:
        """Run one epoch of one part, each in turn; ``None`` when there is nothing to do.

        Args:
            part: only of this one, by its number in ``parts``.
            force: run every task even when nothing is due.
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
            InvalidInputError: after ``limit`` epochs there still is something to do.
        """
        for epochs in range(limit):
            if self.advance() is None:
                return epochs
        raise InvalidInputError(f"still not idle after {limit} epochs")

    def play(self, stream: str, script: Iterable[Mapping[str, Any] | Item]) -> None:
        """Feed rows, with crashes and other things that happen as items among them.

        Items are made by functions of ``headrace.testing``: ``crash``, ``restart``,
        ``advance_clock``, ``idle``, ``epoch``, ``settled``, ``finish``, and ``rows`` for those of
        another stream or of one partition. Rows wait for the next item; at the end epochs run
        until there is nothing to do.

        Args:
            stream: that rows without ``rows`` go to.
            script: rows and items, in the order in which they happen.

        Raises:
            InvalidInputError: a crash at a point that was not passed, or rows that do not fit.
        """
        play(self, stream, script)

    def idle_ms(self, stream: str) -> int:
        """Return after how long without rows a partition of a stream is idle, ms.

        Raises:
            InvalidInputError: no input that reads it has ``idle=``.
        """
        inputs = [o for o in self._job.build().operators if isinstance(o, Input)]
        found = [o.idle_ms for o in inputs if o.stream == stream and o.idle_ms is not None]
        if not found:
            raise InvalidInputError(
                f"stream {stream!r} is never idle: no input of job {self._job.name!r} reads it "
                'with idle=, such as g.input("events", time="at", idle="1m")'
            )
        return max(found)

    def finish(self) -> int:
        """End the inputs here: run to their ends, close all windows; returns the epochs."""
        for coordinator in self.parts:
            coordinator.end_at_present()
        return self.run()

    def crash(self, *, lose_hosts: Sequence[int] = ()) -> None:
        """End every process without warning; with the disks of some hosts, if wanted."""
        self._let_go()  # as the end of a process ends its connections
        for runner in self.runners.values():
            runner.kill_all()
        if not self._memory_bus:  # a bus in memory stands for a broker, which lives on
            self.bus.close()
            self.bus = self._open_bus()
        for host in lose_hosts:
            shutil.rmtree(self.state_dir(host), ignore_errors=True)

    def lose_host(self, host: int) -> None:
        """Let a host be gone: its processes end, and its slots answer no more."""
        slots = [slot for slot in range(self._slots) if slot % self._hosts == host]
        for runner in self.runners.values():
            runner.kill_all(slots)
            runner.down.update(slots)

    def bring_back(self, host: int) -> None:
        """Let a lost host be there again, with what its disk holds."""
        slots = {slot for slot in range(self._slots) if slot % self._hosts == host}
        for runner in self.runners.values():
            runner.down -= slots

    def advance_with_crash(
        self, point: str, nth: int = 1, step: Callable[[], object] | None = None
    ) -> bool:
        """Run one epoch, or another step, in which the process dies at a pass of a fault point.

        Points that begin with ``slot.`` kill the slot's process, which is run again as Spark
        would; all others kill the driver, and with it everything.

        Args:
            point: its name.
            nth: at which pass.
            step: what to do; an epoch when left out.

        Returns:
            Whether the point was passed n times, so that something really died.
        """
        seen = 0

        def hook(name: str) -> None:
            nonlocal seen
            if name == point:
                seen += 1
                if seen == nth:
                    raise SlotCrash(point) if name.startswith("slot.") else DriverCrash(point)

        with ExitStack() as stack:
            stack.enter_context(injected(hook, (point,)))
            try:
                (step or self.advance)()
            except DriverCrash:
                self.crash()
        return seen >= nth

    def copy(self) -> CopyStatus:
        """Copy the newest epoch to job_dir now; only with a durability of ``backup``.

        Raises:
            InvalidInputError: there is no copy with another durability.
        """
        if self.copier is None:
            raise InvalidInputError("nothing is copied; expected durability='backup(30s)'")
        self.copier.step(force=True)
        return self.copier.status

    def _folders(self) -> list[Path]:
        return [self.storage, *part_folders(self.settings, self._job.name)]

    def close(self) -> None:
        """End everything and remove the temporary folder."""
        self.crash()
        self.bus.close()
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
