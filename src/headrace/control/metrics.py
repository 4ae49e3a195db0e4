"""Metrics of a running job in Prometheus's text format, made when somebody asks.

Names are ``headrace_<what>_<unit>`` in base units, counters end in ``_total``. Labels are names
of parts of the job, never a key or a user. The guide has the same table.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.control.job_status import JobStatus, StandbyReads, partition_statuses
from headrace.control.live_job import Histogram, LiveJob
from headrace.coordinator.host_state import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED,
    LOST,
    MISSED,
    MOVED,
    NO_FAILOVER,
    PLACEMENT,
    STANDBY,
    STANDBY_LOST,
    STANDBYS_MISSED,
)
from headrace.coordinator.manifest import SINK_ROWS, JobState
from headrace.errors import HeadraceError, UnavailableError

Kind = Literal["gauge", "counter", "histogram"]


class Family(NamedTuple):
    """One metric; counters are named without their ``_total``."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that a query uses."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels, ``job`` first."""
        return ("job", *self.labels)


TASK = ("stage", "task")
PARTITION = ("input", "partition")

JOB = (
    Family("headrace_job_status", "gauge", "1 for the current status of the job", ("status",)),
    Family("headrace_job_start_time_seconds", "gauge", "start of the driver, s since 1970"),
    Family("headrace_job_generation", "gauge", "driver generation of the last epoch"),
    Family("headrace_epoch", "gauge", "number of the last committed epoch"),
    Family("headrace_epoch_time_seconds", "gauge", "wall clock of the last epoch, s since 1970"),
    Family("headrace_lag_rows", "gauge", "rows left unread by the last epoch"),
    Family(
        "headrace_rows",
        "counter",
        "rows counted in all epochs: in, late, dropped, dead_letters and others",
        ("what",),
    ),
    Family("headrace_driver_epochs", "counter", "epochs of this driver"),
    Family("headrace_driver_busy_seconds", "counter", "time spent in epochs of this driver, s"),
    Family("headrace_driver_output_rows", "counter", "rows emitted by this driver"),
    Family("headrace_epoch_seconds", "histogram", "duration of epochs, s", ("part",)),
    Family(
        "headrace_epoch_step_seconds",
        "histogram",
        "duration of each step of epochs, s",
        ("part", "step"),
    ),
    Family(
        "headrace_slot_step_seconds",
        "counter",
        "time of all slots in each step, s",
        ("step",),
    ),
    Family(
        "headrace_cache_reads",
        "counter",
        "reads of stored values, by where they were found",
        ("found",),
    ),
    Family("headrace_copy_behind_epochs", "gauge", "lag of the copy, epochs", ("part",)),
    Family("headrace_copy_behind_seconds", "gauge", "lag of the copy, s", ("part",)),
    Family(
        "headrace_disk_free_bytes",
        "gauge",
        "free space of the disk of a folder, on the driver's host, bytes",
        ("folder",),
    ),
    Family(
        "headrace_disk_bytes",
        "gauge",
        "size of the disk of a folder, on the driver's host, bytes",
        ("folder",),
    ),
    Family("headrace_alert_firing", "gauge", "1 if the rule fires, else 0", ("rule", "kind")),
    Family(
        "headrace_hot_key_share",
        "gauge",
        "recent share of rows of the heaviest keys, 0 to 1, by rank",
        ("operator", "rank"),
    ),
)
FAILURES = (
    Family("headrace_tasks_moved", "counter", "tasks moved from an available host"),
    Family(
        "headrace_tasks_unassigned", "counter", "tasks whose host was lost and not back in time"
    ),
    Family("headrace_tasks_homeless", "counter", "deprecated: headrace_tasks_unassigned_total"),
    Family("headrace_tasks_interrupted", "counter", "tasks whose host was away, lost or not"),
    Family("headrace_standbys_interrupted", "counter", "standbys whose host was away, lost or not"),
    Family("headrace_active_failures", "counter", "tasks with standbys whose host was lost"),
    Family("headrace_standby_failures", "counter", "standbys whose host was lost"),
    Family("headrace_failovers", "counter", "tasks that moved to the host of a standby"),
    Family("headrace_failovers_impossible", "counter", "tasks of lost hosts without a standby"),
)
STAGES = (
    Family("headrace_watermark_seconds", "gauge", "watermark of a stage, s since 1970", ("stage",)),
    Family("headrace_stage_tasks", "gauge", "tasks of a keyed stage", ("stage",)),
    Family("headrace_state_bytes", "gauge", "approximate state of a stage, bytes", ("stage",)),
    Family("headrace_standbys", "gauge", "standbys of a stage", ("stage",)),
    Family("headrace_standbys_wanted", "gauge", "wanted standbys of a stage", ("stage",)),
    Family(
        "headrace_standbys_filled", "gauge", "standbys with all but the latest changes", ("stage",)
    ),
    Family(
        "headrace_standby_behind_epochs", "gauge", "lag of the last standby, epochs", ("stage",)
    ),
    Family("headrace_standby_behind_bytes", "gauge", "lag of the last standby, bytes", ("stage",)),
    Family("headrace_standby_read_bytes", "counter", "changes read by standbys, bytes", ("stage",)),
    Family("headrace_standby_busy_seconds", "counter", "working time of standbys, s", ("stage",)),
    Family(
        "headrace_operator_rows",
        "counter",
        "rows received and emitted by an operator",
        ("operator", "direction"),
    ),
    Family("headrace_sink_rows", "counter", "rows passed to a sink", ("sink",)),
)
TASKS = (
    Family("headrace_task_state_bytes", "gauge", "approximate state of a task, bytes", TASK),
    Family(
        "headrace_task_changelog_bytes", "gauge", "changes since the task's snapshot, bytes", TASK
    ),
    Family("headrace_task_watermark_seconds", "gauge", "watermark of a task, s since 1970", TASK),
    Family("headrace_task_last_epoch", "gauge", "last epoch that changed the task's state", TASK),
    Family("headrace_task_waiting_rows", "gauge", "rows waiting for asynchronous calls", TASK),
    Family(
        "headrace_task_standby_behind_epochs",
        "gauge",
        "lag of a standby of a task, epochs",
        (*TASK, "host"),
    ),
    Family(
        "headrace_store_bytes",
        "gauge",
        "approximate live entries of a store, bytes, of tasks that ran under this driver",
        (*TASK, "store"),
    ),
)
INPUTS = (
    Family("headrace_input_next_offset", "gauge", "next offset to read", PARTITION),
    Family("headrace_input_lag_rows", "gauge", "rows not yet read now", PARTITION),
    Family("headrace_input_time_seconds", "gauge", "highest event time, s since 1970", PARTITION),
)
TABLE = (*JOB, *FAILURES, *STAGES, *TASKS, *INPUTS)


STATUSES = ("starting", "running", "paused", "stopping", "ended")
RANKS = 5
_FROM_THE_FIRST = dict.fromkeys(("in", "late", "dropped", "dead_letters"), 0)
"""Rows that rules watch: of a counter that begins above 0, Prometheus misses the first increase."""

_COUNTED = {
    "headrace_tasks_moved": MOVED,
    "headrace_tasks_unassigned": LOST,
    "headrace_tasks_homeless": LOST,
    "headrace_tasks_interrupted": MISSED,
    "headrace_standbys_interrupted": STANDBYS_MISSED,
    "headrace_active_failures": ACTIVE_LOST,
    "headrace_standby_failures": STANDBY_LOST,
    "headrace_failovers": FAILOVER,
    "headrace_failovers_impossible": NO_FAILOVER,
}


class MetricValue(NamedTuple):
    """One value of a metric."""

    name: str
    labels: tuple[str, ...]
    value: float | Histogram


def metric_values(live: LiveJob) -> Iterator[MetricValue]:
    """Yield every value that there is by now."""
    status = live.summary()
    yield from _of_job(status)
    yield from _counted(live)
    yield from _disks(live)
    for rule in live.alerts():
        labels = (rule.rule, rule.kind)
        yield MetricValue("headrace_alert_firing", labels, float(rule.fired_ms is not None))
    try:
        states = live.states
    except UnavailableError:
        return
    yield from _of_state(status)
    for part in states:
        yield from _operators(part)
    yield from _stages(live, status)
    yield from _tasks(live)
    yield from _inputs(live)


def _of_job(status: JobStatus) -> Iterator[MetricValue]:
    for word in STATUSES:
        yield MetricValue("headrace_job_status", (word,), float(word == status.status))
    yield from _seconds("headrace_job_start_time_seconds", (), status.began_ms)
    yield from _seconds("headrace_epoch_time_seconds", (), status.epoch_ms)
    for name, value in (
        ("headrace_job_generation", status.generation),
        ("headrace_epoch", status.epoch),
        ("headrace_lag_rows", status.unread),
    ):
        if value is not None:
            yield MetricValue(name, (), value)


def _counted(live: LiveJob) -> Iterator[MetricValue]:
    counted = live.counted()
    yield MetricValue("headrace_driver_epochs", (), live.count)
    yield MetricValue("headrace_driver_busy_seconds", (), live.busy_ms / 1000)
    yield MetricValue("headrace_driver_output_rows", (), counted.output_rows)
    for part, took in counted.epochs.items():
        yield MetricValue("headrace_epoch_seconds", (part,), took)
    for labels, took in counted.steps.items():
        yield MetricValue("headrace_epoch_step_seconds", labels, took)
    for step, seconds in counted.slot_steps_s.items():
        yield MetricValue("headrace_slot_step_seconds", (step,), seconds)
    for name, found in (("memory", "hits"), ("store", "misses")):
        yield MetricValue("headrace_cache_reads", (name,), counted.cache[found])
    for part, (epochs, seconds) in counted.copies.items():
        yield MetricValue("headrace_copy_behind_epochs", (part,), epochs)
        yield MetricValue("headrace_copy_behind_seconds", (part,), seconds)
    for one in live.heavy_keys(RANKS):
        for rank, key in enumerate(one.keys, 1):
            yield MetricValue("headrace_hot_key_share", (one.operator, str(rank)), key.share)


def _disks(live: LiveJob) -> Iterator[MetricValue]:
    settings = live.settings
    for folder, path in (
        ("bus", settings.bus_dir),
        ("jobs", settings.jobs_dir),
        ("state", settings.state_dir),
    ):
        with suppress(OSError):  # one that this host does not have, or that does not answer
            disk = shutil.disk_usage(path)
            yield MetricValue("headrace_disk_free_bytes", (folder,), disk.free)
            yield MetricValue("headrace_disk_bytes", (folder,), disk.total)


def _of_state(status: JobStatus) -> Iterator[MetricValue]:
    counts = {**_FROM_THE_FIRST, **(status.counts or {})}
    for name, count in counts.items():
        if name.startswith(SINK_ROWS):
            yield MetricValue("headrace_sink_rows", (name.removeprefix(SINK_ROWS),), count)
        elif not name.startswith((STANDBY, FOLLOWED, PLACEMENT)):
            yield MetricValue("headrace_rows", (name,), count)
    for metric, counted in _COUNTED.items():
        yield MetricValue(metric, (), counts.get(counted, 0))
    for stage, watermark in status.watermarks.items():
        yield from _seconds("headrace_watermark_seconds", (stage,), watermark)


def _operators(state: JobState) -> Iterator[MetricValue]:
    for operator, held in state.operators.items():
        counts = held.counts
        for direction, found in (
            ("received", counts.get("received", 0)),
            ("sent", counts.get("sent") or counts.get("out", 0)),
        ):
            yield MetricValue("headrace_operator_rows", (operator, direction), found)


def _seconds(name: str, labels: tuple[str, ...], at_ms: int | None) -> Iterator[MetricValue]:
    if at_ms is not None:
        yield MetricValue(name, labels, at_ms / 1000)


def _stages(live: LiveJob, status: JobStatus) -> Iterator[MetricValue]:
    for stage in live.stages:
        copies = stage.copies
        reads = (status.standbys_followed or {}).get(stage.stage, StandbyReads(0, 0))
        for name, found in (
            ("headrace_stage_tasks", stage.tasks),
            ("headrace_state_bytes", stage.state_bytes),
            ("headrace_standbys", copies.standbys),
            ("headrace_standbys_wanted", copies.wanted),
            ("headrace_standbys_filled", copies.filled),
            ("headrace_standby_behind_epochs", copies.epochs),
            ("headrace_standby_behind_bytes", copies.size),
            ("headrace_standby_read_bytes", reads.bytes),
            ("headrace_standby_busy_seconds", reads.ms / 1000),
        ):
            yield MetricValue(name, (stage.stage,), found)


def _tasks(live: LiveJob) -> Iterator[MetricValue]:
    for task in live.tasks():
        stage, _, number = task.task.rpartition("/")
        labels = (stage, number)
        yield MetricValue("headrace_task_state_bytes", labels, task.state_bytes)
        yield MetricValue("headrace_task_changelog_bytes", labels, task.changelog_bytes)
        yield MetricValue("headrace_task_last_epoch", labels, task.epoch)
        yield MetricValue("headrace_task_waiting_rows", labels, task.waiting)
        yield from _seconds("headrace_task_watermark_seconds", labels, task.watermark_ms)
        for standby in task.standbys:
            behind = max(0, task.epoch - standby.epoch)
            yield MetricValue(
                "headrace_task_standby_behind_epochs", (*labels, standby.host), behind
            )
        for store, size in task.stores.items():
            yield MetricValue("headrace_store_bytes", (*labels, store), size)


def _inputs(live: LiveJob) -> Iterator[MetricValue]:
    for one in partition_statuses(live.state, {}):
        labels = (one.input, str(one.partition))
        yield MetricValue("headrace_input_next_offset", labels, one.next_offset)
        yield from _seconds("headrace_input_time_seconds", labels, one.max_time_ms)
    with suppress(HeadraceError, OSError):  # a stream that does not answer has no lag to show
        for (name, partition), lag in live.current_lags().items():
            yield MetricValue("headrace_input_lag_rows", (name, str(partition)), lag)


def metrics_text(live: LiveJob) -> bytes:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_JobCollector(live))
    return generate_latest(registry)


class _JobCollector(Collector):
    def __init__(self, live: LiveJob) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        """Return each family of the table, with the values that there are by now."""
        found: dict[str, list[MetricValue]] = {family.name: [] for family in TABLE}
        for value in metric_values(self._live):
            found[value.name].append(value)
        for family in TABLE:
            yield _metric_family(family, self._live.job, found[family.name])


def _metric_family(family: Family, job: str, found: list[MetricValue]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.text, labels=family.all_labels)
        for one in found:
            assert isinstance(one.value, Histogram)
            histogram.add_metric([job, *one.labels], one.value.buckets(), one.value.sum_s)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = kind(family.name, family.text, labels=family.all_labels)
    for one in found:
        assert not isinstance(one.value, Histogram)
        made.add_metric([job, *one.labels], float(one.value))
    return made
