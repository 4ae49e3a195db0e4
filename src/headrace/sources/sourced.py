"""A bus in which some streams are what the settings put in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import StreamSpec
from headrace.clock import Clock
from headrace.config import Settings
from headrace.config.inputs import InputSettings, split_key
from headrace.config.sources import ON_COMMAND
from headrace.config.starts import EARLIEST
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operators import Input, JobGraph, Operator, is_pattern
from headrace.sources.finding import check_source, find_source
from headrace.sources.listing import Source, load_listing, save_listing
from headrace.sources.streams import FileStream, RangeStream


class SourcedBus(Bus):
    """A bus that answers with bounded inputs for the streams that they stand for.

    Args:
        bus: has all the others.
        sources: by the streams that they stand for.
    """

    def __init__(self, bus: Bus, sources: Mapping[str, Source] | None = None) -> None:
        self._bus = bus
        self._sources: dict[str, Source] = {}
        self._open: dict[str, Stream] = {}
        self.use(sources or {})

    @property
    def sources(self) -> dict[str, Source]:
        """What stands for streams, by their names."""
        return dict(self._sources)

    @property
    def plain(self) -> Bus:
        """The bus itself."""
        return self._bus

    def use(self, sources: Mapping[str, Source]) -> None:
        """Let these stand for streams from now on, and no others."""
        self._sources = dict(sources)
        self._open = {
            name: RangeStream(name, source, self._bus.stream(source.stream))
            if source.stream
            else FileStream(name, source)
            for name, source in self._sources.items()
        }

    def create(self, spec: StreamSpec, *, exist_ok: bool = False) -> Stream:
        """Create a stream, but for those that something stands for."""
        if spec.name in self._open:
            raise InvalidInputError(
                f"stream {spec.name!r} is {self._sources[spec.name].said} by the settings, and "
                "can only be read",
                stream=spec.name,
            )
        return self._bus.create(spec, exist_ok=exist_ok)

    def stream(self, name: str) -> Stream:
        """Return a stream, or what stands for it."""
        return self._open[name] if name in self._open else self._bus.stream(name)

    def names(self) -> list[str]:
        """Return the names of all streams, and of those that something stands for."""
        return sorted({*self._bus.names(), *self._open})

    def aliases(self) -> dict[str, str]:
        """Return the aliases, but for those that something stands for."""
        found = self._bus.aliases().items()
        return {alias: stream for alias, stream in found if alias not in self._open}

    def close(self) -> None:
        """Close the bus itself."""
        self._bus.close()

    def _remove(self, name: str) -> None:
        self._bus.remove(name)

    def _set_aliases(self, targets: Mapping[str, str | None]) -> None:
        self._bus.swap({alias: name for alias, name in targets.items() if name is not None})
        for alias, name in targets.items():
            if name is None:
                self._bus.unalias(alias)

    def from_the_begin(self, graph: JobGraph) -> JobGraph:
        """Return a graph that reads what stands for streams from its first row."""

        def begun(operator: Operator) -> Operator:
            if isinstance(operator, Input) and operator.stream in self._open:
                return replace(operator, start=EARLIEST)
            return operator

        return replace(graph, operators=tuple(map(begun, graph.operators)))


def look_up(graph: JobGraph, bus: Bus, settings: Settings) -> Bus:
    """Return a bus for a look at a job: with its bounded inputs as they are now.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.

    Raises:
        InvalidInputError: an input cannot be what the settings say.
    """
    found = _found(graph, bus, settings, None)
    return SourcedBus(bus, found) if found else bus


def check(graph: JobGraph, bus: Bus, settings: Settings) -> None:
    """Look whether all that a job reads is there, before anything of its last run goes for it.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.

    Raises:
        InvalidInputError: something is not.
        UnavailableError: a file system does not answer.
    """
    given = given_of(graph, settings)
    for one in graph.operators:
        if not isinstance(one, Input) or one.frame or is_pattern(one.stream):
            continue
        if one.stream in given:
            check_source(one, given[one.stream], bus, settings)
        else:
            bus.stream(one.stream)


def fix(
    graph: JobGraph,
    bus: SourcedBus,
    settings: Settings,
    storage: Path,
    files: Files,
    clock: Clock,
    *,
    has_state: bool,
) -> None:
    """Let bounded inputs stand for streams: as the run began with, or as they are now.

    Args:
        graph: of the job.
        bus: gets them.
        settings: of the run.
        storage: of the job.
        files: the file system.
        clock: for names.
        has_state: whether the job is in the middle of a run.

    Raises:
        InvalidInputError: an input cannot be what the settings say, or is another than that which
            the run began with.
    """
    held = load_listing(storage) if has_state else None
    wanted = {name: given.text for name, given in given_of(graph, settings).items()}
    if has_state:
        _check_same(graph.name, wanted, held or {})
    sources = held or _found(graph, bus.plain, settings, storage)
    if sources or load_listing(storage) is not None:
        save_listing(storage, sources, files, clock.new_id())
    bus.use(sources)


def _check_same(job: str, wanted: Mapping[str, str], held: Mapping[str, Source]) -> None:
    for name in sorted({*wanted, *held}):
        said = held[name].said if name in held else "the stream"
        asked = wanted.get(name, "the stream")
        if said != asked:
            raise not_the_same(job, name, said, asked)


def not_the_same(job: str, name: str, said: str, asked: str) -> InvalidInputError:
    """Return the error for an input that the settings make another in the middle of a run."""
    return InvalidInputError(
        f"job {job!r} is in the middle of a run in which input {name!r} is {said}; found "
        f"{asked} in the settings: end that run first, begin anew with headrace jobs reset "
        f"{job}, or run it under another name",
        job=job,
    )


def given_of(graph: JobGraph, settings: Settings) -> dict[str, InputSettings]:
    """Return what the settings say of the streams that a graph reads.

    Files of settings may be those of several jobs; what is given on the command is for this one.

    Raises:
        InvalidInputError: what is given on the command is of no input.
    """
    inputs = [one for one in graph.operators if isinstance(one, Input)]
    names, read = {one.named for one in inputs}, {one.stream for one in inputs}
    asked = (split_key(key) for key, by in settings.sources.items() if by.startswith(ON_COMMAND))
    for name in (part[0] for part in asked if part is not None):
        if name not in names or is_pattern(name):
            raise _not_known(graph.name, name, sorted(names))
    return {name: given for name, given in settings.inputs.items() if name in read}


def _not_known(job: str, name: str, names: Sequence[str]) -> InvalidInputError:
    if is_pattern(name):
        why = "which is a pattern: what stands for a stream is said by the name of one"
    else:
        near = get_close_matches(name, names, 1)
        why = f"did you mean {near[0]!r}? " if near else ""
        why += f"job {job!r} reads {', '.join(names) or 'no stream'}"
    return InvalidInputError(f"settings inputs.{name} are of no input; {why}", job=job)


def _found(
    graph: JobGraph, bus: Bus, settings: Settings, storage: Path | None
) -> dict[str, Source]:
    inputs: dict[str, Input] = {}
    for one in graph.operators:
        if isinstance(one, Input) and not is_pattern(one.stream):
            inputs.setdefault(one.stream, one)
    return {
        name: find_source(inputs[name], given, bus, settings, storage)
        for name, given in given_of(graph, settings).items()
        if name in inputs
    }


def saved(bus: Bus, storage: Path) -> Bus:
    """Return the bus as the run of a job has it: what its slots read."""
    sources = load_listing(storage)
    return SourcedBus(bus, sources) if sources else bus


def plain(bus: Bus) -> Bus:
    """Return the bus alone, without what stands for streams."""
    return bus.plain if isinstance(bus, SourcedBus) else bus
