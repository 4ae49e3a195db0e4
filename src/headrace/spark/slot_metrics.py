"""What slots did as metrics of Spark: named accumulators of each stage, and its input and output.

A slot's report has the numbers. A class of the JVM, which each executor gets with the jar, adds
them up in the task, because Spark shows no accumulators of Python.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.spark.java_classes import java_context, new_object, ship_classes

STEPS = ("catch up", "run", "exchange", "segment", "output", "merge", "remote")
METRICS = (
    "rows read",
    "lag",
    "rows exchanged",
    "bytes exchanged",
    "rows sent",
    "bytes sent",
    "rows late",
    "entries changed",
    "changelog bytes",
    "state bytes",
    *(f"{step}, ms" for step in STEPS),
)
"""Names of the accumulators. Rows are read from inputs, or from the level before; the lag is that
of partitions of inputs that the slot reads."""

CLASS = "SlotMetrics"


def is_shown(context: SparkContext) -> bool:
    """Say whether anybody can see metrics: in Spark's UI, or later in its event log."""
    logs = context.getConf().get("spark.eventLog.enabled", "false") or "false"
    return context.uiWebUrl is not None or logs.lower() == "true"


def measured(order: SlotOrder, report: SlotReport) -> dict[str, int]:
    """Return the metrics of a slot that has run, those that are not 0.

    Args:
        order: that it was given.
        report: what it did.
    """
    entries = {*order.exchange, *(one.operator for task in order.tasks for one in task.ranges)}
    tasks = report.tasks
    sent = [part for task in tasks for part in task.outputs]
    reached = {(at.operator, at.partition): at.next_offset for task in tasks for at in task.reached}
    left = (
        one.behind + max(0, one.stop - reached.get((one.operator, one.partition), one.start))
        for task in order.tasks
        for one in task.ranges
    )
    found = {
        "rows read": sum(
            counts.get("sent", 0)
            for task in tasks
            for name, counts in task.operators.items()
            if name in entries
        ),
        "lag": sum(left),
        "rows exchanged": sum(sum(file.rows) for file in report.exchange),
        "bytes exchanged": sum(file.size for file in report.exchange),
        "rows sent": sum(part.rows for part in sent) + sum(part.rows for part in report.sinks),
        "bytes sent": sum(part.end - part.begin for part in sent)
        + sum(part.size for part in report.sinks),
        "rows late": sum(task.counts.get("late", 0) for task in tasks),
        "entries changed": sum(task.segment_rows for task in tasks),
        "changelog bytes": sum(task.segment_bytes for task in tasks),
        "state bytes": sum(task.state_bytes for task in tasks),
    }
    steps = {f"{step}, ms": round(took) for step, took in report.timings_ms.items()}
    return {name: value for name, value in (found | steps).items() if value}


def register_metrics(context: SparkContext) -> Any:
    """Return a new set of accumulators, for the tasks of one placement of slots.

    Args:
        context: of the session; its executors get the jar.

    Raises:
        Py4JError: the JVM cannot load the class.
    """
    made = new_object(context, CLASS, java_context(context), "\n".join(METRICS))
    ship_classes(context)
    return made
