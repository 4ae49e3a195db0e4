"""What a driver does before its first epoch: outputs, the first state, whether the graph fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.bus.starts import start_offsets
from headrace.config.starts import EARLIEST, Start
from headrace.coordinator.catalog import Catalog, describe_plan
from headrace.coordinator.feeds import create_feeds
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.errors import InvalidInputError
from headrace.graph.operators import first_starts
from headrace.plan.compatibility import changes
from headrace.plan.stages import JobPlan, job_of
from headrace.state.value_changes import value_changes

Positions = dict[str, dict[int, InputPosition]]


def _only(stage: str, held: Mapping[str, int]) -> str:
    """The rest of a command that is for one stage, where there are others."""
    return f" --stage {stage}" if len(held) > 1 else ""


def create_outputs(plan: JobPlan, bus: Bus) -> None:
    """Make the streams that a job sends to, internal ones too, unless they are there."""
    create_feeds(plan, bus)
    for stage in plan.stages:
        for output in stage.outputs:
            spec = StreamSpec(
                output.stream, output.partitions, output.schema, output.time, output.keys
            )
            bus.create(spec, exist_ok=True)


def first_positions(plan: JobPlan, bus: Bus, default: Start, now_ms: int) -> Positions:
    """Return where a new job begins in each partition of its inputs.

    Args:
        plan: of the job.
        bus: the streams.
        default: of inputs that do not say; those that fill tables begin at the earliest row.
        now_ms: the wall clock.
    """
    starts = first_starts(plan.graph)
    begins = {
        binding.operator: start_offsets(
            bus.stream(binding.stream),
            starts.get(binding.operator, EARLIEST if binding.bootstrap else default),
        )
        for stage in plan.stages
        for binding in stage.inputs
    }
    begins |= {feed.operator: [0] * feed.partitions for feed in plan.feeds}
    return {
        operator: {
            partition: InputPosition(begin, read_ms=now_ms)
            for partition, begin in enumerate(offsets)
        }
        for operator, offsets in begins.items()
    }


def added_positions(
    plan: JobPlan, bus: Bus, state: JobState, ends: Mapping[str, Sequence[int]], now_ms: int
) -> Positions:
    """Return positions of what was added to the inputs of a job since: at its beginning.

    Args:
        plan: of the job, as wide as its inputs.
        bus: the streams.
        state: of the job.
        ends: next offset of each partition, by stream.
        now_ms: the wall clock.
    """
    added = {}
    for binding in plan.reads:
        held = state.inputs.get(binding.operator, {})
        if len(held) < len(ends[binding.stream]):
            begins = enumerate(bus.stream(binding.stream).begins())
            added[binding.operator] = {
                partition: InputPosition(begin, read_ms=now_ms)
                for partition, begin in begins
                if partition not in held
            }
    return added


def with_positions(state: JobState, added: Positions) -> JobState:
    """Return a state that has more positions."""
    inputs = {name: {**state.inputs.get(name, {}), **more} for name, more in added.items()}
    return msgspec.structs.replace(state, inputs={**state.inputs, **inputs}) if added else state


def task_counts(plan: JobPlan) -> dict[str, int]:
    """Return how many tasks share the key groups of each keyed stage."""
    return {stage.name: stage.tasks for stage in plan.stages if stage.keyed}


def check_graph(state: JobState, plan: JobPlan, before: Catalog | None = None) -> None:
    """Make sure that a graph can go on from a state.

    Args:
        state: of the job.
        plan: of the graph.
        before: what the stores held by the word of the plan before.

    Raises:
        InvalidInputError: it cannot; says all that has changed.
    """
    found = changes(state.fingerprint, plan.fingerprint)
    found += [] if before is None else _value_mistakes(state, before, describe_plan(plan))
    held = state.task_counts
    found += [
        f"stage {stage!r}: tasks were {held[stage]}, are now {tasks}; state is kept by task: "
        f"move it with: headrace jobs rescale {job_of(state.job)} --tasks {tasks}"
        f"{_only(stage, held)}; or set job.tasks, or tasks= of partition_by, back to {held[stage]}"
        for stage, tasks in task_counts(plan).items()
        if held.get(stage, tasks) != tasks
    ]
    found += [
        f"stage {stage.name!r}: has {stage.tasks} tasks, which do not divide the {feed.partitions} "
        f"partitions of {feed.stream!r} evenly; set job.tasks, or tasks= of partition_by, to a "
        "divisor"
        for stage in plan.stages
        for feed in stage.feeds
        if feed.partitions % stage.tasks
    ]
    if found:
        lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(found, 1))
        raise InvalidInputError(
            f"job {state.job!r} has state of epoch {state.epoch} that its graph no "
            f"longer fits:\n{lines}",
            job=state.job,
        )


def _value_mistakes(state: JobState, before: Catalog, after: Catalog) -> list[str]:
    """Say which stores hold values that cannot be read as what is declared now."""
    stages = {name.rpartition("/")[0] for name, task in state.tasks.items() if task.files}
    held = {entry.name: entry for entry in before.stores if entry.stage in stages}
    return [
        f"store {entry.name!r} of {entry.operator!r}: {text}, or begin anew: headrace jobs reset "
        f"{state.job}"
        for entry in after.stores
        if entry.form == "values" and entry.in_files and entry.name in held
        for text in value_changes(held[entry.name].value, entry.value)
    ]
