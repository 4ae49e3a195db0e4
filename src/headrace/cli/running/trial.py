"""Runs a job once on files, in memory and without Spark: what ``headrace dev`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from headrace.bus.spec import StreamSpec
from headrace.cli.bus.tailing import Tail, Tailed
from headrace.cli.ingest.appending import File, columns_of
from headrace.cli.ingest.row_files import format_of, open_lines, read_rows
from headrace.coordinator.table_files import broadcast_specs
from headrace.errors import InvalidInputError
from headrace.graph.jobs import Job
from headrace.graph.operators import Input, JobGraph, SendTo
from headrace.sources.line_source import LineSource
from headrace.testing.driver import TestDriver

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
_BATCH_ROWS = 50_000


class Shown(NamedTuple):
    """The last rows of one output, and how many there are in all."""

    spec: StreamSpec
    rows: int
    last: list[Tailed]


def try_job(job: Job, data: Path, files: Mapping[str, Path], most: int) -> Iterator[Shown]:
    """Run a job to the end of its sample data; yield what it sends, output after output.

    Args:
        job: made by ``headrace.job``.
        data: folder with a file for each input, called like its stream.
        files: of streams whose file is elsewhere.
        most: rows of each output that are wanted.

    Raises:
        InvalidInputError: the job, or its data, is at fault.
    """
    graph = job.build()
    with TestDriver(job) as driver:
        for stream, time in _streams(graph).items():
            _fill(driver, stream, time, _file_of(stream, data, files))
        driver.finish()
        for name in dict.fromkeys(o.stream for o in graph.operators if isinstance(o, SendTo)):
            output = driver.bus.stream(name)
            rows = sum(output.ends()) - sum(output.begins())
            last = next(iter(Tail(output, None).rows(None, most)), [])
            yield Shown(output.spec, rows, last)


def _streams(graph: JobGraph) -> dict[str, str | None]:
    """The streams that a job reads, each with its event-time column."""
    made = {o.stream for o in graph.operators if isinstance(o, SendTo)}
    found = {o.stream: o.time for o in graph.operators if isinstance(o, Input)}
    for table in broadcast_specs(graph).values():
        if table.stream is not None:
            found.setdefault(table.stream, None)
    return {stream: time for stream, time in found.items() if stream not in made}


def _file_of(stream: str, data: Path, files: Mapping[str, Path]) -> Path:
    if stream in files:
        return files[stream]
    for suffix in SUFFIXES:
        if (path := data / f"{stream}{suffix}").is_file():
            return path
    raise InvalidInputError(
        f"no sample data of stream {stream!r}; expected {data / stream}.jsonl, .csv or .parquet, "
        f"or --data {stream}=FILE"
    )


def _fill(driver: TestDriver, stream: str, time: str | None, path: Path) -> None:
    file = File(str(path), format_of(str(path), None))
    if not path.is_file():
        raise InvalidInputError(f"no file {path}; check --data")
    with ExitStack() as opened:
        is_typed = file.form == "parquet"
        lines = None if is_typed else LineSource(opened.enter_context(open_lines(file.path)))
        schema = columns_of(file, lines)
    if time is not None and time not in schema.names:
        raise InvalidInputError(
            f"{path} has no column {time!r}, the event time of {stream!r}; found {schema.names}"
        )
    target = driver.bus.create(StreamSpec(stream, 1, schema, time))
    for rows in read_rows(file.path, file.form, target.spec, batch_rows=_BATCH_ROWS):
        target.append_rows(rows.batch)
