"""From a graph to stages and tasks: checks, column pruning, ``explain``, compatibility.

Read ``stages`` for the data, ``planner`` for how it is made.
"""

from headrace.plan.compatibility import changes
from headrace.plan.diagram import mermaid
from headrace.plan.explain import explain
from headrace.plan.planner import plan
from headrace.plan.stages import JobPlan, Stage, StreamInfo

__all__ = ["JobPlan", "Stage", "StreamInfo", "changes", "explain", "mermaid", "plan"]
