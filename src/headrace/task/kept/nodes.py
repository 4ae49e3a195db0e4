"""Makes the nodes of tables and of joins with them."""

from __future__ import annotations

from headrace.graph.operators import Operator
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.plan.stages import Stage
from headrace.state.columnar.table import ColumnarTable
from headrace.state.task_state import TaskState
from headrace.task.kept.joins import JoinKeptNode, JoinTablesNode
from headrace.task.kept.table import KeepTableNode
from headrace.task.kept.versions import KeepVersionsNode
from headrace.task.kept.waiting import JoinVersionsNode
from headrace.task.messages.stateless import ForwardNode
from headrace.task.node import Node

Kept = KeepTable | Changes | JoinKept | JoinTables


def kept_node(operator: Kept, stage: Stage, state: TaskState | None, key_groups: int) -> Node:
    """Return the node of a table, of its changes, or of a join."""
    schema = stage.schemas[operator.name]

    def kept(name: str) -> KeepTable:
        found = next(one for one in stage.operators if one.name == name)
        assert isinstance(found, KeepTable)
        return found

    def table(name: str) -> ColumnarTable:
        assert state is not None
        return state.table(kept(name).store.name)

    match operator:
        case KeepTable(history_ms=int()):
            own = stage.delays.get(operator.name, 0)
            lags = [stage.delays.get(one.name, own) for one in _readers(operator, stage)]
            slack = max(lags, default=own) - own
            held = table(operator.name)
            return KeepVersionsNode(operator, held, delay_ms=own, slack_ms=slack)
        case KeepTable():
            return KeepTableNode(operator, table(operator.name), sends=_is_read(operator, stage))
        case Changes():
            return ForwardNode(operator.name, schema)
        case JoinKept():
            added = {new: old for new, old in operator.columns or () if new in schema.names}
            held = table(operator.inputs[1])
            if operator.waiting is None:
                return JoinKeptNode(operator, held, added, schema)
            assert state is not None
            return JoinVersionsNode(
                operator,
                held,
                state.table(operator.waiting.name),
                columns=added,
                source=stage.schemas[operator.inputs[0]],
                schema=schema,
                history_ms=kept(operator.inputs[1]).history_ms or 0,
                delay_ms=stage.delays.get(operator.name, 0),
                key_groups=key_groups,
            )
        case JoinTables():
            left, right = map(table, operator.inputs)
            return JoinTablesNode(operator, left, right, schema)


def _readers(operator: KeepTable, stage: Stage) -> list[Operator]:
    return [reader for reader in stage.operators if operator.name in reader.inputs]


def _is_read(operator: KeepTable, stage: Stage) -> bool:
    """Say whether anybody takes the changes of a table."""
    return any(isinstance(one, Changes | JoinTables) for one in _readers(operator, stage))
