"""One epoch in the driver: orders out, reports in, a manifest at the end. No file is touched.

The levels run in order. What one level's reports say (files, offsets, event times) decides
the orders of the next; the manifest is what they say together, and ``slot_reports`` the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from headrace.coordinator.epoch_placement import EpochPlacement, PlacementContext, StandbyTracker
from headrace.coordinator.epoch_ranges import keyed_tasks, source_tasks, task_name
from headrace.coordinator.host_state import ClusterEvent, Standbys
from headrace.coordinator.manifest import (
    FORMAT,
    NEW_TASK,
    NO_COMPACTION,
    SINK_ROWS,
    InputPosition,
    JobState,
    Manifest,
    PendingCompaction,
    TaskChange,
    is_applicable,
    unchanged_task,
    with_progress,
)
from headrace.coordinator.placement import Slot
from headrace.coordinator.slot_reports import EpochMetrics, SlotMetrics, slot_error
from headrace.coordinator.watermarks import (
    Now,
    keyed_watermark,
    next_wake,
    passed_on,
    source_watermarks,
)
from headrace.errors import InternalError, UnavailableError
from headrace.graph.semantics import CommitAction, CommitStep, Semantics
from headrace.plan.stages import JobPlan, Stage
from headrace.runtime.exchange_network import ExchangeLostError
from headrace.runtime.orders import (
    END_WATERMARK,
    NO_WATERMARK,
    ExchangeFile,
    FileRef,
    InputRange,
    Merged,
    MergeOrder,
    OutputPart,
    SegmentRef,
    SinkPart,
    SlotOrder,
    SlotReport,
    StandbyOrder,
    TaskOrder,
    TaskReport,
)


class Runner(Protocol):
    """Runs the slots of one level at the same time; Spark, or one thread in tests."""

    def slots(self) -> list[Slot]:
        """Return the slots that answer now; at least one."""
        ...

    def has_changed(self) -> bool:
        """Say whether other slots would answer now than did last; asked while a job is idle."""
        ...

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run one order for each slot named and return one report of each, in any order.

        A report is of one attempt; which attempt is the runner's choice, made once.
        """
        ...


class MisplacedError(UnavailableError):
    """A slot found itself on another host than its tasks' stores. Plan the epoch again."""

    code = "HR201"
    move = "wait: the epoch is placed again automatically"
    waited_s = 0.0
    """How long what is missing has been waited for already."""


@dataclass
class EpochRun:
    """The state of one epoch while it runs.

    Args:
        plan: of the job.
        state: after the last epoch.
        slots: where tasks can run.
        ranges: what is read.
        generation: of the driver.
        plan_digest: names the plan to the slots.
        time_ms: the epoch's wall clock.
        ended: this is the epoch of its own for the end of the inputs.
        all_tasks: run tasks that have nothing to do, too.
        read_ms: for how long source tasks read; clocks of hosts differ.
        kept_from: the oldest epoch whose files are kept after this one.
        max_bytes: input bytes, over all ranges.
        tables: offsets up to which broadcast stores are read.
        ends: next offset of each partition of the input streams.
        rested: by stream, ends of the partitions that get no new rows.
        standby_copies: how many standbys each task has.
        context: what the driver brings to the placing of tasks.
        identities: which streams the inputs are that were not known to be one before.
        inputs: positions that become known, of partitions that were added; then those reached.
        known: watermarks that source stages reach, of an epoch that is run once more.
        only: the keyed tasks that run, by name; all when left out.
        token: gives access to what hosts exchange in this epoch.
    """

    plan: JobPlan
    state: JobState
    slots: list[Slot]
    ranges: list[InputRange]
    generation: int
    plan_digest: str
    time_ms: int
    ended: bool = False
    all_tasks: bool = False
    read_ms: int | None = None
    kept_from: int = 0
    max_bytes: int | None = None
    tables: dict[str, list[int]] = field(default_factory=dict)
    ends: Mapping[str, Sequence[int]] = field(default_factory=dict)
    rested: dict[str, dict[int, int]] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    known: Mapping[str, int] = field(default_factory=dict)
    only: frozenset[str] | None = None
    token: str = ""
    overlay_bytes: int = 0
    inputs: dict[str, dict[int, InputPosition]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    exchange: dict[str, list[ExchangeFile]] = field(default_factory=dict)
    tasks: dict[str, TaskChange] = field(default_factory=dict)
    outputs: list[OutputPart] = field(default_factory=list)
    sinks: list[SinkPart] = field(default_factory=list)
    files: list[FileRef] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    merge_problems: list[str] = field(default_factory=list)
    observed: EpochMetrics = field(default_factory=EpochMetrics)
    standby_copies: int = 0
    context: PlacementContext = field(default_factory=PlacementContext)

    @cached_property
    def placing(self) -> EpochPlacement:
        """Where the job's tasks run in this epoch."""
        return EpochPlacement(self.plan, self.state, self.slots, self.context, self.standbys)

    @cached_property
    def standbys(self) -> StandbyTracker:
        """The standbys of the job's tasks, in this epoch."""
        return StandbyTracker(self.plan, self.state, self.slots, self.standby_copies)

    @cached_property
    def epoch(self) -> int:
        """Return the number of this epoch."""
        return self.state.epoch + 1

    def orders(self, level: int) -> list[SlotOrder]:
        """Return the orders of a level; empty when none of its tasks has anything to do."""
        placed: dict[int, list[TaskOrder]] = {}
        standbys: dict[int, list[StandbyOrder]] = {}
        exchange: dict[str, list[str]] = {}
        is_anywhere = True  # source tasks alone; others are to be where their stores are
        for stage in self.plan.levels[level]:
            due = {task_name(stage.name, order.task): order for order in self._due(stage)}
            if stage.keyed:
                is_anywhere = False
                if self.only is not None:
                    due = {name: order for name, order in due.items() if name in self.only}
            for received in stage.receives:
                files = self.exchange.get(received.operator, ())
                exchange[received.operator] = [file.path for file in files]
            assigned = self.placing.of(stage)
            for slot, names in assigned.slots.items():
                mine = [due[name] for name in names if name in due]
                if mine:
                    placed.setdefault(slot, []).extend(mine)
            for slot, wanted in self.standbys.orders(stage, assigned.hosts).items():
                standbys.setdefault(slot, []).extend(wanted)
        for slot, wanted in standbys.items():
            if self.standbys.is_late(wanted) or self.placing.waits_for(wanted):
                placed.setdefault(slot, [])
        hosts = {} if is_anywhere else {slot.number: slot.host for slot in self.slots}
        return [
            SlotOrder(
                job=self.state.job,
                lineage=self.state.lineage,
                generation=self.generation,
                epoch=self.epoch,
                level=level,
                slot=slot,
                time_ms=self.time_ms,
                plan=self.plan_digest,
                host="" if is_anywhere else hosts[slot],
                origin=self.state.origin or self.state.lineage,
                ended=self.ended,
                watermarks=self.watermarks,
                watermarks_before=self.state.watermarks,
                exchange=exchange,
                task_counts=self.state.task_counts,
                tables=self.tables,
                tasks=tasks,
                standbys=standbys.get(slot, []),
                read_ms=self.read_ms,
                range_bytes=self.max_bytes and max(1, self.max_bytes // max(1, len(self.ranges))),
                token=self.token,
            )
            for slot, tasks in sorted(placed.items())
        ]

    def _due(self, stage: Stage) -> list[TaskOrder]:
        if not stage.keyed:
            tasks = source_tasks(stage, self.ranges)
            if self.all_tasks:
                there = {order.task for order in tasks}
                tasks += [TaskOrder(stage.name, t) for t in range(stage.tasks) if t not in there]
            return tasks
        bound = self._bound(stage, self._passed_on)
        return self.keyed_due(stage, bound, bound)

    def keyed_due(
        self,
        stage: Stage,
        bound: int,
        watermark: int,
        ranges: Mapping[int, list[InputRange]] | None = None,
        *,
        all_tasks: bool = False,
    ) -> list[TaskOrder]:
        """Return the tasks of a keyed stage that have something to do.

        Args:
            stage: any such.
            bound: the watermark of the files that it is sent; the end, where it gets none.
            watermark: that it reaches by what is known before its tasks have run.
            ranges: that its tasks read by offset.
            all_tasks: run each task.
        """
        watermark = max(watermark, self.state.watermarks.get(stage.name, NO_WATERMARK))
        self.watermarks[stage.name] = watermark
        sent = [file.rows for e in stage.receives for file in self.exchange.get(e.operator, ())]
        rows = list(map(sum, zip(*sent, strict=True))) or [0] * stage.tasks
        return keyed_tasks(
            stage,
            self.state,
            rows,
            watermark,
            self.time_ms,
            all_tasks=self.all_tasks or self.ended or all_tasks,
            moved=self.placing.moved(stage),
            ranges=ranges,
            bound=bound,
        )

    def _bound(self, stage: Stage, watermarks: Mapping[str, int]) -> int:
        """The watermark of the files that a keyed stage is sent; the end, where it gets none."""
        return keyed_watermark(stage, self.plan.names, watermarks)

    def finish_level(self, level: int) -> None:
        """Note the watermarks of source stages once their reports are in."""
        if level:
            return
        sources = source_watermarks(self.plan, self.state, self._positions, self._now)
        for stage in self.plan.levels[level]:
            if stage.keyed:
                continue
            found = END_WATERMARK if self.ended else sources[stage.name]
            found = self.known.get(stage.name, found)
            before = self.state.watermarks.get(stage.name, NO_WATERMARK)
            self.watermarks[stage.name] = max(found, before)

    @property
    def _passed_on(self) -> dict[str, int]:
        """The watermark of what each stage sends on: what waits for calls holds it back."""
        return passed_on(self.watermarks, {**self.state.tasks, **self.tasks})

    @cached_property
    def _now(self) -> Now:
        return Now(self.time_ms, self.ends, self.rested)

    @cached_property
    def _positions(self) -> dict[str, dict[int, InputPosition]]:
        """How far all partitions have been read, this epoch included: reports move it on."""
        merged = {name: dict(positions) for name, positions in self.state.inputs.items()}
        for name, positions in self.inputs.items():
            merged.setdefault(name, {}).update(positions)
        return merged

    def _wake_ms(self) -> int | None:
        """When watermarks move on without a row; what is due by then is due in this state."""
        if self.ended or not self.plan.may_wake:
            return None
        before = {name: task.event_deadline for name, task in self.state.tasks.items()}
        after = {name: task.event_deadline for name, task in self.tasks.items()}
        due: dict[str, int] = {}
        for name, deadline in (before | after).items():
            if deadline is not None:
                stage = name.rpartition("/")[0]
                due[stage] = min(deadline, due.get(stage, deadline))
        return next_wake(self.plan, self.state, self._positions, self._now, due)

    def absorb(self, orders: list[SlotOrder], reports: list[SlotReport]) -> None:
        """Take the reports of a level, one for each slot that had an order.

        Raises:
            MisplacedError: a slot was not where its stores are, or what it was sent is lost.
            HeadraceError: what a slot failed with; nothing of the epoch counts.
            UnavailableError: a report, or a task in one, is missing; try the epoch again.
        """
        by_slot = {report.slot: report for report in reports}
        if len(by_slot) != len(reports):
            raise InternalError("two reports of one slot", epoch=self.epoch)
        reports = sorted(reports, key=attrgetter("slot"))
        self._check_answers(orders, reports)
        stages = self.plan.by_name
        merges = {(task.stage, task.task): task.merge for order in orders for task in order.tasks}
        level = orders[0].level if orders else 0
        for report in reports:
            for file in (report.segment, *report.output_files):
                if file is not None:
                    self.files.append(file)
            self.sinks += report.sinks
            self.observed.slots.append(
                SlotMetrics(
                    level,
                    report.slot,
                    report.host,
                    report.process,
                    len(report.tasks),
                    report.timings_ms,
                )
            )
            self.standbys.absorb(report)
            for part in report.exchange:
                self.exchange.setdefault(part.operator, []).append(part)
            for task in report.tasks:
                merge = merges[task.stage, task.task]
                self._absorb_task(stages[task.stage], task, report, merge)
        for report in reports:
            for done in report.merges:
                self._absorb_merge(task_name(done.stage, done.task), done.merged)
        for files in self.exchange.values():
            files.sort(key=attrgetter("task", "path"))

    def _check_answers(self, orders: list[SlotOrder], reports: list[SlotReport]) -> None:
        """Refuse a failure; and a result cut on its way to the driver, which is not the whole."""
        left = {(o.slot, task.stage, task.task) for o in orders for task in o.tasks}
        extra: set[tuple[int, str, int]] = set()
        errors = []
        for report in reports:
            if report.misplaced:
                raise MisplacedError(
                    f"slot {report.slot} ran on host {report.host}", epoch=self.epoch
                )
            if report.error is not None:
                errors.append(slot_error(report))
            for task in report.tasks:
                name = (report.slot, task.stage, task.task)
                if name in left:
                    left.remove(name)
                else:
                    extra.add(name)
        for error in errors:
            if not isinstance(error, ExchangeLostError):
                raise error
        for error in errors:
            raise MisplacedError(error.message, epoch=self.epoch) from error
        if left or extra:
            slots = sorted({slot for slot, _, _ in left | extra})
            raise UnavailableError(
                f"the reports of slots {slots} are not of the tasks that were ordered",
                epoch=self.epoch,
            )

    def _absorb_task(
        self, stage: Stage, task: TaskReport, report: SlotReport, merge: MergeOrder | None
    ) -> None:
        for reached in task.reached:
            position = InputPosition(
                reached.next_offset,
                reached.max_time,
                self.time_ms,
                reached.watermark,
                reached.delays,
                reached.ended,
            )
            for known in (self.inputs, self._positions):
                known.setdefault(reached.operator, {})[reached.partition] = position
        self.outputs += task.outputs
        if task.counts:
            self.counts.update(task.counts)
        for operator, counts in task.operators.items():
            self.operators.setdefault(operator, Counter()).update(counts)
        self.overlay_bytes = max(self.overlay_bytes, task.overlay_bytes)
        name = task_name(task.stage, task.task)
        if task.stores:
            self.observed.stores[name] = task.stores
        if task.hot_keys:
            self.observed.hot_keys[name] = task.hot_keys
        if not stage.keyed:
            return
        if task.merge_problem:
            self.merge_problems.append(f"{name}: {task.merge_problem}")
        held = self.state.tasks.get(name, NEW_TASK)
        merging = None
        if task.merge_problem:
            merging = NO_COMPACTION if held.merging is not None else None
        elif merge is not None and held.merging is None:
            merging = PendingCompaction.of(merge)
        segment = self._segment(task, report)
        change = TaskChange(segment=segment, merging=merging, host=report.host)
        self.tasks[name] = with_progress(change, task)

    def _absorb_merge(self, name: str, merged: Merged) -> None:
        """Let a merge count for its task, which may have rested, if its files are still there."""
        held = self.state.tasks.get(name, NEW_TASK)
        change = self.tasks.get(name, unchanged_task(held))
        if change.merged is not None:
            return
        if is_applicable(held, merged):
            self.files.append(FileRef(merged.ref.path, merged.ref.size, merged.ref.epoch))
            self.tasks[name] = replace(change, merged=merged, merging=None)
        elif held.merging is not None and held.merging.path == merged.ref.path:
            self.tasks[name] = replace(change, merging=NO_COMPACTION)

    def _segment(self, task: TaskReport, report: SlotReport) -> SegmentRef | None:
        file = report.segment
        if file is None or not task.changed:
            return None
        return SegmentRef(
            file.path,
            file.size,
            self.epoch,
            report.attempt,
            file.checksum,
            task.segment_bytes,
            task.segment_rows,
            self.epoch,
        )

    @cached_property
    def own_rows(self) -> int:
        """How many rows it took of the job's inputs; asked once its levels have run."""
        return self.rows_read(without=self.plan.feed_operators)

    def rows_read(self, without: Collection[str] = ()) -> int:
        """Return how many rows the epoch took, but for those of some operators."""
        rows = 0
        for operator, positions in self.inputs.items():
            if operator not in without:
                before = self.state.inputs.get(operator, {})
                for partition, position in positions.items():
                    held = before.get(partition)
                    rows += position.next_offset - (0 if held is None else held.next_offset)
        return rows

    def outputs_of(self, semantics: Collection[Semantics]) -> tuple[OutputPart, ...]:
        """Return what goes to streams with these semantics; internal ones are exactly-once."""
        own, exactly = self.plan.output_semantics, Semantics.EXACTLY_ONCE
        return tuple([p for p in self.outputs if own.get(p.stream, exactly) in semantics])

    def sinks_of(self, semantics: Collection[Semantics]) -> tuple[SinkPart, ...]:
        """Return what goes to sinks with these semantics."""
        if not self.sinks:
            return ()
        own = {binding.operator: binding.semantics for binding in self.plan.sinks}
        return tuple([part for part in self.sinks if own[part.operator] in semantics])

    def manifest(self, act: CommitAction, before: JobState, *, is_last: bool = True) -> Manifest:
        """Return the epoch as a delta manifest.

        Args:
            act: what of it is saved, and which outputs the manifest is to bring out.
            before: the state that the manifest follows.
            is_last: no other manifest of the epoch follows.
        """
        has_state, has_offsets = CommitStep.STATE in act.saves, CommitStep.OFFSETS in act.saves
        counts: dict[str, int] = {}
        standbys: Standbys = {}
        host_events: tuple[ClusterEvent, ...] = ()
        operators: dict[str, dict[str, int]] = {}
        if has_state:
            counts |= deterministic_counts(self.counts)
            for part in self.sinks:
                sent = SINK_ROWS + part.operator
                counts[sent] = counts.get(sent, 0) + part.rows
            counts |= {**self.standbys.counts, **self.placing.counts}
            operators = {name: dict(own) for name, own in self.operators.items()}
            standbys = self.standbys.changes()
            host_events = self.placing.host_events(self.tasks, standbys, self.time_ms)
        if has_offsets:
            counts["in"] = self.own_rows
        return Manifest(
            format=FORMAT,
            kind="delta",
            job=self.state.job,
            lineage=self.state.lineage,
            generation=self.generation,
            epoch=before.epoch + 1,
            time_ms=self.time_ms,
            previous=before.digest,
            inputs=self.inputs if has_offsets else {},
            identities=self.identities,
            tables=self.tables if has_offsets else {},
            watermarks=self.watermarks if has_state else {},
            tasks=self.tasks if has_state else {},
            outputs=self.outputs_of(act.outputs),
            sinks=self.sinks_of(act.outputs),
            counts=counts,
            ended=self.ended and is_last,
            kept_from=self.kept_from,
            wake_ms=self._wake_ms(),
            operators=operators,
            is_half=not is_last,
            standbys=standbys,
            hosts=self.context.changes if has_state else {},
            host_events=host_events,
        )


def deterministic_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return those counts that the inputs alone decide, and not what lay in a cache."""
    others = ("cache.", "remote.")
    return {name: count for name, count in counts.items() if not name.startswith(others)}
