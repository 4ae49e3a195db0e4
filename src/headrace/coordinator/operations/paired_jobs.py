"""Two jobs of one code: which outputs belong together, their swap, and the marker of a merge.

Outputs of one operator belong together. ``swap_outputs`` lets the aliases of one job's outputs
stand for those of another, in one step. As long as a merge marker is there, no other run of the
job may begin: it is the run that is to be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.bus import Bus
from headrace.config import Settings
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.job_storage import JobContext, newest_storage
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.sources.listing import load_listing


@dataclass(frozen=True)
class JobOutputs:
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


def job_outputs(settings: Settings, job: str) -> JobOutputs:
    """Return what a job sends to, by the word of its last driver.

    Raises:
        InvalidInputError: there is no such job, or an older version ran it.
    """
    found = JobOutputs(job, {})
    for reader in part_readers(settings, job):
        state = reader.state()
        catalog = reader.catalog(state)
        found.sent.update(catalog.sent)
        found.sinks.update({sink.operator: sink.identity for sink in catalog.sinks})
        for operator, positions in catalog.own(state.inputs).items():
            stream = catalog.inputs.get(operator, operator)
            found.read[stream] = {p: at.next_offset for p, at in positions.items()}
    return found


def paired_outputs(first: JobOutputs, second: JobOutputs) -> dict[str, tuple[str, str]]:
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
            "second with --output-suffix, which gives it outputs of its own"
        )
    return found


def kept_for_sinks(first: JobOutputs, second: JobOutputs) -> dict[str, str]:
    """Return the streams in which the second job keeps what the first sends to sinks."""
    return {name: second.sent[name] for name in first.sinks if name in second.sent}


def inputs_behind(first: JobOutputs, second: JobOutputs) -> dict[str, int]:
    """Return how many rows of each input the second job has not read that the first has."""
    found = {}
    for stream, positions in first.read.items():
        own = second.read.get(stream, {})
        rows = sum(max(0, at - own.get(p, 0)) for p, at in positions.items())
        if stream in second.read and rows:
            found[stream] = rows
    return found


def partition_alike(context: JobContext, other: str) -> bool:
    """Say whether two jobs of one code send a key to one partition, though streams have no key.

    Then a row goes by its task: so stages have as many tasks, keys fall into the same groups, and
    rows come from the same places.
    """
    jobs = context.job, other
    both = [part_readers(context.settings, job) for job in jobs]
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
        source.stream or source.address for found in sources for source in found.values()
    )


def aliases_of(bus: Bus, stream: str) -> list[str]:
    """Return the aliases that stand for a stream."""
    return sorted(alias for alias, target in bus.aliases().items() if target == stream)


def own_streams(context: JobContext) -> list[str]:
    """Return the outputs of a job that has some of its own, which nobody else needs.

    Raises:
        InvalidInputError: it shares them with other versions of it, or aliases stand for them.
    """
    job, bus = context.job, context.bus
    if output_suffix(context.settings, job) is None:
        raise InvalidInputError(
            f"job {job!r} was not run with --output-suffix, so its outputs may be those of "
            "others, too; delete it without --outputs"
        )
    outputs = job_outputs(context.settings, job)
    streams = sorted(set(outputs.sent.values()) & set(bus.names()))
    for stream in streams:
        if aliases := aliases_of(bus, stream):
            raise InvalidInputError(
                f"alias {aliases[0]!r} points to {stream!r}, so somebody may read it; swap it "
                "back first",
                stream=stream,
            )
    return streams


def check_unused(settings: Settings, job: str, streams: Iterable[str], bus: Bus) -> None:
    """Refuse outputs in which a job that is new would find rows of others.

    Raises:
        InvalidInputError: one holds rows; names it.
    """
    if Files(sync=False).names(newest_storage(settings, job) / "manifests"):
        return
    for name in sorted(set(streams) & set(bus.names())):
        stream = bus.stream(name)
        if stream.begins() != stream.ends():
            raise InvalidInputError(
                f"job {job!r} is new, and its output {name!r} holds rows of another one, which "
                "would pass for its own: of a version that runs, so give another name with --name; "
                "or of one that was deleted, so drop them: headrace bus trim "
                f"{name} --before latest",
                stream=name,
            )


def output_suffix(settings: Settings, job: str) -> str | None:
    """Return what the names of a job's own outputs end with; ``None``: it has the usual ones."""
    path = output_suffix_file(settings, job)
    try:
        return Files(sync=False).read(path).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None


def output_suffix_file(settings: Settings, job: str) -> Path:
    """Return the file that says so."""
    return settings.jobs_dir / job / "apart"


def swap_outputs(bus: Bus, first: JobOutputs, second: JobOutputs, *, now: bool) -> dict[str, str]:
    """Swap all outputs of two jobs that belong together; readers of the aliases go over.

    Args:
        bus: the streams.
        first: whose outputs the aliases stand for.
        second: whose outputs they are to stand for.
        now: although the second one has not read as far as the first.

    Returns:
        The new stream of each alias.

    Raises:
        InvalidInputError: an output of the first has no alias, or somebody else has set it
            meanwhile; the second one is behind, or keeps rows for sinks; nothing is swapped.
    """
    pairs = paired_outputs(first, second)
    late = inputs_behind(first, second)
    if late and not now:
        lags = ", ".join(f"{rows:,} rows of {stream}" for stream, rows in late.items())
        raise InvalidInputError(
            f"job {second.job!r} is behind {first.job!r}: {lags}; let it catch up, or swap "
            "nevertheless with --force"
        )
    for operator, stream in kept_for_sinks(first, second).items():
        raise InvalidInputError(
            f"job {second.job!r} keeps in {stream!r} what it has for {first.sinks[operator]}, so "
            f"readers of that would stay with {first.job!r}: stop it, and let the new code begin "
            f"from a savepoint of {second.job!r}, without --output-suffix",
            stream=stream,
        )
    targets: dict[str, str] = {}
    seen: dict[str, str] = {}
    for old, new in pairs.values():
        aliases = aliases_of(bus, old)
        if not aliases:
            raise InvalidInputError(
                f"no alias points to {old!r}, so its readers cannot be moved to {new!r}; create "
                f"one for them to read: headrace bus alias {old}-current {old}",
                stream=old,
            )
        targets |= dict.fromkeys(aliases, new)
        seen |= dict.fromkeys(aliases, old)
    bus.swap(targets, seen)
    return targets


class MergeMarker(msgspec.Struct, frozen=True):
    """A merge that was begun, and what it goes by until its end.

    Args:
        run: the lineage of the run's first part.
        parts: in how many each output is merged, by operator.
        key: columns that were asked for; ``None``: nothing has been appended, or by an older
            version, which did not note it.
        by_function: a function chooses, not the rule that live rows win; ``None``: the same.
        is_applied: rows may be appended, or given to a sink; ``None``: by an older version.
    """

    run: str
    parts: dict[str, int]
    key: tuple[str, ...] | None = None
    by_function: bool | None = None
    is_applied: bool | None = None


@contextmanager
def merge_marker(
    context: JobContext, job: str, note: MergeMarker
) -> Iterator[Callable[[MergeMarker], None]]:
    """Note that a run is merged by a block; who dies or fails in it leaves the note.

    The block gets what puts another note in its place. One that is refused before anything was
    applied takes the note back: nothing is to be completed.

    Args:
        context: of the live job.
        job: whose run it is.
        note: of the merge.
    """
    path, files = _marker_path(context.settings, job), context.files
    last = note

    def put(note: MergeMarker) -> None:
        nonlocal last
        last = note
        files.replace(path, msgspec.json.encode(note))

    put(note)
    try:
        yield put
    except InvalidInputError:
        if last.is_applied is False:
            files.remove(path)
        raise
    files.remove(path)


def unfinished_merge(settings: Settings, job: str, run: str) -> MergeMarker | None:
    """Return what is noted of the merge of a run that is not over.

    Raises:
        InvalidInputError: that of another run is not, so these results may be counted twice.
    """
    note = _read_marker(settings, job)
    if note is None or note.run == run:
        return note
    if note.is_applied is not False:
        raise InvalidInputError(
            f"a merge of an earlier run of {job!r} was begun and never completed: some of its "
            "results are among the live ones, and those of this run may be the same; give both up: "
            f"headrace jobs delete {job} --outputs",
            job=job,
        )
    return None


def check_same_merge(
    note: MergeMarker, other: str, key: tuple[str, ...], *, by_function: bool
) -> None:
    """Refuse to complete a merge by another rule than that of the parts that are merged.

    Args:
        note: of how it was begun.
        other: whose run is merged.
        key: columns that are asked for now.
        by_function: a function is to choose now.

    Raises:
        InvalidInputError: it was begun otherwise.
    """
    began = (
        key if note.key is None else note.key,
        by_function if note.by_function is None else note.by_function,
    )
    if began != (key, by_function):
        raise InvalidInputError(
            f"the merge of {other!r} was begun with {_rule(*began)}, and is now asked for with "
            f"{_rule(key, by_function)}; complete it by the command that began it, for what was "
            f"merged stays, or give up the rest: headrace jobs delete {other} --outputs",
            job=other,
        )


def _rule(key: tuple[str, ...], by_function: bool) -> str:
    by = "a merge function (--merge-job)" if by_function else "no merge function"
    columns = f"--key {','.join(key)}" if key else "no --key"
    return f"{by} and {columns}"


def has_merge_marker(settings: Settings, job: str) -> bool:
    """Say whether a merge of a job's run was begun, and is not over, whatever run it was."""
    return bool(job) and Files(sync=False).exists(_marker_path(settings, job))


def is_half_merged(settings: Settings, job: str) -> bool:
    """Say whether a merge of the job's last run was begun, and is not over."""
    return _marker_of_last_run(settings, job) is not None


def check_no_merge(settings: Settings, job: str) -> None:
    """Refuse another run of a job while the results of its last one are merged in part.

    Raises:
        InvalidInputError: they are; what is left of them would be lost, or counted twice.
    """
    note = _marker_of_last_run(settings, job)
    if note is not None and note.is_applied is not False:
        raise InvalidInputError(
            f"a merge of the last run of {job!r} was begun, and some of its results are among the "
            "live ones; complete it by the command that began it, or give up the rest before the "
            f"next run: headrace jobs delete {job} --outputs",
            job=job,
        )


def _marker_of_last_run(settings: Settings, job: str) -> MergeMarker | None:
    note = _read_marker(settings, job)
    if note is None:
        return None
    lineages = {reader.state().lineage for reader in part_readers(settings, job)}
    return note if note.run in lineages else None


def _read_marker(settings: Settings, job: str) -> MergeMarker | None:
    try:
        data = Files(sync=False).read(_marker_path(settings, job))
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=MergeMarker)
    except msgspec.DecodeError:  # of a version that merged each output in one part
        return MergeMarker(data.decode(errors="replace"), {})


def _marker_path(settings: Settings, job: str) -> Path:
    return settings.jobs_dir / job / "merging"
