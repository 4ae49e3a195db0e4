"""A bus in which some streams are what the settings put in their place.

From settings to a fixed list: which files, split how; which days of a table; which offsets of a
stream. The list is saved when a run begins (``listing``), so a run that is resumed reads the same.
Logs at addresses elsewhere, such as topics of Kafka, stand for streams in the same way, and have no
end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.bus import Bus, Fence, LogAwayError, Stream, StreamSpec
from headrace.bus.read_only import ExternalStream
from headrace.bus.readable import connector_of
from headrace.clock import Clock, SystemClock
from headrace.config import EARLIEST, Settings
from headrace.config.inputs import InputSettings
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operators import (
    Input,
    JobGraph,
    Operator,
    is_pattern,
)
from headrace.graph.sinks import StoredTable, installed_warehouse
from headrace.records.schema import normalise_schema
from headrace.sources.file_streams import (
    BoundedFileStream,
    RangeStream,
    parquet_splits,
    text_splits,
)
from headrace.sources.files import Form, LineReader, form_of, found_files, infer_schema, open_text
from headrace.sources.listing import (
    BoundedSource,
    FileSplit,
    SourceFile,
    load_listing,
    save_listing,
    stream_of,
)
from headrace.sources.wanted_inputs import input_settings, wanted_inputs

LINKS = "sources"
FOLLOW_S = 10.0
"""How often a job looks which logs match its patterns."""


def find_source(
    operator: Input, given: InputSettings, bus: Bus, settings: Settings, storage: Path | None
) -> BoundedSource:
    """Return what stands for an input, as it is now.

    Args:
        operator: the input.
        given: what the settings say of it.
        bus: has streams whose ranges are read, or that say which columns files have.
        settings: of the run.
        storage: of the job, which gets links to files of tables, for these may be merged while the
            run continues; ``None``: only a look is wanted.

    Raises:
        InvalidInputError: there are no such files, or not with the columns that are expected; or
            it is a DataFrame, which only a driver on Spark makes (``frames``).
    """
    if given.dataframe is not None:
        raise InvalidInputError(
            f"input {operator.stream!r} is a {given.text}, by the settings, and here is no Spark; "
            "run the job with headrace run, and a master such as local[2], or give a test its rows "
            "as a stream or files"
        )
    if given.address is not None:
        return _of_log(operator, given.address)
    if given.files:
        return _of_files(operator, given, bus, settings.job.tasks)
    if given.table is not None:
        return _of_table(operator, given, settings, storage)
    return _of_stream(operator, given, bus)


def check_source(operator: Input, given: InputSettings, bus: Bus, settings: Settings) -> None:
    """Look whether what is to stand for an input is there; no file is read through for that.

    Raises:
        InvalidInputError: it is not.
        UnavailableError: the file system does not answer.
    """
    if given.address is not None:
        _of_log(operator, given.address)
    elif given.files:
        _listed_files(operator, given)
    elif given.table is not None:
        _in_table(given, settings)
    elif given.dataframe is None:
        _of_stream(operator, given, bus)


def _of_log(operator: Input, address: str) -> BoundedSource:
    connector = connector_of(address)
    for text in connector.mistakes(address):
        raise InvalidInputError(f"setting inputs.{operator.stream}.address: {text}")
    spec = connector.spec(operator.stream, address, operator.schema)
    said = connector.said(address)
    found, pattern = stream_of(spec), operator.pattern
    return BoundedSource(said, **found, address=address, count=spec.partitions, pattern=pattern)


def _of_stream(operator: Input, given: InputSettings, bus: Bus) -> BoundedSource:
    stream = bus.stream(given.stream or operator.stream)
    begins, ends = stream.begins(), stream.ends()
    begins = _bounds(given.from_offset, begins, "from_offset", operator)
    ends = _bounds(given.to_offset, ends, "to_offset", operator)
    spec = replace(stream.spec, time=operator.time or stream.spec.time)
    if given.begin_ms is not None or given.end_ms is not None:
        _check_timed(spec.time, operator)
    if given.begin_ms is not None and spec.time == stream.spec.time:  # what its index is of
        begins = [
            # Where the first append with such a row begins; rows before it are left out later.
            max(begin, stream.offset_at(partition, given.begin_ms))
            for partition, begin in enumerate(begins)
        ]
    ends = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
    return BoundedSource(
        given.text,
        **stream_of(spec),
        stream=stream.spec.name,
        begins=tuple(begins),
        ends=tuple(ends),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
    )


def _check_timed(time: str | None, operator: Input) -> None:
    if time is None:
        raise InvalidInputError(
            f"input {operator.stream!r}: from and to are event times, which it has none of; give "
            "time, or from_offset and to_offset"
        )


def _bounds(given: Sequence[int], there: Sequence[int], what: str, operator: Input) -> list[int]:
    if not given:
        return list(there)
    wanted = list(given) if len(given) > 1 else list(given) * len(there)
    if len(wanted) != len(there):
        raise InvalidInputError(
            f"setting inputs.{operator.stream}.{what}: found {len(wanted)} offsets, expected one, "
            f"or {len(there)}, one for each partition"
        )
    limit = max if what == "from_offset" else min
    return [limit(one, bound) for one, bound in zip(wanted, there, strict=True)]


def _of_table(
    operator: Input, given: InputSettings, settings: Settings, storage: Path | None
) -> BoundedSource:
    table, paths = _in_table(given, settings)
    if storage is not None:
        paths = _linked(paths, storage / LINKS / operator.stream)
    time = operator.time or table.time or None
    cut = [parquet_splits(number, str(path))[0] for number, path in enumerate(paths)]
    return BoundedSource(
        given.text,
        **stream_of(StreamSpec(operator.stream, 1, table.schema, time)),
        form="parquet",
        files=tuple(SourceFile(str(path), path.stat().st_size) for path in paths),
        partitions=_dealt(cut, given.partitions or min(len(cut), settings.job.tasks)),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
        is_filled=True,
    )


def _in_table(given: InputSettings, settings: Settings) -> tuple[StoredTable, list[Path]]:
    """The table, and its files of these days."""
    assert given.table is not None
    table = installed_warehouse().named_table(settings.warehouse_dir, given.table)
    if table.is_remote:
        raise InvalidInputError(
            f"table {given.table!r} is in {settings.warehouse.address}, and an input reads tables "
            "of a folder; give a DataFrame of spark.read.format('headrace') with option 'table'"
        )
    paths = [Path(path) for path in table.files(given.days)]
    if not paths:
        raise InvalidInputError(
            f"table {given.table!r} has no rows of days {given.days or 'at all'}; it has "
            f"{_days(table)}"
        )
    return table, paths


def _days(table: StoredTable) -> str:
    days = table.days
    return f"{days[0].day} to {days[-1].day}" if days else "none"


def _linked(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Give files names in the job's storage, where these can be; they stay there for the run."""
    shutil.rmtree(folder, ignore_errors=True)
    linked = []
    for path in paths:
        own = folder / path.parent.name / path.name
        own.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            os.link(path, own)
        linked.append(own if own.exists() else path)
    return linked


def _of_files(operator: Input, given: InputSettings, bus: Bus, tasks: int) -> BoundedSource:
    found, form = _listed_files(operator, given)
    files, cut, schemas = [], [], []
    for number, (address, size) in enumerate(found.items()):
        header = ""
        if form == "parquet":
            units, schema = parquet_splits(number, address)
            schemas.append(schema)
        else:
            units, header = text_splits(number, address, is_csv=form == "csv")
        files.append(SourceFile(address, size, header))
        cut.append(units)
    sample = next((file for file, units in zip(files, cut, strict=True) if units), files[0])
    spec = _spec(operator, given, bus, form, sample, schemas)
    if given.begin_ms is not None or given.end_ms is not None:
        _check_timed(spec.time, operator)
    return BoundedSource(
        given.text,
        **stream_of(spec),
        form=form,
        files=tuple(files),
        partitions=_dealt(cut, given.partitions or min(len(cut), tasks)),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
    )


def _listed_files(operator: Input, given: InputSettings) -> tuple[dict[str, int], Form]:
    """The files, with their bytes, and what they all are."""
    found: dict[str, int] = {}
    for address in given.files:
        found.update(found_files(address, given.format))
    forms = {form_of(address, given.format) for address in found}
    if len(forms) > 1:
        raise InvalidInputError(
            f"input {operator.stream!r} has files of {', '.join(sorted(forms))}; give those of one "
            "format, or say which: format ="
        )
    return found, forms.pop()


def _spec(
    operator: Input,
    given: InputSettings,
    bus: Bus,
    form: str,
    sample: SourceFile,
    schemas: Sequence[pa.Schema],
) -> StreamSpec:
    """Which columns files have to have: those of the stream, of the graph, or of one with rows."""
    name = operator.stream
    if name in bus.names() or name in bus.aliases():
        spec = bus.stream(name).spec
        return replace(spec, partitions=1, time=given.time or operator.time or spec.time)
    time = given.time or operator.time
    if operator.schema is not None:
        return StreamSpec(name, 1, operator.schema, time)
    if form == "parquet":
        return StreamSpec(name, 1, normalise_schema(schemas[0]), time)
    with open_text(sample.address) as source:
        schema = infer_schema(LineReader(source), sample.address, is_csv=form == "csv")
    return StreamSpec(name, 1, normalise_schema(schema), time)


def _dealt(
    cut: Sequence[Sequence[FileSplit]], partitions: int
) -> tuple[tuple[FileSplit, ...], ...]:
    """Deal files to partitions in turn: rows of a file stay in their order."""
    dealt: list[list[FileSplit]] = [[] for _ in range(partitions)]
    for number, units in enumerate(cut):
        dealt[number % partitions] += [unit for unit in units if unit.rows]
    return tuple(map(tuple, dealt))


class BoundedInputBus(Bus):
    """A bus that answers with bounded inputs for the streams that they stand for.

    Args:
        bus: has all the others.
        sources: by the streams that they stand for.
        reload: returns those of now, for a stream that came since.
    """

    def __init__(
        self,
        bus: Bus,
        sources: Mapping[str, BoundedSource] | None = None,
        reload: Callable[[], Mapping[str, BoundedSource]] | None = None,
    ) -> None:
        self._bus, self._reload = bus, reload
        self._sources: dict[str, BoundedSource] = {}
        self._open: dict[str, Stream] = {}
        self._look: Callable[[], Mapping[str, BoundedSource]] | None = None
        self._clock: Clock = SystemClock()
        self._next_s = 0.0
        self.use(sources or {})

    @property
    def sources(self) -> dict[str, BoundedSource]:
        """What stands for streams, by their names."""
        return dict(self._sources)

    @property
    def plain(self) -> Bus:
        """The bus itself."""
        return self._bus

    def use(self, sources: Mapping[str, BoundedSource]) -> None:
        """Let these stand for streams from now on, and no others."""
        kept = {name: one for name, one in self._open.items() if self._is_same(name, sources)}
        others = {name: one for name, one in sources.items() if name not in kept}
        self._sources = dict(sources)
        self._open = kept | {name: self._opened(name, one) for name, one in others.items()}

    def _is_same(self, name: str, sources: Mapping[str, BoundedSource]) -> bool:
        return name in sources and sources[name] == self._sources[name]

    def follow(self, look: Callable[[], Mapping[str, BoundedSource]], clock: Clock) -> None:
        """Let ``look_again`` take in what has come to the patterns of logs, and what went.

        Args:
            look: returns what matches them now.
            clock: for how often.
        """
        self._look, self._clock = look, clock
        self._next_s = clock.monotonic() + FOLLOW_S

    def look_again(self) -> None:
        """Look which logs match the patterns now, if that is due; that none answers is no news."""
        if self._look is None or self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + FOLLOW_S
        with suppress(LogAwayError):
            found = self._look()
            known = {name: one for name, one in self._sources.items() if one.pattern}
            if found.keys() != known.keys():
                others = {n: one for n, one in self._sources.items() if not one.pattern}
                self.use({**others, **found, **{n: one for n, one in known.items() if n in found}})

    def _opened(self, name: str, source: BoundedSource) -> Stream:
        if source.address:
            log = connector_of(source.address).open(source.spec(name), source.address)
            return ExternalStream(log, source.said)
        if source.stream:
            return RangeStream(name, source, self._bus.stream(source.stream))
        return BoundedFileStream(name, source)

    def create(
        self, spec: StreamSpec, *, exist_ok: bool = False, fence: Fence | None = None
    ) -> Stream:
        """Create a stream, but for those that something stands for."""
        if spec.name in self._open:
            raise InvalidInputError(
                f"stream {spec.name!r} is {self._sources[spec.name].said} by the settings, and "
                "can only be read",
                stream=spec.name,
            )
        return self._bus.create(spec, exist_ok=exist_ok, fence=fence)

    def stream(self, name: str) -> Stream:
        """Return a stream, or what stands for it."""
        if name in self._open:
            return self._open[name]
        try:
            return self._bus.stream(name)
        except InvalidInputError:
            if self._reload is None:
                raise
            self.use(self._reload())
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

    def fence(self, fence: Fence) -> None:
        """Refuse what older generations of a job ask."""
        self._bus.fence(fence)

    def fenced(self, job: str) -> int:
        """Return the newest generation announced of a job."""
        return self._bus.fenced(job)

    def _remove(self, name: str, fence: Fence | None) -> None:
        self._bus.remove(name, fence=fence)

    def _set_aliases(
        self, targets: Mapping[str, str | None], expected: Mapping[str, str] | None = None
    ) -> None:
        named = {alias: name for alias, name in targets.items() if name is not None}
        self._bus.swap(named, expected)
        for alias, name in targets.items():
            if name is None:
                self._bus.unalias(alias)


def preview_inputs(graph: JobGraph, bus: Bus, settings: Settings) -> Bus:
    """Return a bus for a look at a job: with its bounded inputs as they are now.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.

    Raises:
        InvalidInputError: an input cannot be what the settings say.
        LogAwayError: a log does not answer, and the graph does not say which columns it has.
    """
    found = {}
    for name, (operator, given) in wanted_inputs(graph, settings).items():
        try:
            found[name] = find_source(operator, given, bus, settings, None)
        except LogAwayError:
            if given.address is None or operator.pattern or operator.schema is None:
                raise
    return BoundedInputBus(bus, found) if found else bus


def check_bounded_inputs(graph: JobGraph, bus: Bus, settings: Settings) -> None:
    """Look whether all that a job reads is there, before anything of its last run goes for it.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.

    Raises:
        InvalidInputError: something is not.
        UnavailableError: a file system does not answer.
    """
    given = input_settings(graph, settings)
    for one in graph.operators:
        if not isinstance(one, Input) or one.frame or is_pattern(one.stream):
            continue
        if one.stream in given:
            check_source(one, given[one.stream], bus, settings)
        else:
            bus.stream(one.stream)


def resolve_inputs(
    graph: JobGraph,
    bus: BoundedInputBus,
    settings: Settings,
    storage: Path,
    files: Files,
    *,
    has_state: bool,
    frames: Mapping[str, BoundedSource] | None = None,
) -> None:
    """Let bounded inputs stand for streams: as the run began with, or as they are now.

    Args:
        graph: of the job.
        bus: gets them.
        settings: of the run.
        storage: of the job.
        files: the file system.
        has_state: whether the job is in the middle of a run.
        frames: rows of DataFrames that the run has in files, by their internal streams.

    Raises:
        InvalidInputError: an input cannot be what the settings say, or is another than that which
            the run began with.
    """
    held = (load_listing(storage) or {}) if has_state else {}
    held = {name: one for name, one in held.items() if not one.is_dataframe}
    asked = wanted_inputs(graph, settings)
    given = {name: one for name, (_, one) in asked.items()}
    matched = {name for name, (operator, _) in asked.items() if operator.pattern}
    if has_state:
        wanted = {name: _text(one) for name, one in given.items() if name not in matched}
        _check_same(graph.name, wanted, {n: one for n, one in held.items() if not one.pattern})
    held = {name: one for name, one in held.items() if not one.pattern or name in matched}
    # A log is the same however it is reached, and has rows that its list did not: asked again.
    again = {name for name in given if name not in held or held[name].address}
    found = {
        name: find_source(operator, one, bus.plain, settings, storage)
        for name, (operator, one) in asked.items()
        if name in again
    }
    sources = held | found | dict(frames or {})
    if sources or load_listing(storage) is not None:
        save_listing(storage, sources, files)
    bus.use(sources)


def _text(given: InputSettings) -> str:
    """What is said of an input; of a log what it is, not how it is reached."""
    return given.text if given.address is None else connector_of(given.address).said(given.address)


def _check_same(job: str, wanted: Mapping[str, str], held: Mapping[str, BoundedSource]) -> None:
    for name in sorted({*wanted, *held}):
        said = held[name].said if name in held else "the stream"
        asked = wanted.get(name, "the stream")
        if said != asked:
            raise input_changed(job, name, said, asked)


def input_changed(job: str, name: str, said: str, asked: str) -> InvalidInputError:
    """Return the error for an input that the settings make another in the middle of a run."""
    return InvalidInputError(
        f"job {job!r} is in the middle of a run in which input {name!r} is {said}; found "
        f"{asked} in the settings: end that run first, start over with headrace jobs reset "
        f"{job}, or run it under another name",
        job=job,
    )


def matched_sources(graph: JobGraph, settings: Settings) -> dict[str, BoundedSource]:
    """Return the logs that match patterns of a graph now.

    Args:
        graph: of the job.
        settings: of the run.

    Raises:
        InvalidInputError: one cannot be read.
        LogAwayError: none answers.
    """
    return {
        name: _of_log(operator, given.address)
        for name, (operator, given) in wanted_inputs(graph, settings).items()
        if operator.pattern and given.address is not None
    }


def saved_inputs(bus: Bus, storage: Path) -> Bus:
    """Return the bus as the run of a job has it: what its slots read."""
    sources = load_listing(storage)
    if not sources:
        return bus
    return BoundedInputBus(bus, sources, lambda: load_listing(storage) or {})


def underlying_bus(bus: Bus) -> Bus:
    """Return the bus alone, without what stands for streams."""
    return bus.plain if isinstance(bus, BoundedInputBus) else bus


def sources_of(bus: Bus) -> Mapping[str, BoundedSource]:
    """Return what stands for streams of a bus, by their names."""
    return bus.sources if isinstance(bus, BoundedInputBus) else {}


def look_again(bus: Bus) -> None:
    """Take in what has come to the patterns of logs, where that is due."""
    if isinstance(bus, BoundedInputBus):
        bus.look_again()


def share_sources(bus: Bus, storages: Iterable[Path], files: Files) -> None:
    """Let the slots of all parts find what stands for streams."""
    if isinstance(bus, BoundedInputBus):
        for storage in storages:
            save_listing(storage, bus.sources, files)


def from_beginning(graph: JobGraph, bus: Bus) -> JobGraph:
    """Return a graph that reads what has an end, in the place of streams, from its first row."""
    bounded = {name for name, source in sources_of(bus).items() if not source.address}

    def begun(operator: Operator) -> Operator:
        if isinstance(operator, Input) and operator.stream in bounded:
            return replace(operator, start=EARLIEST)
        return operator

    return replace(graph, operators=tuple(map(begun, graph.operators))) if bounded else graph
