"""Inputs whose streams the settings replace by Spark DataFrames."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.config import Settings
from headrace.config.inputs import InputSettings
from headrace.config.starts import EARLIEST
from headrace.errors import InvalidInputError
from headrace.graph.frames import FrameSource, SettingsFrame, frame_stream
from headrace.graph.operators import Input, JobGraph, Operator, is_pattern
from headrace.sources.sourced import given_of


def with_frames(graph: JobGraph, bus: Bus, settings: Settings) -> JobGraph:
    """Return a graph whose inputs are DataFrames where the settings say so.

    They become what ``g.input_dataframe`` makes of them: inputs over internal streams. Their names
    stay, and so does all that is behind them.

    Args:
        graph: of the job.
        bus: has streams that say which columns and event time an input has.
        settings: of the run.

    Raises:
        InvalidInputError: what is given on the command is of no input, or of a DataFrame already.
    """
    if not settings.inputs:
        return graph
    given = {name: one for name, one in given_of(graph, settings).items() if one.dataframe}

    def framed(operator: Operator) -> Operator:
        if not isinstance(operator, Input) or is_pattern(operator.stream):
            return operator
        found = given.get(operator.stream)
        return operator if found is None else _framed(graph.name, operator, found, bus)

    return replace(graph, operators=tuple(map(framed, graph.operators))) if given else graph


def _framed(job: str, operator: Input, given: InputSettings, bus: Bus) -> Input:
    if operator.frame is not None:
        raise InvalidInputError(
            f"setting inputs.{operator.stream}: input {operator.name!r} of job {job!r} is a Spark "
            "DataFrame by its code; dataframe goes with g.input",
            job=job,
        )
    known = operator.stream in bus.names() or operator.stream in bus.aliases()
    spec = bus.stream(operator.stream).spec if known else None
    time = given.time or operator.time or (spec.time if spec and operator.event is None else None)
    instead = SettingsFrame(operator.stream, given, _columns(operator, spec, time))
    return replace(
        operator,
        stream=frame_stream(job, operator.name),
        time=time,
        start=EARLIEST,
        schema=instead.columns,
        frame=FrameSource(None, (), given.partitions, instead),
    )


def _columns(operator: Input, spec: StreamSpec | None, time: str | None) -> pa.Schema | None:
    """Which columns it has to have: those of the graph, or of the stream of that name."""
    if operator.schema is None:
        return None if spec is None else spec.schema
    columns = operator.schema
    if spec is not None and time in spec.schema.names and time not in columns.names:
        columns = columns.append(spec.schema.field(time))
    return columns
