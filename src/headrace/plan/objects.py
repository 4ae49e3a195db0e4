"""A plan as plain objects, for programs: what ``explain`` tells in words."""

from __future__ import annotations

from typing import Any

from headrace.plan.explain import describe
from headrace.plan.parts import split
from headrace.plan.stages import HIDDEN, JobPlan, Stage


def plan_object(plan: JobPlan) -> dict[str, Any]:
    """Return a plan ready for JSON: its stages in order of parts and their levels."""
    return {
        "job": plan.graph.name,
        "key_groups": plan.key_groups,
        "stages": [
            {"part": part.job, **_stage(stage)} for part in split(plan) for stage in part.stages
        ],
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "stage": stage.index,
        "name": stage.name,
        "level": stage.level,
        "tasks": stage.tasks,
        "keys": list(stage.receives[0].keys) if stage.keyed else None,
        "inputs": [
            {
                "operator": one.operator,
                "stream": one.stream,
                "partitions": one.partitions,
                "columns": list(one.columns),
                "time": one.time,
                "lateness_ms": one.lateness_ms,
                "bootstrap": one.bootstrap,
                "priority": one.priority,
                "source": one.source,
            }
            for one in stage.inputs
        ],
        "operators": [{"name": one.name, "does": describe(one)} for one in stage.operators],
        "stores": [
            {"name": one.name, "kind": one.kind, "ttl_ms": one.ttl_ms, "changelog": one.changelog}
            for one in stage.stores
        ],
        "sends": [
            {
                "by": one.operator,
                "to": one.target_stage,
                "through": one.stream or None,
                "columns": [name for name in one.schema.names if name not in HIDDEN],
            }
            for one in stage.sends
        ],
        "outputs": [
            {"operator": one.operator, "stream": one.stream, "partitions": one.partitions}
            for one in stage.outputs
        ],
        "sinks": [
            {"operator": one.operator, "identity": one.sink.identity, "promise": one.sink.promise}
            for one in stage.sinks
        ],
    }
