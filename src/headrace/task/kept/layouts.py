"""The columns of all tables that a stage keeps for ``table`` and its joins, by store."""

from __future__ import annotations

from headrace.graph.table_operators import KeepTable
from headrace.plan.stages import Stage
from headrace.records.layout import TableLayout
from headrace.task.kept.rows import kept_layout
from headrace.task.kept.versions import version_layout
from headrace.task.kept.waiting import waiting_layouts


def kept_layouts(stage: Stage) -> dict[str, TableLayout]:
    """Return the layouts of tables, with a history or not, and of rows that wait for one."""
    tables = [operator for operator in stage.operators if isinstance(operator, KeepTable)]
    return {
        operator.store.name: (kept_layout if operator.history_ms is None else version_layout)(
            stage, operator
        )
        for operator in tables
    } | waiting_layouts(stage)
