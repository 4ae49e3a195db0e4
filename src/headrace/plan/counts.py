"""How many tasks each keyed stage of a new job has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.graph.operators import Operator, PartitionBy
from headrace.plan.cutting import Cut


def wanted_tasks(
    operators: Mapping[str, Operator],
    cut: Cut,
    key_groups: int,
    report: Callable[[Operator, str], None],
) -> dict[int, int]:
    """Return the tasks of the stages whose ``partition_by`` asks for a number, by their index.

    Args:
        operators: of the graph.
        cut: says which stage a ``partition_by`` feeds.
        key_groups: of the job; a task needs one.
        report: takes mistakes.
    """
    asked: dict[int, PartitionBy] = {}
    for operator in operators.values():
        if not isinstance(operator, PartitionBy) or operator.tasks is None:
            continue
        if operator.tasks > key_groups:
            report(
                operator,
                f"tasks={operator.tasks}, but the job has {key_groups} key groups, and a task "
                "needs one: take fewer tasks, or a new job with more job.key_groups",
            )
        other = asked.setdefault(cut.stage_of[operator.name], operator)
        if other.tasks != operator.tasks:
            report(
                operator,
                f"tasks={operator.tasks}, but {other.name!r} feeds the same stage and asks for "
                f"{other.tasks}: give both the same, or leave one out",
            )
    return {index: operator.tasks for index, operator in asked.items() if operator.tasks}
