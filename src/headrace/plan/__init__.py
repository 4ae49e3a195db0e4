"""From a graph to stages and tasks: checks, column pruning, ``explain``, compatibility.

Read ``stages`` for the data, ``planner`` for how it is made.
"""

from headrace.graph.operator_base import StreamInfo
from headrace.plan.compatibility import changes
from headrace.plan.explain import explain, mermaid
from headrace.plan.planner import plan
from headrace.plan.stages import (
    JobPlan,
    Stage,
)

__all__ = ["JobPlan", "Stage", "StreamInfo", "changes", "explain", "mermaid", "plan"]
