"""A plan with other numbers of tasks or partitions: nothing else of it depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.plan.stages import JobPlan, Stage


def with_task_counts(plan: JobPlan, counts: Mapping[str, int]) -> JobPlan:
    """Return a plan whose keyed stages have other numbers of tasks.

    Outputs keep the partitions that they were planned with, and source stages their tasks.

    Args:
        plan: of the job.
        counts: by the name of the stage; a stage that is not named stays as it is.
    """
    stages = tuple(
        replace(stage, tasks=counts.get(stage.name, stage.tasks)) if stage.keyed else stage
        for stage in plan.stages
    )
    return plan if stages == plan.stages else replace(plan, stages=stages)


def with_partitions(plan: JobPlan, counts: Mapping[str, int]) -> JobPlan:
    """Return a plan whose source stages read partitions that were added to their streams.

    Args:
        plan: of the job.
        counts: partitions of each input stream by now.
    """

    def widened(stage: Stage) -> Stage:
        inputs = tuple(
            replace(binding, partitions=max(binding.partitions, counts[binding.stream]))
            for binding in stage.inputs
        )
        return replace(stage, inputs=inputs, tasks=max(b.partitions for b in inputs))

    stages = tuple(stage if stage.keyed else widened(stage) for stage in plan.stages)
    return plan if stages == plan.stages else replace(plan, stages=stages)
