"""Which epoch is recorded, what it needs of streams and stores, and whether that is still there.

Found in manifests, never in the job's code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from headrace.bus import Bus, Stream
from headrace.clock import Clock
from headrace.coordinator.catalog import Catalog
from headrace.coordinator.epoch_ranges import InputRead, share_ranges, task_name
from headrace.coordinator.epoch_records import EpochPlan, load_failed
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.operations.recording_archive import Failure, Kind
from headrace.coordinator.watermarks import resting
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.runtime.orders import NO_WATERMARK, InputRange


@dataclass(frozen=True)
class EpochFacts:
    """One epoch: what it is, the state before it, its plan, and the job's description.

    ``read`` says how many rows each input brought, where it is over.
    """

    kind: Kind
    state: JobState
    plan: EpochPlan
    catalog: Catalog
    failure: Failure | None = None
    read: Mapping[str, int] = field(default_factory=dict)


def epoch_facts(
    reader: JobReader,
    epoch: int | None,
    tasks: Collection[str],
    bus: Bus,
    clock: Clock,
    max_rows: int,
    files: Files,
) -> EpochFacts:
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
    return _only_tasks(facts, tasks) if tasks else facts


def _committed(reader: JobReader, epoch: int, newest: JobState) -> EpochFacts:
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
    return EpochFacts("committed", before, plan, catalog, read=read)


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
) -> EpochFacts:
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
        return EpochFacts("failed", state, failed.plan, catalog, failure)
    streams = {name: bus.stream(name) for name in dict.fromkeys(catalog.inputs.values())}
    ends = {name: stream.ends() for name, stream in streams.items()}
    stages = _stages(catalog)
    reads = [
        InputRead(name, stream, stages.get(name, "")) for name, stream in catalog.inputs.items()
    ]
    ranges = share_ranges(reads, state, ends, max_rows)
    plan = EpochPlan(
        state.epoch + 1,
        max(clock.now_ms(), state.time_ms),
        ranges,
        ended=not ranges and state.until is not None,
        ends=ends,
        rested=resting(streams, ends),
        tables=_table_ends(catalog, state, bus),
    )
    return EpochFacts("next", state, plan, catalog)


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


def _only_tasks(facts: EpochFacts, tasks: Collection[str]) -> EpochFacts:
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


def check_recordable(facts: EpochFacts) -> list[str]:
    """Make sure that the epoch needs nothing but files and streams.

    Returns:
        The stores that begin empty when it runs again, for no file holds them.

    Raises:
        InvalidInputError: a task that is wanted has a remote store.
    """
    wanted = _wanted_stages(facts)
    remote = [name for stage, name in facts.catalog.remotes if stage in wanted]
    if remote:
        raise InvalidInputError(
            f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: what its "
            f"remote stores {', '.join(remote)} held is on a server, which has changed since; name "
            "tasks of other stages with --task"
        )
    return [one.name for one in facts.catalog.stores if not one.in_files and one.stage in wanted]


def _wanted_stages(facts: EpochFacts) -> set[str]:
    only = facts.plan.only
    if only is None:
        return {stage.name for stage in facts.catalog.stages}
    return {name.rpartition("/")[0] for name in only}


def offsets_needed(facts: EpochFacts) -> dict[str, list[tuple[int, int]]]:
    """Return the offsets that the epoch needs of each partition of each stream it reads.

    All operators that read a stream stand somewhere in it, and tables need it from its beginning.
    """
    found: dict[str, dict[int, tuple[int, int]]] = {}
    stops = {(one.operator, one.partition): one.stop for one in facts.plan.ranges}
    for operator, stream in facts.catalog.inputs.items():
        held = {**facts.plan.added.get(operator, {}), **facts.state.inputs.get(operator, {})}
        for partition, at in held.items():
            start = at.next_offset
            stop = stops.get((operator, partition), start)
            _widen(found.setdefault(stream, {}), partition, start, stop)
    for table in facts.catalog.tables:
        for partition, stop in enumerate(facts.plan.tables.get(table.name, ())):
            _widen(found.setdefault(table.stream, {}), partition, 0, stop)
    return {
        stream: [parts.get(p, (0, 0)) for p in range(max(parts, default=-1) + 1)]
        for stream, parts in found.items()
    }


def _widen(parts: dict[int, tuple[int, int]], partition: int, start: int, stop: int) -> None:
    low, high = parts.get(partition, (start, stop))
    parts[partition] = min(low, start), max(high, stop)


def check_offsets(
    facts: EpochFacts,
    needed: Mapping[str, Sequence[tuple[int, int]]],
    streams: Mapping[str, Stream],
) -> None:
    """Make sure that streams still have what the epoch read, and as it was.

    Raises:
        InvalidInputError: rows were dropped, or compacted since, or those there are of another
            stream of the name.
    """
    for operator, name in facts.catalog.inputs.items():
        expected = facts.state.identities.get(operator)
        if expected and name in streams and streams[name].identity not in {"", expected}:
            raise InvalidInputError(
                f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: stream "
                f"{name!r} was removed and created again since, found identity "
                f"{streams[name].identity}, expected {expected}; record a later one",
                stream=name,
            )
    tables = {table.stream: facts.plan.tables.get(table.name, []) for table in facts.catalog.tables}
    for name, parts in needed.items():
        stream = streams[name]
        begins, compacted = stream.begins(), stream.compacted()
        is_sure = not stream.spec.compact or _is_counted(facts, name) or _is_held(facts, stream)
        for partition, (start, stop) in enumerate(parts):
            if start < stop and start < begins[partition]:
                raise _gone(facts, name, partition, f"begins at offset {begins[partition]}", start)
            # Of a table only the last row of each key up to its offset counts.
            whole = tables[name][partition] if tables.get(name) else start
            if start < stop and compacted[partition] > whole and not is_sure:
                raise _compacted(facts, name)


def check_rows(facts: EpochFacts, rows: Mapping[str, int]) -> None:
    """Make sure that compacted streams had as many rows as the epoch read.

    Args:
        facts: of the epoch.
        rows: how many were found, by stream.

    Raises:
        InvalidInputError: a compaction has removed some since.
    """
    for operator, stream in facts.catalog.inputs.items():
        is_known = stream in rows and _is_counted(facts, stream)
        if is_known and rows[stream] != facts.read[operator]:
            raise _compacted(facts, stream)


def _is_counted(facts: EpochFacts, stream: str) -> bool:
    """Say whether it is known how many rows the epoch read of a stream, and nothing else did."""
    readers = [operator for operator, name in facts.catalog.inputs.items() if name == stream]
    is_table = any(table.stream == stream for table in facts.catalog.tables)
    return len(readers) == 1 and readers[0] in facts.read and not is_table


def _is_held(facts: EpochFacts, stream: Stream) -> bool:
    """Say whether the job keeps what it reads next from compactions."""
    return facts.kind != "committed" and facts.state.job in stream.holds()


def _compacted(facts: EpochFacts, stream: str) -> InvalidInputError:
    return InvalidInputError(
        f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: stream "
        f"{stream!r} is compacted further than it was then; record a later epoch",
        stream=stream,
    )


def _gone(
    facts: EpochFacts, stream: str, partition: int, what: str, start: int
) -> InvalidInputError:
    return InvalidInputError(
        f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: it read stream "
        f"{stream!r} partition {partition} from offset {start}, which {what}; record a later "
        "epoch, or let the stream keep its rows for longer: headrace bus configure",
        stream=stream,
        partition=partition,
    )
