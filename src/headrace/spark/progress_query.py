"""The streaming query that shows in Spark what a job has committed; it drives nothing.

About once a second a thread offers what the epochs since then did to a class of the JVM, which is
the source of a query: so Spark's Streaming tab, ``spark.streams`` and its listeners show the job as
any query. A job does not depend on it: if something of it fails, there is a warning.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.clock import Deadline
from headrace.closeable import running_beside
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import JobRun, RunListeners
from headrace.coordinator.manifest import JobState
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.spark.java_classes import (
    JAVA_ERRORS,
    java_cause,
    java_session,
    new_object,
    scratch_folder,
)
from headrace.spark.slot_metrics import is_shown

EVERY_S = 1.0
AFTER_S = 10.0
"""How long a run takes before there is a query, unless the setting asks for one at once: the
first session of an application takes Java two seconds, which short runs do without."""

END_S, ASKED_END_S = 5.0, 60.0
"""How long the end of a run waits for the query to show the last epochs; the longer where the
setting asks for a query."""

_POLL_S = 0.05

COLUMNS = {
    "epochs": "sum",
    "rows": "sum",
    "output_rows": "sum",
    "late_rows": "sum",
    "changelog_bytes": "sum",
    "took_ms": "sum",
    "lag": "last",
    "state_rows": "last",
    "state_bytes": "last",
    "watermark": "last",
}
"""What the query observes of each batch, and how several offers are put together."""


@dataclass
class CommittedEpochs:
    """What the epochs of all parts have done since this was last taken.

    Parts that have no epoch meanwhile keep their last figures.
    """

    sums: Counter[str] = field(default_factory=Counter)
    steps_ms: Counter[str] = field(default_factory=Counter)
    last: dict[str, EpochSummary] = field(default_factory=dict)

    def add(self, summary: EpochSummary) -> None:
        """Count an epoch."""
        self.sums.update(
            epochs=1,
            rows=summary.rows,
            output_rows=summary.output_rows,
            late_rows=summary.counts.get("late", 0),
            changelog_bytes=summary.changelog_bytes,
            took_ms=round(summary.took_ms),
        )
        both = {"driver": summary.timings_ms, "slots": summary.slot_timings_ms}
        for of, steps in both.items():
            self.steps_ms.update({f"{of}, {step}": round(ms) for step, ms in steps.items()})
        self.last[summary.job] = summary

    def values(self, states: list[JobState]) -> dict[str, int]:
        """Return the columns of a row; those that are not known are left out."""
        tasks = [task for state in states for task in state.tasks.values()]
        found = dict(self.sums) | {
            "lag": sum(one.lag for one in self.last.values()),
            "state_bytes": sum(one.state_bytes for one in self.last.values()),
            "state_rows": sum(file.rows for task in tasks for file in task.files),
        }
        watermark = min((one.watermark for one in self.last.values()), default=NO_WATERMARK)
        if NO_WATERMARK // 2 < watermark < END_WATERMARK // 2:
            found["watermark"] = watermark * 1000
        return found


def offset_of(states: list[JobState]) -> str:
    """Return where a job is, as the offset of a source: its epochs, and its inputs' offsets."""
    epochs = {state.job: state.epoch for state in states}
    inputs = {
        name: {str(partition): at.next_offset for partition, at in sorted(positions.items())}
        for state in states
        for name, positions in state.inputs.items()
    }
    return json.dumps({"epochs": epochs, "inputs": inputs}, separators=(",", ":"))


class ProgressQuery:
    """Follows a run of a job.

    Args:
        context: that the job runs in.
        job_run: of the run; the query is called ``headrace JOB``. Gets a notice when the query
            is not there, or no more.
        after_s: how long to wait before there is a query.
        end_s: how long to wait at the end for what it has not shown yet.
    """

    def __init__(
        self, context: SparkContext, job_run: JobRun, after_s: float, end_s: float
    ) -> None:
        self._end_s = end_s
        self._context, self._name = context, f"headrace {job_run.context.job}"
        self._notify, self._after_s = job_run.listeners.notice, after_s
        self._clock = job_run.context.clock
        self._lock = threading.Lock()
        self._committed = CommittedEpochs()
        self._parts: JobGroup | None = None

    def listening(self, given: RunListeners) -> RunListeners:
        """Return listeners that report the run to this, and then those given."""

        def on_parts(parts: JobGroup) -> None:
            self._parts = parts
            if given.on_parts is not None:
                given.on_parts(parts)

        def on_epoch(summary: EpochSummary) -> None:
            with self._lock:
                self._committed.add(summary)
            if given.on_epoch is not None:
                given.on_epoch(summary)

        return replace(given, on_parts=on_parts, on_epoch=on_epoch)

    def run(self, over: threading.Event) -> None:
        """Follow until it is over, and the query has shown the last epochs."""
        if over.wait(self._after_s):
            return
        try:
            java = self._begun()
            try:
                failure = self._followed(java, over)
            finally:
                java.stop()
        except JAVA_ERRORS as error:
            failure = java_cause(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job runs without it
            failure = f"{type(error).__name__}: {error}"
        if failure and not over.is_set():
            self._notify(
                "Spark's Streaming tab does not show the job any more, which continues: "
                f"{failure}; spark.progress=off does without"
            )

    def _begun(self) -> Any:
        """Return the query, started, in the session of the application."""
        columns = ",".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        java = new_object(self._context, "ProgressQuery", columns)
        folder = str(scratch_folder(self._context))
        session = java_session(SparkSession.builder.getOrCreate())
        java.start(session, self._name, folder, int(EVERY_S * 1000))
        return java

    def _followed(self, java: Any, over: threading.Event) -> str:
        """Offer what is new, until the run is over or the query is; returns how that failed."""
        is_over = False
        while not is_over:
            is_over = over.wait(EVERY_S)
            if (failure := java.failure()) is not None:
                return str(failure).strip().partition("\n")[0][:300]
            self._offer(java)
        deadline = Deadline(self._clock, self._end_s / 2)
        while not java.isDrained() and not deadline.expired:
            self._clock.sleep(_POLL_S)
        return ""

    def _offer(self, java: Any) -> None:
        with self._lock:
            parts, taken = self._parts, self._committed
            if parts is None or not taken.sums["epochs"]:
                return
            self._committed = CommittedEpochs(last=dict(taken.last))
        states = parts.states
        values = taken.values(states)
        facts = {f"{name}, ms": ms for name, ms in sorted(taken.steps_ms.items()) if ms}
        shown = {name: values[name] for name in ("lag", "state_rows", "state_bytes")} | facts
        java.offer(
            offset_of(states),
            ",".join(str(values.get(name, "")) for name in COLUMNS),
            "\n".join(f"{name}={value}" for name, value in shown.items()),
        )


@contextmanager
def progress_shown(context: SparkContext, job_run: JobRun) -> Iterator[None]:
    """Show a run in Spark while a block drives it, as ``spark.progress`` says.

    Args:
        context: that the job runs in.
        job_run: whose listeners are added to.
    """
    mode = job_run.context.settings.spark.progress
    if mode == "off" or not is_shown(context):
        yield
        return
    after_s, end_s = (0.0, ASKED_END_S) if mode == "on" else (AFTER_S, END_S)
    query = ProgressQuery(context, job_run, after_s, end_s)
    before = job_run.listeners
    job_run.listeners = query.listening(before)
    try:
        with running_beside("headrace-progress", query.run, end_s):
            yield
    finally:
        job_run.listeners = before
