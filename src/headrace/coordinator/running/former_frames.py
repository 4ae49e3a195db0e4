"""Inputs that were Spark DataFrames: offsets in their internal streams are of nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.coordinator.backup.places import places
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.deploy import Deployment
from headrace.coordinator.history import load_state
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.frames import FRAME_FOLDER, FRAME_NOTE
from headrace.graph.operators import Input, JobGraph
from headrace.sources.sourced import given_of


def leave_frames(graph: JobGraph, deployed: Sequence[Deployment], settings: Settings) -> None:
    """Let inputs that were DataFrames be other things, at the begin of a run of the job.

    What is known of those DataFrames goes. In the middle of a run it stays: the graph is refused.

    Args:
        graph: of the job.
        deployed: its parts.
        settings: of the run.

    Raises:
        InvalidInputError: the job was reset to offsets of such an internal stream.
    """
    folder = settings.jobs_dir / graph.name / FRAME_FOLDER
    inputs = {one.name: one for one in graph.operators if isinstance(one, Input) and not one.frame}
    left: set[Path] = set()
    for one in deployed:
        found = {b.operator for b in one.plan.reads if (folder / b.operator / FRAME_NOTE).exists()}
        if not found & inputs.keys():
            continue
        root = places(settings, one.plan.job).readable
        state = load_state(FileCommitLog(root, Files(sync=False), SystemClock()))
        if state is not None and state.fingerprint:
            continue
        for name in sorted(found & inputs.keys()):
            begins = {} if state is None else state.inputs.get(name, {})
            if any(at.next_offset for at in begins.values()):
                raise _moved(graph, inputs[name], settings)
            left.add(folder / name)
    for path in left:
        shutil.rmtree(path)


def _moved(graph: JobGraph, operator: Input, settings: Settings) -> InvalidInputError:
    given = given_of(graph, settings).get(operator.stream)
    now = f"stream {operator.stream!r}" if given is None else given.text
    return InvalidInputError(
        f"job {graph.name!r} was reset to offsets of input {operator.name!r} as it was, a Spark "
        f"DataFrame, and now it is another: {now}; begin without them: headrace jobs delete "
        f"{graph.name}",
        job=graph.name,
    )
