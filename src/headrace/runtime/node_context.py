"""What the node of an operator is made of: its stage and task, stores, limits and the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.graph.operators import Operator
from headrace.plan.stages import CallLimits, Stage
from headrace.runtime.async_loop import CallLoop
from headrace.runtime.context import RemoteStores
from headrace.runtime.node import Node
from headrace.state.broadcast import BroadcastTable
from headrace.state.columnar_table import ColumnarTable
from headrace.state.task_state import TaskState


@dataclass(frozen=True)
class RuntimeContext:
    """What is the same for all tasks of a job in a process.

    Args:
        job: its name.
        key_groups: of the job.
        limits: of calls of the user's functions.
        bus: where records are read again that become dead letters.
        loop: of the process, for asynchronous calls.
        hot_keys: whether heavy keys are looked for.
    """

    job: str
    key_groups: int
    limits: CallLimits
    bus: Bus
    loop: CallLoop
    hot_keys: bool = True


@dataclass(frozen=True)
class NodeContext:
    """What nodes of a task are made of.

    Args:
        stage: the stage.
        task: number of the task.
        groups: its key groups, first and after last; unused for source tasks.
        runtime: what it has in common with the other tasks.
        state: its stores, caught up; ``None`` where the stage has none.
        remotes: opens its remote stores.
        tables: the broadcast stores of the process, at the epoch's offsets.
        asks: in a stage that reads by offset, what makes its asynchronous calls; else empty.
    """

    stage: Stage
    task: int
    groups: tuple[int, int]
    runtime: RuntimeContext
    state: TaskState | None
    remotes: RemoteStores
    tables: Mapping[str, BroadcastTable]
    asks: Mapping[str, Node] = field(default_factory=dict)

    def source_schema(self, operator: Operator) -> pa.Schema:
        """Return the columns that reach an operator by its first input."""
        return self.stage.schemas[operator.inputs[0]]

    def table(self, store: str) -> ColumnarTable:
        """Return a store of columns."""
        return self.stores.table(store)

    @property
    def stores(self) -> TaskState:
        """The stores of the task, where an operator has some."""
        assert self.state is not None
        return self.state

    def delay_ms(self, operator: Operator) -> int:
        """Return how far the watermark that reaches an operator is behind the stage's."""
        return self.stage.delays.get(operator.name, 0)
