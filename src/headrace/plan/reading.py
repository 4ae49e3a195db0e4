"""Tables in a plan: which inputs are read first for them, whose rows need no event time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.graph.durations import duration_text
from headrace.graph.operators import Input, Operator, PartitionBy, SendTo
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable


def read_first(operators: Mapping[str, Operator]) -> set[str]:
    """Return the inputs that are read to their end before others: what tables are made of.

    Those that say so themselves are, or are not, whatever they feed.
    """
    above: set[str] = set()
    for operator in reversed(list(operators.values())):
        if isinstance(operator, KeepTable) or operator.name in above:
            above.update(operator.inputs)
    inputs = [operator for operator in operators.values() if isinstance(operator, Input)]
    return {
        operator.name
        for operator in inputs
        if operator.bootstrap or (operator.bootstrap is None and operator.name in above)
    }


def timeless(operators: Mapping[str, Operator], asking: Collection[str]) -> set[str]:
    """Return the ``partition_by`` operators whose rows end in tables that nobody asks the time of.

    Such rows carry no event times, and hold no watermark back.

    Args:
        operators: in graph order.
        asking: those that need event time themselves.
    """
    readers: dict[str, list[Operator]] = {name: [] for name in operators}
    for operator in operators.values():
        for before in operator.inputs:
            readers[before].append(operator)
    asks: dict[str, bool] = {}
    tables: dict[str, bool] = {}
    for operator in reversed(list(operators.values())):
        name = operator.name
        tables[name] = isinstance(operator, KeepTable) or any(
            tables[reader.name] and not isinstance(reader, PartitionBy) for reader in readers[name]
        )
        asks[name] = name in asking or any(_asks(name, one, asks) for one in readers[name])
    repartitions = [o.name for o in operators.values() if isinstance(o, PartitionBy)]
    return {name for name in repartitions if tables[name] and not asks[name]}


def _asks(name: str, reader: Operator, asks: Mapping[str, bool]) -> bool:
    """Say whether what reads an operator needs the time of its rows."""
    match reader:
        case SendTo():
            return False
        case JoinKept() if reader.inputs[1] == name:
            return reader.waiting is not None
        case PartitionBy():
            return True
    return asks[reader.name]


def describe_kept(operator: Operator) -> list[str]:
    """Return what a table or a join with one does, in words."""
    match operator:
        case KeepTable():
            kept = "last row"
            if operator.history_ms is not None:
                kept = f"versions of {duration_text(operator.history_ms)}"
            key = f" ({', '.join(operator.keys)})" if operator.keys else ""
            return [f"table: {kept} of each key{key}"]
        case Changes():
            return [f"changes of table {operator.inputs[0]}"]
        case JoinKept():
            moment = "" if operator.waiting is None else " as of event time"
            return [f"{operator.how} join with table {operator.inputs[1]}{moment}"]
        case JoinTables():
            first, second = operator.inputs
            return [f"{operator.how} join of tables {first} and {second}"]
    return []
