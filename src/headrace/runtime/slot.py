"""Runs one slot's part of one level of an epoch, in one process and one thread.

Errors of any kind are answered as data, not raised.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headrace.clock import step_times
from headrace.errors import (
    CallTimeoutError,
    CorruptDataError,
    HeadraceError,
    NotOwnerError,
    UnavailableError,
)
from headrace.faults import fault
from headrace.files import disk_error
from headrace.plan.stages import CallLimits, Stage
from headrace.runtime.async_calls import AsyncCalls
from headrace.runtime.async_loop import CallLoop, LoopClient
from headrace.runtime.async_process import SourceCallNode
from headrace.runtime.chunk import Chunk, source_of
from headrace.runtime.context import RemoteStores
from headrace.runtime.exchange_network import ExchangeLostError
from headrace.runtime.internal_stream import InternalStreamInput
from headrace.runtime.node_factory import NodeContext, RuntimeContext
from headrace.runtime.orders import (
    NO_WATERMARK,
    ExchangeFile,
    FileRef,
    InputRange,
    MergedTask,
    OutputPart,
    Reached,
    SlotFailure,
    SlotOrder,
    SlotReport,
    StandbyReport,
    TaskOrder,
    TaskReport,
)
from headrace.runtime.outputs import OutputWriter, SinkNode, write_sinks
from headrace.runtime.slot_host import (
    CachedTask,
    PartSize,
    SealedTask,
    SlotHost,
    SlotStores,
    TaskId,
    revoke,
    write_changes,
)
from headrace.runtime.source import SourceReader
from headrace.runtime.stage_task import StageTask, store_specs
from headrace.state.broadcast import BroadcastTable
from headrace.state.remote_store import Stamp
from headrace.state.segment import CHANGELOG, SegmentHeader
from headrace.state.task_state import TaskState


def describe_failure(error: Exception) -> SlotFailure:
    """Return an error as data."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, OSError):  # those of users' code were wrapped where they occurred
        error = disk_error(error)
    if isinstance(error, HeadraceError):
        fields = {k: v if isinstance(v, int) else str(v) for k, v in error.fields.items()}
        operator = str(error.fields.get("operator", ""))
        return SlotFailure(type(error).__name__, error.message, fields, trace, operator)
    return SlotFailure(type(error).__name__, str(error), {}, trace)


Push = Callable[[str, Chunk], None]
ReadStops = dict[tuple[str, int], int]
"""Where to stop reading, by input and partition."""


class CallFeeder:
    """Brings the rows of a source task up to its calls, as many as these need at a time.

    Args:
        asks: where calls are made.
        push: feeds rows to what comes before them.
        readers: of the ranges.
    """

    def __init__(
        self, asks: Sequence[SourceCallNode], push: Push, readers: Sequence[SourceReader]
    ) -> None:
        self.asks, self._push, self._readers = asks, push, readers
        self._parts = self._all()
        for ask in asks:
            ask.read_more = self._more
        for reader in readers:
            source = source_at(reader)
            for ask in asks:
                ask.forget(source, reader.wanted.start)

    def _all(self) -> Iterator[None]:
        for reader in self._readers:
            for chunk in reader.chunks(lambda: False):
                self._push(reader.wanted.operator, chunk)
                yield

    def _more(self) -> bool:
        return next(self._parts, self) is None

    def stops(self) -> ReadStops:
        """Return how far all calls have ended, for each range."""
        found = {}
        for reader in self._readers:
            source = source_at(reader)
            lows = [low for ask in self.asks if (low := ask.low(source)) is not None]
            wanted = reader.wanted
            found[wanted.operator, wanted.partition] = min([reader.reached().next_offset, *lows])
        return found


def source_at(reader: SourceReader) -> int:
    """Return the number that the rows of a reader have in ``RowOrigins``."""
    assert reader.binding.origin is not None
    return source_of(reader.binding.origin, reader.wanted.partition)


def run_calls(
    loop: CallLoop,
    pumped: Iterable[LoopClient],
    limits: CallLimits,
    *,
    should_stop: Callable[[], bool],
    to_the_end: bool = False,
) -> None:
    """Let calls run, as long as an epoch takes; at the end of the inputs until all have ended."""
    if to_the_end:
        loop.run(pumped, begin_s=None, wait_s=None, limit_s=limits.timeout_s)
        return
    loop.run(
        pumped,
        begin_s=limits.begin_s,
        wait_s=limits.wait_s,
        limit_s=limits.timeout_s,
        should_stop=should_stop,
    )


# A database that a disk refused to write stays closed to writes until it is opened again, and
# a file that was repaired is seen by the next to open it; a call that took too long was ended
# anywhere, in the middle of a store's own steps, too. What is lost with them comes back.
_CLOSING = (UnavailableError, NotOwnerError, CorruptDataError, CallTimeoutError, OSError)


class _ReadyTask(NamedTuple):
    """A task that is about to run."""

    order: TaskOrder
    stage: Stage
    state: TaskState | None
    runtime: StageTask


class _TaskInput(NamedTuple):
    """What a task has read, and where that brings its watermark."""

    reached: list[Reached]
    watermark: int


class _TaskDeadlines(NamedTuple):
    """What a task says of itself once it has run."""

    event_deadline: int | None
    wall_deadline: int | None
    overlay_bytes: int

    @classmethod
    def of(cls, entry: _ReadyTask) -> _TaskDeadlines:
        """Ask a task that has run and is not sealed."""
        size = 0 if entry.state is None else entry.state.overlay_bytes
        if entry.runtime.remotes.opened:
            size += entry.runtime.remotes.overlay_bytes
        return cls(*entry.runtime.deadlines(), size)


def run_slot(order: SlotOrder, host: SlotHost) -> SlotReport:
    """Run an order; errors of any kind are answered, not raised.

    Returns:
        The report of this attempt, ``misplaced`` when the stores are on another host.
    """
    if order.host and order.host != host.host:
        attempt = host.clock.new_id()
        return SlotReport(order.slot, attempt, host.host, os.getpid(), misplaced=True)
    if order.leaves or order.renew:
        revoke(host, order)
        return SlotReport(order.slot, host.clock.new_id(), host.host, os.getpid())
    if order.shares:
        return _shared(order, host)
    report, damaged = _tried(order, host)
    if damaged is not None and host.repair(order, damaged):
        report, _ = _tried(order, host)
    return report


def _shared(order: SlotOrder, host: SlotHost) -> SlotReport:
    """Pass on shares of a committed epoch; an error is answered."""
    failure = None
    try:
        host.shares.send(order, host.plans(order.plan))
    except Exception as error:  # noqa: BLE001 - the driver passes on what is missing
        failure = describe_failure(error)
    return SlotReport(order.slot, host.clock.new_id(), host.host, os.getpid(), error=failure)


def _tried(order: SlotOrder, host: SlotHost) -> tuple[SlotReport, Path | None]:
    """Return the report of one attempt, and the committed file that it found damaged, if any."""
    attempt = host.clock.new_id()
    try:
        running = _Attempt(order, host, attempt)
        try:
            return running.run(), None
        except Exception:
            running.abandon()
            raise
    except Exception as error:  # noqa: BLE001 - the one boundary between a slot and its driver
        for task in order.tasks:
            host.runtimes.pop((order.job, task.stage, task.task), None)
            if isinstance(error, _CLOSING) and not isinstance(error, ExchangeLostError):
                with suppress(HeadraceError):
                    host.registry.close((order.job, task.stage, task.task))
        file = error.fields.get("file") if isinstance(error, CorruptDataError) else None
        failure = describe_failure(error)
        report = SlotReport(order.slot, attempt, host.host, os.getpid(), error=failure)
        return report, Path(str(file)) if file else None


class _Attempt:
    """One try at an order."""

    def __init__(self, order: SlotOrder, host: SlotHost, attempt: str) -> None:
        self._order, self._host, self._id = order, host, attempt
        self._plan = host.plans(order.plan)
        self._stages = self._plan.by_level[order.level]
        self._stem = f"{order.epoch:012d}-{order.generation:08d}-{order.slot:04d}-{attempt}"
        self._names: list[str] = []
        self._built: list[StageTask] = []
        self._stores = SlotStores(order, host, attempt)
        self._tables: dict[str, BroadcastTable] = {}
        self._reads_since: float | None = None
        self._is_calling = False  # asynchronously, in some task

    def run(self) -> SlotReport:
        """Run all tasks and write what they made."""
        now = self._host.clock.monotonic
        steps = [("", now())]
        self._host.exchange.begin(self._order)
        ready = self._prepare()
        fault("slot.caught_up")
        steps.append(("catch up", now()))
        reached = self._run_tasks(ready)
        # Before the stores are sealed: timers look for their next in what the epoch wrote.
        after = list(map(_TaskDeadlines.of, ready))
        fault("slot.ran")
        steps.append(("run", now()))
        exchange: list[ExchangeFile] = []
        for entry in ready:
            exchange += self._write_exchange(entry.order, entry.runtime)
        fault("slot.exchange_written")
        steps.append(("exchange", now()))
        segment, sizes = self._write_segment(ready)
        fault("slot.segment_written")
        steps.append(("segment", now()))
        outputs = OutputWriter(
            self._host.files,
            self._host.storage,
            self._stem,
            self._host.adopt_bytes,
            self._order.epoch,
        )
        parts: list[list[OutputPart]] = []
        senders: list[SinkNode] = []
        for entry in ready:
            parts.append(outputs.add(entry.runtime.outputs))
            senders += entry.runtime.sinks
        sinks = write_sinks(senders, outputs) if senders else []
        outputs.close()
        fault("slot.output_written")
        steps.append(("output", now()))
        merges = self._merge(ready)
        steps.append(("merge", now()))
        sent = 0
        for entry in ready:
            if entry.runtime.remotes.opened:
                sent += entry.runtime.remotes.send()
        if sent:
            steps.append(("remote", now()))
        fault("slot.remote_sent")
        standbys: list[StandbyReport] = []
        if self._order.standbys or self._host.standbys.held:
            standbys = self._stores.follow(self._stages)
        reports = list(map(self._report, ready, repeat(sizes), after, reached, parts))
        return SlotReport(
            self._order.slot,
            self._id,
            self._host.host,
            os.getpid(),
            tasks=reports,
            exchange=exchange,
            segment=segment,
            output_files=outputs.written,
            sinks=sinks,
            merges=merges,
            standbys=standbys,
            timings_ms=step_times(steps),
        )

    def _prepare(self) -> list[_ReadyTask]:
        """Return the tasks with their stores caught up."""
        self._host.registry.reserve(2 * len(self._order.tasks))
        if self._plan.tables:
            used = {name for task in self._order.tasks for name in self._stages[task.stage].tables}
            self._tables = self._host.tables.at(self._plan, used, self._order.tables)
        ready = []
        for task in self._order.tasks:
            stage = self._stages[task.stage]
            state = self._stores.state(stage, task)
            runtime = self._runtime(stage, task, state)
            if runtime.asking or runtime.holds.calling:
                self._is_calling = True
            ready.append(_ReadyTask(task, stage, state, runtime))
        self._stores.end_restore()
        return ready

    def _merge(self, ready: list[_ReadyTask]) -> list[MergedTask]:
        """See to the merges that are ordered, and report those that are done."""
        merges = self._host.merges
        for entry in ready:
            if entry.state is not None and (merges.entries or entry.order.merge is not None):
                stores = store_specs(entry.stage)
                if merges.begin(self._order, entry.order, stores):
                    entry.state.flush(wait=False)
        return merges.finished(self._order, self._stages) if merges.entries else []

    def abandon(self) -> None:
        """Close the users' processors, which no later attempt continues with."""
        self._stores.end_restore()
        for runtime in self._built:
            with suppress(Exception):  # the error that ended the attempt is the one to report
                runtime.close()

    def _report(
        self,
        entry: _ReadyTask,
        sizes: dict[TaskId, PartSize],
        after: _TaskDeadlines,
        reached: list[Reached],
        parts: list[OutputPart],
    ) -> TaskReport:
        task, state, runtime = entry.order, entry.state, entry.runtime
        name, merges = (task.stage, task.task), self._host.merges
        changed = name in sizes
        stores = {} if state is None else state.store_bytes
        self._host.runtimes[(self._order.job, *name)] = CachedTask(
            runtime,
            self._order.plan,
            self._order.lineage,
            self._order.epoch,
            (self._order.epoch, self._id) if changed else (task.state.epoch, task.state.attempt),
            state,
        )
        return TaskReport(
            task.stage,
            task.task,
            reached=reached,
            changed=changed,
            segment_bytes=sizes[name].bytes if changed else 0,
            segment_rows=sizes[name].rows if changed else 0,
            merge_problem=merges.problem(self._order, task) if merges.failed else "",
            outputs=parts,
            event_deadline=after.event_deadline,
            wall_deadline=after.wall_deadline,
            counts=runtime.counts(),
            operators=runtime.operator_counts(),
            state_bytes=sum(stores.values()),
            stores=stores,
            hot_keys=runtime.hot_keys(self._host.clock.monotonic()),
            expires=entry.stage.expires,
            overlay_bytes=after.overlay_bytes,
            watermark_hold_ms=runtime.holds.reached,
            waiting=runtime.holds.waiting if runtime.holds.calling else 0,
            swept_ms=-1 if state is None else state.swept_ms,
        )

    def _runtime(self, stage: Stage, task: TaskOrder, state: TaskState | None) -> StageTask:
        """Return the task's nodes: those of its last epoch if that was committed, else new."""
        key = (self._order.job, stage.name, task.task)
        kept = self._host.runtimes.pop(key, None)
        runtime = kept.task if kept is not None and kept.fits(self._order, task, state) else None
        if runtime is None:
            if kept is not None:
                kept.task.close()
            plan, job = self._plan, self._plan.graph.name
            host = self._host
            shared = RuntimeContext(
                job, plan.key_groups, plan.limits, host.bus, host.loop, host.hot_keys
            )
            remotes = RemoteStores(job, host.clock)
            build = NodeContext(stage, task.task, task.groups, shared, state, remotes, self._tables)
            runtime = StageTask(build)
        self._built.append(runtime)
        before = self._order.watermarks_before.get(stage.name, NO_WATERMARK)
        before = max(before, task.passed)
        order = self._order
        stamp = Stamp(order.job, order.origin or order.lineage, order.generation, order.epoch)
        runtime.begin(order.epoch, order.time_ms, before, task.watermark_hold_ms, stamp)
        return runtime

    def _run_tasks(self, ready: list[_ReadyTask]) -> list[list[Reached]]:
        """Run the tasks one after the other, but their asynchronous calls all together."""
        if not self._is_calling:
            reached = []
            for entry in ready:
                read = self._feed(entry)
                entry.runtime.advance(read.watermark, self._order.time_ms)
                reached.append(read.reached)
            return reached
        asking = {n: self._asking(entry) for n, entry in enumerate(ready) if entry.runtime.asking}
        fed = {n: self._feed(entry) for n, entry in enumerate(ready) if n not in asking}
        calls = [ask.calls for one in asking.values() for ask in one.asks]
        calls += [node.calls for entry in ready for node in entry.runtime.holds.calling]
        self._run_calls(calls)
        for entry in ready:
            for node in entry.runtime.holds.calling:
                node.is_fresh = False
        fed |= {n: self._feed(ready[n], one.stops()) for n, one in asking.items()}
        time_ms = self._order.time_ms
        ends = [e.runtime.ends(fed[n].watermark, time_ms) for n, e in enumerate(ready)]
        while waiting := [one for end in ends if (one := next(end, None)) is not None]:
            self._run_calls([one.calls for one in waiting])
        return [fed[n].reached for n in range(len(ready))]

    def _run_calls(self, calls: list[AsyncCalls]) -> None:
        order, loop, limits = self._order, self._host.loop, self._plan.limits
        run_calls(loop, calls, limits, should_stop=self._should_stop, to_the_end=order.ended)

    def _asking(self, entry: _ReadyTask) -> CallFeeder:
        """Prepare the calls of a task that reads by offset, ahead of what it really reads."""
        asking = entry.runtime.asking
        assert asking is not None
        readers = [self._reader(entry.stage, wanted, asking) for wanted in entry.order.ranges]
        return CallFeeder(list(asking.asks), asking.push, readers)

    def _reader(self, stage: Stage, wanted: InputRange, runtime: StageTask) -> SourceReader:
        binding = stage.input_of[wanted.operator]
        return SourceReader(
            self._host.bus.stream(binding.stream),
            binding,
            wanted,
            timed=stage.timed,
            max_bytes=self._order.range_bytes,
            wall_ms=self._order.time_ms,
            limits=self._plan.limits,
            guard=runtime.input_guards.get(wanted.operator),
        )

    def _feed(self, entry: _ReadyTask, stops: ReadStops | None = None) -> _TaskInput:
        """Bring a task its rows, no further than ``stops`` say."""
        task, stage, runtime = entry.order, entry.stage, entry.runtime
        reached: list[Reached] = []
        watermark = self._order.watermarks.get(stage.name, NO_WATERMARK)
        if stage.keyed:
            runtime.expect(watermark)
            if task.ranges:
                own = InternalStreamInput(stage, task, self._host.bus, self._order.range_bytes)
                reached, watermark = own.feed(runtime, watermark, self._should_stop)
            for exchange in stage.receives:
                for chunk in self._host.exchange.read(self._order, exchange, *task.groups):
                    runtime.push(exchange.operator, chunk)
            return _TaskInput(reached, watermark)
        for ordered in task.ranges:
            wanted = ordered
            if stops is not None:
                stop = stops[wanted.operator, wanted.partition]
                if stop <= wanted.start:
                    continue
                wanted = replace(wanted, stop=min(stop, wanted.stop))
            reader = self._reader(stage, wanted, runtime)
            for chunk in reader.chunks(self._should_stop):
                runtime.push(wanted.operator, chunk)
            reached.append(reader.reached())
        return _TaskInput(reached, watermark)

    def _should_stop(self) -> bool:
        now, limit = self._host.clock.monotonic(), self._order.read_ms
        self._reads_since = now if self._reads_since is None else self._reads_since
        late = limit is not None and (now - self._reads_since) * 1000 >= limit
        return late or self._host.should_stop(self._order.generation)

    def _write_exchange(self, task: TaskOrder, runtime: StageTask) -> list[ExchangeFile]:
        files = []
        for number, node in enumerate(runtime.exchanges):
            for ending, writer in node.take():
                name = f"{self._stem}-{task.task}-{number}-{len(self._names)}.{ending}"
                self._names.append(name)
                target = self._plan.by_index[node.exchange.target_stage]
                tasks = self._order.task_counts.get(target.name, target.tasks)
                path, size, rows = self._host.exchange.write(self._order, name, writer, tasks)
                files.append(ExchangeFile(node.exchange.operator, task.task, path, size, rows))
        return files

    def _write_segment(
        self, ready: list[_ReadyTask]
    ) -> tuple[FileRef | None, dict[TaskId, PartSize]]:
        changed = [
            SealedTask(entry.order, entry.state, changes)
            for entry in ready
            if entry.state is not None and (changes := entry.state.seal())
        ]
        if not changed:
            return None, {}
        order, groups = self._order, self._plan.key_groups
        header = SegmentHeader(
            CHANGELOG, order.job, order.lineage, order.generation, order.epoch, self._id
        )
        name = f"segment/{self._stem}.seg"
        return write_changes(self._host.files, self._host.storage, name, header, changed, groups)
