"""Two jobs of one code, and which of their outputs belong together: those of one operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.places import newest_of
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.errors import InvalidInputError
from headrace.sources.listing import load_listing


@dataclass(frozen=True)
class Outputs:
    """What a job sends to and how far it has read.

    Args:
        job: its name.
        sent: stream by operator.
        read: next offset of each partition, by input stream.
        sinks: what each sink is, in words, by operator.
    """

    job: str
    sent: dict[str, str]
    read: dict[str, dict[int, int]] = field(default_factory=dict)
    sinks: dict[str, str] = field(default_factory=dict)


def outputs_of(settings: Settings, job: str, clock: Clock) -> Outputs:
    """Return what a job sends to, by the word of its last driver.

    Raises:
        InvalidInputError: there is no such job, or an older version ran it.
    """
    found = Outputs(job, {})
    for reader in part_readers(settings, job, clock):
        state = reader.state()
        catalog = reader.catalog(state)
        found.sent.update(catalog.sent)
        found.sinks.update({sink.operator: sink.identity for sink in catalog.sinks})
        for operator, positions in state.inputs.items():
            if operator not in catalog.feeds:
                stream = catalog.inputs.get(operator, operator)
                found.read[stream] = {p: at.next_offset for p, at in positions.items()}
    return found


def pairs_of(first: Outputs, second: Outputs) -> dict[str, tuple[str, str]]:
    """Return both streams of each operator that both jobs have, where they differ.

    Raises:
        InvalidInputError: there is none, nor a sink that rows are kept for.
    """
    both = [name for name in first.sent if name in second.sent]
    found = {name: (first.sent[name], second.sent[name]) for name in both}
    found = {name: pair for name, pair in found.items() if pair[0] != pair[1]}
    if not found and not kept_for_sinks(first, second):
        same = f"both send to {', '.join(sorted(first.sent.values()))}" if both else "none is alike"
        raise InvalidInputError(
            f"jobs {first.job!r} and {second.job!r} have no outputs to compare: {same}; run the "
            "second with --apart, which gives it outputs of its own"
        )
    return found


def kept_for_sinks(first: Outputs, second: Outputs) -> dict[str, str]:
    """Return the streams in which the second job keeps what the first sends to sinks."""
    return {name: second.sent[name] for name in first.sinks if name in second.sent}


def behind(first: Outputs, second: Outputs) -> dict[str, int]:
    """Return how many rows of each input the second job has not read that the first has."""
    found = {}
    for stream, positions in first.read.items():
        own = second.read.get(stream, {})
        rows = sum(max(0, at - own.get(p, 0)) for p, at in positions.items())
        if stream in second.read and rows:
            found[stream] = rows
    return found


def are_alike(settings: Settings, first: str, second: str, clock: Clock) -> bool:
    """Say whether two jobs of one code send a key to one partition, though streams have no key.

    Then a row goes by its task: so stages have as many tasks, keys fall into the same groups, and
    rows come from the same places.
    """
    both = [part_readers(settings, job, clock) for job in (first, second)]
    shapes = [
        [
            (
                state.key_groups,
                state.task_counts,
                {name: len(held) for name, held in state.inputs.items()},
            )
            for state in (reader.state() for reader in readers)
        ]
        for readers in both
    ]
    sources = [load_listing(reader.root) or {} for readers in both for reader in readers]
    return shapes[0] == shapes[1] and all(
        source.stream for found in sources for source in found.values()
    )


def aliases_of(bus: Bus, stream: str) -> list[str]:
    """Return the aliases that stand for a stream."""
    return sorted(alias for alias, target in bus.aliases().items() if target == stream)


def own_streams(settings: Settings, job: str, bus: Bus, clock: Clock) -> list[str]:
    """Return the outputs of a job that has some of its own, which nobody else needs.

    Raises:
        InvalidInputError: it shares them with other versions of it, or aliases stand for them.
    """
    suffix = apart_of(settings, job)
    if suffix is None:
        raise InvalidInputError(
            f"job {job!r} was not run with --apart, so its outputs may be those of others, too; "
            "delete it without --outputs"
        )
    streams = sorted(set(outputs_of(settings, job, clock).sent.values()) & set(bus.names()))
    for stream in streams:
        if aliases := aliases_of(bus, stream):
            raise InvalidInputError(
                f"alias {aliases[0]!r} stands for {stream!r}, so somebody may read it; swap it "
                "back first",
                stream=stream,
            )
    return streams


def check_unused(settings: Settings, job: str, streams: Iterable[str], bus: Bus) -> None:
    """Refuse outputs in which a job that is new would find rows of others.

    Raises:
        InvalidInputError: one holds rows; names it.
    """
    if any((newest_of(settings, job) / "manifests").glob("[0-9]*.json")):
        return
    for name in sorted(set(streams) & set(bus.names())):
        stream = bus.stream(name)
        if stream.begins() != stream.ends():
            raise InvalidInputError(
                f"job {job!r} is new, and its output {name!r} holds rows of another one, which "
                "would pass for its own: of a version that runs, so give another name with --as; "
                "or of one that was deleted, so drop them: headrace bus trim "
                f"{name} --before latest",
                stream=name,
            )


def apart_of(settings: Settings, job: str) -> str | None:
    """Return what the names of a job's own outputs end with; ``None``: it has the usual ones."""
    path = apart_note(settings, job)
    return path.read_text() if path.exists() else None


def apart_note(settings: Settings, job: str) -> Path:
    """Return the file that says so."""
    return settings.jobs_dir / job / "apart"
