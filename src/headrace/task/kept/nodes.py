"""Makes the nodes of tables and of joins with them."""

from __future__ import annotations

from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.plan.stages import Stage
from headrace.state.columnar.table import ColumnarTable
from headrace.state.task_state import TaskState
from headrace.task.kept.joins import JoinKeptNode, JoinTablesNode
from headrace.task.kept.table import KeepTableNode
from headrace.task.messages.stateless import ForwardNode
from headrace.task.node import Node

Kept = KeepTable | Changes | JoinKept | JoinTables


def kept_node(operator: Kept, stage: Stage, state: TaskState | None) -> Node:
    """Return the node of a table, of its changes, or of a join."""
    schema = stage.schemas[operator.name]

    def table(name: str) -> ColumnarTable:
        kept = next(one for one in stage.operators if one.name == name)
        assert isinstance(kept, KeepTable)
        assert state is not None
        return state.table(kept.store.name)

    match operator:
        case KeepTable():
            return KeepTableNode(operator, table(operator.name), sends=_is_read(operator, stage))
        case Changes():
            return ForwardNode(operator.name, schema)
        case JoinKept():
            own = stage.schemas[operator.inputs[0]].names
            added = {new: old for new, old in operator.columns or () if new in schema.names}
            assert not set(added) & set(own), "no column is there twice"
            return JoinKeptNode(operator, table(operator.inputs[1]), added, schema)
        case JoinTables():
            left, right = map(table, operator.inputs)
            return JoinTablesNode(operator, left, right, schema)


def _is_read(operator: KeepTable, stage: Stage) -> bool:
    """Say whether anybody takes the changes of a table."""
    return any(
        isinstance(reader, Changes | JoinTables) and operator.name in reader.inputs
        for reader in stage.operators
    )
