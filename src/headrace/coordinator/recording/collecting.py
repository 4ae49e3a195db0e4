"""Which epoch is recorded, and all that it needs: found in manifests, never in the job's code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.catalog import Catalog
from headrace.coordinator.epoch_plan import EpochPlan, load_failed
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.planning import deal_ranges, task_name
from headrace.coordinator.reading import Read
from headrace.coordinator.recording.form import Failure, Kind
from headrace.coordinator.watermarks import resting
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.task.orders import NO_WATERMARK, InputRange


@dataclass(frozen=True)
class Facts:
    """One epoch: what it is, the state before it, its plan, and the job's description.

    ``read`` says how many rows each input brought, where it is over.
    """

    kind: Kind
    state: JobState
    plan: EpochPlan
    catalog: Catalog
    failure: Failure | None = None
    read: Mapping[str, int] = field(default_factory=dict)


def facts_of(
    reader: JobReader,
    epoch: int | None,
    tasks: Collection[str],
    bus: Bus,
    clock: Clock,
    max_rows: int,
    files: Files,
) -> Facts:
    """Find out what an epoch was, or is going to be.

    Args:
        reader: of the job.
        epoch: its number; the one after the last committed one when left out.
        tasks: those that are wanted; all when empty.
        bus: the streams.
        clock: for an epoch that has not run.
        max_rows: of an epoch that has not run.
        files: the file system.

    Raises:
        InvalidInputError: it is not kept, not yet there, or changed the job instead of running.
    """
    newest = reader.state()
    wanted = newest.epoch + 1 if epoch is None else epoch
    if wanted <= newest.epoch:
        facts = _committed(reader, wanted, newest)
    elif wanted == newest.epoch + 1:
        facts = _uncommitted(reader, newest, bus, clock, max_rows, files)
    else:
        raise InvalidInputError(
            f"epoch {wanted} of job {reader.job!r} is not there yet: the last committed one is "
            f"{newest.epoch}; --epoch {newest.epoch + 1} is the one that it runs next, or fails on"
        )
    return _narrowed(facts, tasks) if tasks else facts


def _committed(reader: JobReader, epoch: int, newest: JobState) -> Facts:
    kept = reader.kept()
    first, last = _manifests(reader, epoch, kept.newest)
    if first <= kept.oldest:
        raise InvalidInputError(
            f"epoch {epoch} of job {reader.job!r} cannot be recorded: the state before it is no "
            f"longer kept; epochs {kept.oldest + 1} to {kept.newest + 1} can be, and "
            "state.keep_epochs says how many are kept"
        )
    before, after = reader.state(first - 1), reader.state(last)
    if _changes_job(before, after):
        raise InvalidInputError(
            f"epoch {epoch} of job {reader.job!r} ran no task: it changed the job itself, as a "
            "reset, a rewind, a rescale and the end of a bounded run do; record another one"
        )
    catalog = reader.catalog(after)
    stages = _stages(catalog)
    ranges, added = [], {}
    for operator, positions in after.inputs.items():
        held = before.inputs.get(operator, {})
        floor = before.watermarks.get(stages.get(operator, ""), NO_WATERMARK)
        new = {p: InputPosition(0, read_ms=after.time_ms) for p in positions if p not in held}
        if new:
            added[operator] = new
        for partition, reached in positions.items():
            at = held.get(partition, new.get(partition, InputPosition(0)))
            if reached.next_offset > at.next_offset:
                start, stop = at.next_offset, reached.next_offset
                seen = (at.max_time, floor, at.watermark, at.delays)
                ranges.append(InputRange(operator, partition, start, stop, *seen))
    sources = {stage.name for stage in catalog.stages} - set(before.task_counts)
    plan = EpochPlan(
        first,
        after.time_ms,
        ranges,
        ended=after.ended,
        ends=_ends(catalog, after),
        tables=after.tables,
        added=added,
        watermarks={name: at for name, at in after.watermarks.items() if name in sources},
    )
    read = {name: _rows_of(after, name) - _rows_of(before, name) for name in catalog.inputs}
    return Facts("committed", before, plan, catalog, read=read)


def _rows_of(state: JobState, operator: str) -> int:
    """How many rows an input has read, whatever became of them."""
    held = state.operators.get(operator)
    return 0 if held is None else sum(held.counts.values())


def _manifests(reader: JobReader, epoch: int, newest: int) -> tuple[int, int]:
    """Return the first and the last manifest of an epoch: two where state and offsets are apart."""
    if reader.is_half(epoch):
        if epoch == newest or reader.is_half(epoch + 1):
            raise InvalidInputError(
                f"epoch {epoch} of job {reader.job!r} cannot be recorded: its commit was cut "
                "between state and offsets; record another one"
            )
        return epoch, epoch + 1
    is_second = epoch > reader.kept().oldest and reader.is_half(epoch - 1)
    return epoch - is_second, epoch


def _ends(catalog: Catalog, after: JobState) -> dict[str, list[int]]:
    """How far each stream was read: what was behind that then nobody knows, or needs to."""
    found: dict[str, dict[int, int]] = {}
    for operator, stream in catalog.inputs.items():
        for partition, at in after.inputs.get(operator, {}).items():
            parts = found.setdefault(stream, {})
            parts[partition] = max(at.next_offset, parts.get(partition, 0))
    return {name: [parts.get(p, 0) for p in range(max(parts) + 1)] for name, parts in found.items()}


def _changes_job(before: JobState, after: JobState) -> bool:
    """Say whether an epoch did not run, but changed what the job is."""
    is_same = (
        before.lineage == after.lineage
        and before.fingerprint == after.fingerprint
        and before.task_counts == after.task_counts
        and before.until == after.until
        and before.durability == after.durability
    )
    return not is_same or any(
        at.next_offset < before.inputs.get(operator, {}).get(partition, at).next_offset
        for operator, positions in after.inputs.items()
        for partition, at in positions.items()
    )


def _uncommitted(
    reader: JobReader, state: JobState, bus: Bus, clock: Clock, max_rows: int, files: Files
) -> Facts:
    if state.ended:
        raise InvalidInputError(
            f"job {reader.job!r} has ended with epoch {state.epoch}; there is none after it to "
            "record: give --epoch"
        )
    if not state.fingerprint:
        raise InvalidInputError(
            f"job {reader.job!r} was reset and not started since; start it once, then record"
        )
    catalog = reader.catalog(state)
    failed = load_failed(reader.root, state, files)
    if failed is not None:
        failure = Failure(failed.code, failed.kind, failed.message)
        return Facts("failed", state, failed.plan, catalog, failure)
    streams = {name: bus.stream(name) for name in dict.fromkeys(catalog.inputs.values())}
    ends = {name: stream.ends() for name, stream in streams.items()}
    stages = _stages(catalog)
    reads = [Read(name, stream, stages.get(name, "")) for name, stream in catalog.inputs.items()]
    ranges = deal_ranges(reads, state, ends, max_rows)
    plan = EpochPlan(
        state.epoch + 1,
        max(clock.now_ms(), state.time_ms),
        ranges,
        ended=not ranges and state.until is not None,
        ends=ends,
        rested=resting(streams, ends),
        tables=_table_ends(catalog, state, bus),
    )
    return Facts("next", state, plan, catalog)


def _table_ends(catalog: Catalog, state: JobState, bus: Bus) -> dict[str, list[int]]:
    found = {}
    for table in catalog.tables:
        if table.stream:
            until = (state.until or {}).get(table.stream)
            found[table.name] = bus.stream(table.stream).ends() if until is None else until
    return found


def _stages(catalog: Catalog) -> dict[str, str]:
    """The stage of each operator."""
    return {one.name: one.stage for one in catalog.operators}


def _narrowed(facts: Facts, tasks: Collection[str]) -> Facts:
    """Leave out what the tasks that are wanted do not need.

    Of source stages all tasks run, unless some of the stage are named; of keyed ones only those.
    """
    state, stages = facts.state, _stages(facts.catalog)
    counts = state.task_counts
    keyed = {task_name(stage, task) for stage, count in counts.items() for task in range(count)}
    source = {
        task_name(stages[operator], partition)
        for operator, positions in state.inputs.items()
        if stages.get(operator) not in (None, *counts)
        for partition in positions
    }
    unknown = sorted(set(tasks) - keyed - source)
    if unknown:
        known = [f"{stage}/0 to {stage}/{count - 1}" for stage, count in counts.items()]
        known += sorted(source)[:10]
        raise InvalidInputError(
            f"job {state.job!r} has no task {unknown[0]!r}; it has {', '.join(known)}"
        )
    named = {name.rpartition("/")[0] for name in source & set(tasks)}
    ranges = [
        one
        for one in facts.plan.ranges
        if (stage := stages.get(one.operator, "")) not in named
        or task_name(stage, one.partition) in tasks
    ]
    only = tuple(sorted(set(tasks) & keyed))
    kept = {name: task for name, task in state.tasks.items() if name in only}
    plan = structs.replace(facts.plan, ranges=ranges, only=only)
    return replace(facts, state=structs.replace(state, tasks=kept), plan=plan)
