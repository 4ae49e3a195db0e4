"""From settings to a fixed list: which files, cut how, or which offsets of a stream."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import StreamSpec
from headrace.config import Settings
from headrace.config.inputs import InputSettings
from headrace.errors import InvalidInputError
from headrace.graph.operators import Input
from headrace.records.schema import normalise_schema
from headrace.sources.addresses import Form, form_of, found_files, open_text
from headrace.sources.infer import inferred
from headrace.sources.line_source import LineSource
from headrace.sources.listing import Source, SourceFile, Unit, what_of
from headrace.sources.units import parquet_units, text_units
from headrace.warehouse import Table, named_table

LINKS = "sources"


def find_source(
    operator: Input, given: InputSettings, bus: Bus, settings: Settings, storage: Path | None
) -> Source:
    """Return what stands for an input, as it is now.

    Args:
        operator: the input.
        given: what the settings say of it.
        bus: has streams whose ranges are read, or that say which columns files have.
        settings: of the run.
        storage: of the job, which gets links to files of tables, for these may be merged while the
            run goes on; ``None``: only a look is wanted.

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
    if given.files:
        _listed(operator, given)
    elif given.table is not None:
        _in_table(given, settings)
    elif given.dataframe is None:
        _of_stream(operator, given, bus)


def _of_stream(operator: Input, given: InputSettings, bus: Bus) -> Source:
    stream = bus.stream(given.stream or operator.stream)
    begins, ends = stream.begins(), stream.ends()
    begins = _bounds(given.from_offset, begins, "from_offset", operator)
    ends = _bounds(given.to_offset, ends, "to_offset", operator)
    spec = replace(stream.spec, time=operator.time or stream.spec.time)
    if given.begin_ms is not None or given.end_ms is not None:
        _check_timed(spec.time, operator)
    if given.begin_ms is not None and spec.time == stream.spec.time:  # what its index is of
        begins = [
            max(begin, _offset(stream, partition, given.begin_ms))
            for partition, begin in enumerate(begins)
        ]
    ends = [max(begin, end) for begin, end in zip(begins, ends, strict=True)]
    return Source(
        given.text,
        **what_of(spec),
        stream=stream.spec.name,
        begins=tuple(begins),
        ends=tuple(ends),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
    )


def _offset(stream: Stream, partition: int, time_ms: int) -> int:
    """Where the first append with a row of that time begins; rows before it are left out later."""
    return stream.offset_at(partition, time_ms)


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
) -> Source:
    table, paths = _in_table(given, settings)
    if storage is not None:
        paths = _linked(paths, storage / LINKS / operator.stream)
    time = operator.time or table.time or None
    cut = [parquet_units(number, str(path))[0] for number, path in enumerate(paths)]
    return Source(
        given.text,
        **what_of(StreamSpec(operator.stream, 1, table.schema, time)),
        form="parquet",
        files=tuple(SourceFile(str(path), path.stat().st_size) for path in paths),
        partitions=_dealt(cut, given.partitions or min(len(cut), settings.job.tasks)),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
        is_filled=True,
    )


def _in_table(given: InputSettings, settings: Settings) -> tuple[Table, list[Path]]:
    """The table, and its files of these days."""
    assert given.table is not None
    table = named_table(settings.warehouse_dir, given.table)
    paths = [Path(path) for path in table.files(given.days)]
    if not paths:
        raise InvalidInputError(
            f"table {given.table!r} has no rows of days {given.days or 'at all'}; it has "
            f"{_days(table)}"
        )
    return table, paths


def _days(table: Table) -> str:
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


def _of_files(operator: Input, given: InputSettings, bus: Bus, tasks: int) -> Source:
    found, form = _listed(operator, given)
    files, cut, schemas = [], [], []
    for number, (address, size) in enumerate(found.items()):
        header = ""
        if form == "parquet":
            units, schema = parquet_units(number, address)
            schemas.append(schema)
        else:
            units, header = text_units(number, address, is_csv=form == "csv")
        files.append(SourceFile(address, size, header))
        cut.append(units)
    telling = next((file for file, units in zip(files, cut, strict=True) if units), files[0])
    spec = _spec(operator, given, bus, form, telling, schemas)
    if given.begin_ms is not None or given.end_ms is not None:
        _check_timed(spec.time, operator)
    return Source(
        given.text,
        **what_of(spec),
        form=form,
        files=tuple(files),
        partitions=_dealt(cut, given.partitions or min(len(cut), tasks)),
        begin_ms=given.begin_ms,
        end_ms=given.end_ms,
    )


def _listed(operator: Input, given: InputSettings) -> tuple[dict[str, int], Form]:
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
    telling: SourceFile,
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
    with open_text(telling.address) as source:
        schema = inferred(LineSource(source), telling.address, is_csv=form == "csv")
    return StreamSpec(name, 1, normalise_schema(schema), time)


def _dealt(cut: Sequence[Sequence[Unit]], partitions: int) -> tuple[tuple[Unit, ...], ...]:
    """Deal files to partitions in turn: rows of a file stay in their order."""
    dealt: list[list[Unit]] = [[] for _ in range(partitions)]
    for number, units in enumerate(cut):
        dealt[number % partitions] += [unit for unit in units if unit.rows]
    return tuple(map(tuple, dealt))
