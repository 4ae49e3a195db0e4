"""What an epoch needs of streams and stores, and whether that is still there as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.bus.bus import Stream
from headrace.coordinator.recording.collecting import Facts
from headrace.errors import InvalidInputError


def check_recordable(facts: Facts) -> list[str]:
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
            f"remote stores {', '.join(remote)} held is on a server, which also goes on; name "
            "tasks of other stages with --task"
        )
    return [one.name for one in facts.catalog.stores if not one.in_files and one.stage in wanted]


def _wanted_stages(facts: Facts) -> set[str]:
    only = facts.plan.only
    if only is None:
        return {stage.name for stage in facts.catalog.stages}
    return {name.rpartition("/")[0] for name in only}


def offsets_needed(facts: Facts) -> dict[str, list[tuple[int, int]]]:
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
    facts: Facts, needed: Mapping[str, Sequence[tuple[int, int]]], streams: Mapping[str, Stream]
) -> None:
    """Make sure that streams still have what the epoch read, and as it was.

    Raises:
        InvalidInputError: rows were dropped, or compacted since.
    """
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


def check_rows(facts: Facts, rows: Mapping[str, int]) -> None:
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


def _is_counted(facts: Facts, stream: str) -> bool:
    """Say whether it is known how many rows the epoch read of a stream, and nothing else did."""
    readers = [operator for operator, name in facts.catalog.inputs.items() if name == stream]
    is_table = any(table.stream == stream for table in facts.catalog.tables)
    return len(readers) == 1 and readers[0] in facts.read and not is_table


def _is_held(facts: Facts, stream: Stream) -> bool:
    """Say whether the job keeps what it reads next from compactions."""
    return facts.kind != "committed" and facts.state.job in stream.holds()


def _compacted(facts: Facts, stream: str) -> InvalidInputError:
    return InvalidInputError(
        f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: stream "
        f"{stream!r} is compacted further than it was then; record a later epoch",
        stream=stream,
    )


def _gone(facts: Facts, stream: str, partition: int, what: str, start: int) -> InvalidInputError:
    return InvalidInputError(
        f"epoch {facts.plan.epoch} of job {facts.state.job!r} cannot be recorded: it read stream "
        f"{stream!r} partition {partition} from offset {start}, which {what}; record a later "
        "epoch, or let the stream keep its rows for longer: headrace bus configure",
        stream=stream,
        partition=partition,
    )
