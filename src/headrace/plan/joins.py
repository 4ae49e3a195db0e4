"""What is kept of both sides of a join of streams: which columns, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.graph.durations import duration_text
from headrace.graph.joins import LEFT, RIGHT, JoinStreams
from headrace.graph.operators import Operator
from headrace.plan.stages import Stage
from headrace.records.layout import TableLayout


def join_layouts(stage: Stage, operator: JoinStreams) -> tuple[TableLayout, TableLayout]:
    """Return the layouts of the tables of the left and the right rows.

    A row is written at its event time. Columns are kept that later operators use.
    """
    made = set(stage.schemas[operator.name].names)
    left, right = (stage.schemas[name] for name in operator.inputs)
    sources = {old for new, old in operator.columns or () if new in made}
    values = (
        pa.schema([f for f in left if f.name in made and f.name not in operator.by[0]]),
        pa.schema([f for f in right if f.name in sources and f.name not in operator.by[1]]),
    )
    delay_ms = stage.delays.get(operator.name, 0)
    kept = operator.reach.kept_ms(operator.alone)
    first, second = (
        TableLayout(
            pa.schema(list(zip(operator.by[side], operator.kinds, strict=True))),
            values[side],
            ttl_ms=kept[side] + delay_ms + 1,
            by_event=True,
            repeats=True,
        )
        for side in (0, 1)
    )
    return first, second


def joined_layouts(stage: Stage) -> dict[str, TableLayout]:
    """Return the layouts of all tables of joins of a stage, by store."""
    found: dict[str, TableLayout] = {}
    for operator in stage.operators:
        if isinstance(operator, JoinStreams):
            names = [spec.name for spec in operator.stores]
            found |= zip(names, join_layouts(stage, operator), strict=True)
    return found


def kept_rows(stage: Stage, operator: Operator) -> Iterator[str]:
    """Yield what is kept of each side, for people."""
    if not isinstance(operator, JoinStreams):
        return
    layouts = join_layouts(stage, operator)
    kept_ms = operator.reach.kept_ms(operator.alone)
    for side, layout, spec, kept in zip(
        (LEFT, RIGHT), layouts, operator.stores, kept_ms, strict=True
    ):
        columns = ", ".join([*layout.keys.names, *layout.values.names])
        yield (
            f"keeps {side} rows ({columns}) until the watermark is {duration_text(kept)} past "
            f"them, in store {spec.name} ({spec.kind})"
        )


def describe_join(operator: JoinStreams) -> list[str]:
    """Return what a join does, one row for each part."""
    reach = operator.reach
    pairs = zip(*operator.by, strict=True)  # known once it is planned
    keys = ", ".join(one if one == other else f"{one} = {other}" for one, other in pairs)
    on = f" on {keys}" if keys else ""
    left, right = operator.inputs
    rows = [f"{operator.how} join of {left} with {right}{on}, {reach.text()} in event time"]
    if reach.grace_ms:
        rows[0] += f", grace {duration_text(reach.grace_ms)}"
    if operator.late == "side_output":
        rows.append("late rows go to sides late_left and late_right")
    if any(operator.alone):
        lag = duration_text(reach.lag_ms(operator.alone))
        rows.append(f"rows without a partner are sent when none can come: up to {lag} behind")
    return rows
