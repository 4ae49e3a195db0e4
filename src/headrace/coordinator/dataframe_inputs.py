"""Inputs that are Spark DataFrames, as those know them who plan and begin a run.

The settings may put a DataFrame in the place of a stream. It becomes an input over an internal
stream, as ``g.input_dataframe`` makes it, before the job is planned; what fills the stream is in
``headrace.spark``. See decision 0032.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.bus import Bus, StreamSpec
from headrace.config import EARLIEST, Settings
from headrace.config.inputs import InputSettings
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.job_storage import job_storages
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.operators import (
    FRAME_FOLDER,
    FRAME_NOTE,
    FrameSource,
    Input,
    JobGraph,
    Operator,
    SettingsFrame,
    frame_stream,
    is_pattern,
)
from headrace.plan.stages import JobPlan
from headrace.sources.wanted_inputs import input_settings


def with_dataframes(graph: JobGraph, bus: Bus, settings: Settings) -> JobGraph:
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
    given = {name: one for name, one in input_settings(graph, settings).items() if one.dataframe}

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


def refuse_dataframes(graph: JobGraph) -> None:
    """Refuse a graph with such inputs where there is no Spark.

    Raises:
        InvalidInputError: an input is a DataFrame.
    """
    frames = [one.name for one in graph.operators if isinstance(one, Input) and one.frame]
    if frames:
        raise InvalidInputError(
            f"input {frames[0]!r} of job {graph.name!r} is a Spark DataFrame, and here is no "
            "Spark; run it with headrace run, and a master such as local[2]",
            job=graph.name,
        )


def check_has_columns(job: str, operator: Input) -> None:
    """Refuse to plan with an input whose stream does not exist, and is yet to be filled.

    Raises:
        InvalidInputError: it is a DataFrame, and nobody says which columns it has.
    """
    if operator.frame is not None and operator.schema is None:  # nobody creates its stream by hand
        raise InvalidInputError(
            f"input {operator.name!r} of job {job!r} is a Spark DataFrame, whose columns are known "
            "when it has run once; run it, or give the input schema= to plan without that",
            job=job,
        )


def leave_dataframes(graph: JobGraph, plans: Sequence[JobPlan], settings: Settings) -> None:
    """Let inputs that were DataFrames be other things, at the begin of a run of the job.

    What is known of those DataFrames goes. In the middle of a run it stays: the graph is refused.

    Args:
        graph: of the job.
        plans: of its parts.
        settings: of the run.

    Raises:
        InvalidInputError: the job was reset to offsets of such an internal stream.
    """
    folder = settings.jobs_dir / graph.name / FRAME_FOLDER
    inputs = {one.name: one for one in graph.operators if isinstance(one, Input) and not one.frame}
    left: set[Path] = set()
    for plan in plans:
        found = {b.operator for b in plan.reads if (folder / b.operator / FRAME_NOTE).exists()}
        if not found & inputs.keys():
            continue
        root = job_storages(settings, plan.job).readable
        state = load_state(FileCommitLog(root, Files(sync=False)))
        if state is not None and state.fingerprint:
            continue
        for name in sorted(found & inputs.keys()):
            begins = {} if state is None else state.inputs.get(name, {})
            if any(at.next_offset for at in begins.values()):
                raise _moved(graph, inputs[name], settings)
            left.add(folder / name)
    for path in left:
        Files().remove_tree(path)


def _moved(graph: JobGraph, operator: Input, settings: Settings) -> InvalidInputError:
    given = input_settings(graph, settings).get(operator.stream)
    now = f"stream {operator.stream!r}" if given is None else given.text
    return InvalidInputError(
        f"job {graph.name!r} was reset to offsets of input {operator.name!r} as it was, a Spark "
        f"DataFrame, and now it is another: {now}; begin without them: headrace jobs delete "
        f"{graph.name}",
        job=graph.name,
    )
