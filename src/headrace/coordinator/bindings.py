"""Binds what a graph names to what is there: streams, files of broadcast stores, servers.

Streams by aliases and patterns. Files are read once at the start and kept in the job's storage
by digest, so every host reads the same rows whatever becomes of the user's file, and a changed
file is a new version at the next start: Parquet, CSV and JSON lines; everything else is a
mistake. Remote stores that name no server get the one of the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

import polars as pl
import pyarrow as pa

from headrace.bus import Bus
from headrace.bus.readable import connector_of, is_address
from headrace.config import FILE, Settings
from headrace.config.loader import ON_COMMAND
from headrace.config.sections import split_output_key
from headrace.coordinator.job_storage import JobStorage
from headrace.errors import InvalidInputError
from headrace.files import disk_error
from headrace.graph.diagnostics import name_mistake
from headrace.graph.operators import (
    Input,
    JobGraph,
    KeepForSink,
    Merge,
    Operator,
    Process,
    SendTo,
    SendToSink,
    StoreSpec,
    is_pattern,
)
from headrace.graph.shared_stores import BroadcastSpec
from headrace.graph.sinks import DailyTable
from headrace.plan.inference import TableFile
from headrace.plan.parts import STREAM_SUFFIX, internal_stream_names, with_carrier
from headrace.plan.stages import MARK
from headrace.records.schema import normalise
from headrace.redaction import without_login
from headrace.sources.bounded_bus import sources_of


def with_store_servers(graph: JobGraph, url: str | None, *, absent_ok: bool = False) -> JobGraph:
    """Return the graph with the address of every remote store.

    Args:
        graph: of the job.
        url: the setting ``remote.url``.
        absent_ok: leave out what nobody gave: enough to look at.

    Raises:
        InvalidInputError: a remote store has no address, or one that no plug-in knows.
    """

    def given(spec: StoreSpec) -> StoreSpec:
        if spec.remote is None or spec.remote.url is not None:
            return spec
        if url is None and not absent_ok:
            raise InvalidInputError(
                f"store {spec.name!r} is remote but has no address; give hr.store(url=...), or the "
                "setting remote.url",
                store=spec.name,
            )
        remote = replace(spec.remote, url=url)
        for text in remote.mistakes():
            raise InvalidInputError(f"setting remote.url, for store {spec.name!r}: {text}")
        return replace(spec, remote=remote)

    def bound(operator: Operator) -> Operator:
        if not isinstance(operator, Process):
            return operator
        return replace(operator, stores=tuple(map(given, operator.stores)))

    return replace(graph, operators=tuple(map(bound, graph.operators)))


def with_deployed_sinks(graph: JobGraph, settings: Settings) -> JobGraph:
    """Return the graph with sinks as the settings of the run have them.

    Raises:
        InvalidInputError: two outputs of the job have the same table.
    """
    tables: set[str] = set()

    def deployed(operator: Operator) -> Operator:
        if not isinstance(operator, SendToSink) or operator.sink is None:
            return operator
        if isinstance(operator.sink, DailyTable):
            if operator.sink.name in tables:
                raise InvalidInputError(
                    f"table {operator.sink.name!r} is sent to by several operators; merge their "
                    "streams first, or give each a table of its own"
                )
            tables.add(operator.sink.name)
        return replace(operator, sink=operator.sink.deployed(settings))

    return replace(graph, operators=tuple(map(deployed, graph.operators)))


def with_placed_outputs(graph: JobGraph, settings: Settings) -> JobGraph:
    """Return the graph whose outputs go where the settings say, whatever the code names.

    So does what passes between parts, by the name of its ``partition_by``, in a topic or on the
    bus. Files of settings may be those of several jobs; what is given on the command is for this
    one.

    Raises:
        InvalidInputError: an address has a mistake, or is given on the command for no output.
    """
    sends = [one for one in graph.operators if isinstance(one, SendTo | SendToSink)]
    names = {_output_of(one) for one in sends} - {""}
    between = internal_stream_names(graph).keys() - names
    asked = (
        split_output_key(key) for key, by in settings.sources.items() if by.startswith(ON_COMMAND)
    )
    for name in (part[0] for part in asked if part is not None):
        if name not in names | between:
            near = get_close_matches(name, names | between, 1)
            why = f"did you mean {near[0]!r}? " if near else ""
            raise InvalidInputError(
                f"settings outputs.{name} are of no output; {why}job {graph.name!r} sends to "
                f"{', '.join(sorted(names)) or 'no stream'}",
                job=graph.name,
            )

    def placed(operator: Operator) -> Operator:
        if operator.name in between:
            given = settings.outputs.get(operator.name)
            return operator if given is None else with_carrier(operator, given.address)
        is_sending = isinstance(operator, SendTo | SendToSink)
        given = settings.outputs.get(_output_of(operator)) if is_sending else None
        if given is None or isinstance(operator, KeepForSink):
            return operator
        return _placed(graph.name, operator, given.address)

    return replace(graph, operators=tuple(map(placed, graph.operators)))


def _output_of(operator: Operator) -> str:
    """Return what settings call an output; empty: they cannot name it."""
    if isinstance(operator, SendTo):
        return operator.named
    return operator.output if isinstance(operator, SendToSink) else ""


def _placed(job: str, operator: Operator, address: str) -> Operator:
    assert isinstance(operator, SendTo | SendToSink)
    name, (where, site) = _output_of(operator), (operator.inputs, operator.site)
    if not is_address(address):
        stream = address.removeprefix(FILE)
        if (mistake := name_mistake(stream, "a stream")) is not None:
            raise InvalidInputError(f"setting outputs.{name}.address: {mistake}")
        partitions = operator.partitions if isinstance(operator, SendTo) else None
        return SendTo(operator.name, where, site, stream, partitions, operator.semantics)
    try:
        connector = connector_of(address)
        wrong = connector.mistakes(address)
    except InvalidInputError as error:
        wrong = [error.message]
    if wrong:
        raise InvalidInputError(f"setting outputs.{name}.address: {'; '.join(wrong)}")
    if isinstance(operator, SendTo) and operator.output:  # of a backfill, until it is merged
        return KeepForSink(operator.name, where, site, f"{job}.{operator.name}")
    sink = connector.sink(address)
    parts = (sink, operator.semantics, connector.name(address), address)
    return SendToSink(operator.name, where, site, *parts)


TABLES_FOLDER = "tables"
SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".jsonl": "ndjson", ".ndjson": "ndjson"}


@dataclass(frozen=True)
class LoadedFile:
    """A file as it was read: what the plan says of it, and the bytes to store."""

    bound: TableFile
    data: bytes


def broadcast_specs(graph: JobGraph) -> dict[str, BroadcastSpec]:
    """Return the broadcast stores of a graph, by name."""
    return {table.name: table for o in graph.operators for table in o.broadcast_stores}


def load_table_files(graph: JobGraph, *, absent_ok: bool = False) -> dict[str, LoadedFile]:
    """Read the files of a graph's broadcast stores, by the path that the user gave.

    Args:
        graph: of the job.
        absent_ok: leave out a file that does not exist if its schema is given.

    Raises:
        InvalidInputError: a file is missing, of an unknown kind, or does not fit its schema.
        UnavailableError: it cannot be read.
    """
    loaded = {}
    for spec in broadcast_specs(graph).values():
        if spec.file is not None and (
            Path(spec.file).exists() or not (absent_ok and spec.schema is not None)
        ):
            loaded[spec.file] = _load(spec, Path(spec.file))
    return loaded


def store_table_files(loaded: Iterable[LoadedFile], storage: JobStorage) -> None:
    """Put what was read where all hosts find it.

    Args:
        loaded: the files.
        storage: of the job.
    """
    for file in loaded:
        path = storage.root / file.bound.path
        storage.files.publish_again(path, file.data)


def _load(spec: BroadcastSpec, path: Path) -> LoadedFile:
    rows = normalise(_read(spec, path), spec.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data = sink.getvalue().to_pybytes()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return LoadedFile(TableFile(rows.schema, f"{TABLES_FOLDER}/{digest}.arrow", digest), data)


def _read(spec: BroadcastSpec, path: Path) -> pa.Table:
    kind = SUFFIXES.get(path.suffix.lower())
    where = f"broadcast store {spec.name!r}: file {path}"
    if kind is None:
        raise InvalidInputError(
            f"{where} is of no known kind; expected a name that ends in {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise InvalidInputError(f"{where} does not exist; found in {Path.cwd()}: nothing there")
    try:
        if kind == "parquet":
            return _fitted(pl.read_parquet(path), spec)
        types = None if spec.schema is None else _polars_types(spec.schema)
        if kind == "csv":
            frame = pl.read_csv(
                path, schema_overrides=types, infer_schema_length=None, try_parse_dates=True
            )
        else:
            frame = pl.read_ndjson(path, schema_overrides=types, infer_schema_length=None)
        return _fitted(frame, spec)
    except OSError as error:
        raise disk_error(error) from error
    except pl.exceptions.PolarsError as error:
        raise InvalidInputError(f"{where} cannot be read: {error}"[:1000]) from error


def _fitted(frame: pl.DataFrame, spec: BroadcastSpec) -> pa.Table:
    """The columns that the schema has, where there is one; normalising says what is missing."""
    if spec.schema is not None:
        frame = frame.select([name for name in spec.schema.names if name in frame.columns])
    return frame.to_arrow()


def _polars_types(schema: pa.Schema) -> dict[str, pl.DataType]:
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return dict(frame.schema)


def with_bound_streams(graph: JobGraph, bus: Bus) -> JobGraph:
    """Return the graph with the streams that its aliases and patterns stand for now.

    An input of a pattern becomes one input for each stream, merged under the name that the
    pattern's input had. A job keeps the streams of its aliases until it is started again.

    Raises:
        InvalidInputError: no stream matches a pattern, or a broadcast store names an alias,
            which could be swapped while it is read.
    """
    aliases = bus.aliases()
    for table in broadcast_specs(graph).values():
        if table.stream in aliases:
            raise InvalidInputError(
                f"broadcast store {table.name!r} reads {table.stream!r}, which is an alias; name "
                f"its stream, {aliases[table.stream]!r}",
                stream=table.stream,
            )
    names: list[str] | None = None
    operators: list[Operator] = []
    for operator in graph.operators:
        if isinstance(operator, Input) and is_pattern(operator.stream):
            names = readable_names(bus) if names is None else names
            operators += _expanded_graph(operator, streams_of(operator, bus, names), names)
        elif isinstance(operator, Input | SendTo) and operator.stream in aliases:
            operators.append(replace(operator, stream=aliases[operator.stream]))
        else:
            operators.append(operator)
    return replace(graph, operators=tuple(operators))


def check_no_own_output(graph: JobGraph, bus: Bus, more: Mapping[str, str]) -> None:
    """Refuse a pattern that matches what the job itself sends, which it would read without end.

    Args:
        graph: as it was written.
        bus: the streams.
        more: streams that the job sends to beside its outputs, and how to choose others.

    Raises:
        InvalidInputError: names pattern and stream.
    """
    _check_no_own_log(graph, bus)
    aliases = bus.aliases()
    sent = [
        aliases.get(one.stream, one.stream) for one in graph.operators if isinstance(one, SendTo)
    ]
    for name, pattern in patterns_of(graph).items():
        for stream in matching_streams(pattern, [*sent, *more]):
            how = more.get(stream, "name the output otherwise")
            raise InvalidInputError(
                f"input {name!r} reads {pattern!r}, which matches {stream!r}, a stream that job "
                f"{graph.name!r} sends to: it would read what it sends without end; {how}, or "
                "narrow the pattern",
                stream=stream,
            )


def _check_no_own_log(graph: JobGraph, bus: Bus) -> None:
    """Refuse the same of logs that are not of the bus."""
    sources = sources_of(bus).values()
    for one in graph.operators:
        if not isinstance(one, Input) or not is_pattern(one.stream):
            continue
        found = (source.address for source in sources if source.pattern == one.stream)
        place = _host_of(one.address or next(found, ""))
        for sends in graph.operators:
            if not isinstance(sends, SendToSink) or not place or not sends.output:
                continue
            if _host_of(sends.address) == place and fnmatchcase(sends.output, one.stream):
                raise InvalidInputError(
                    f"input {one.name!r} reads {one.stream!r} at {place}, which matches "
                    f"{sends.output!r}, where job {graph.name!r} sends to: it would read what it "
                    "sends without end; name the output otherwise, or narrow the pattern",
                    stream=sends.output,
                )


def _host_of(address: str) -> str:
    """Return an address without the name of a log, and without options."""
    return without_login(address.partition("?")[0].rpartition("/")[0])


def readable_names(bus: Bus) -> list[str]:
    """Return the names of the streams that patterns may match: internal ones are none."""
    return [name for name in bus.names() if not _is_internal(bus, name)]


def _is_internal(bus: Bus, name: str) -> bool:
    return name.endswith(STREAM_SUFFIX) and MARK in bus.stream(name).spec.schema.names


def patterns_of(graph: JobGraph) -> dict[str, str]:
    """Return the pattern of each input that has one, by the name of the input."""
    inputs = [operator for operator in graph.operators if isinstance(operator, Input)]
    return {one.name: one.stream for one in inputs if is_pattern(one.stream)}


def matching_streams(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern."""
    return [name for name in names if fnmatchcase(name, pattern)]


def streams_of(operator: Input, bus: Bus, names: Sequence[str]) -> list[str]:
    """Return what the pattern of an input matches now: streams, or logs elsewhere, never both.

    Args:
        operator: the input.
        bus: as the run has it.
        names: of its streams that patterns may match.
    """
    sources = sources_of(bus)
    found = [name for name, one in sources.items() if one.pattern == operator.stream]
    if found or operator.address:
        return sorted(found)
    elsewhere = {name for name, one in sources.items() if one.address}
    return [name for name in matching_streams(operator.stream, names) if name not in elsewhere]


def one_of(operator: str, stream: str) -> str:
    """Return the name of the input that reads one of the streams of a pattern's input."""
    return f"{operator}:{stream}"


def _expanded_graph(operator: Input, found: list[str], names: list[str]) -> Iterator[Operator]:
    if not found and operator.address:
        raise InvalidInputError(
            f"nothing matches {without_login(operator.address)}; create a topic first, or change "
            "the pattern",
            stream=operator.stream,
        )
    if not found:
        raise InvalidInputError(
            f"no stream matches {operator.stream!r}; found {names[:10]}: create one first, or "
            "change the pattern",
            stream=operator.stream,
        )
    inputs = [
        replace(operator, name=one_of(operator.name, name), stream=name, pattern=operator.name)
        for name in found
    ]
    yield from inputs
    yield Merge(operator.name, tuple(one.name for one in inputs), operator.site)
