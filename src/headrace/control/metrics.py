"""Prometheus metrics of a running job, made when somebody asks.

Names are ``headrace_<what>_<unit>`` in base units; labels are job, stage, task, input and
partition, never a key or a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.control.board import Board
from headrace.control.views import input_infos, job_info, stage_infos, task_infos
from headrace.errors import UnavailableError

STATUSES = ("starting", "running", "paused", "stopping", "ended")


def metrics_text(board: Board) -> bytes:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Job(board))
    return generate_latest(registry)


class _Job(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        board = self._board
        info = job_info(board)
        job = {"job": info.job}
        status = GaugeMetricFamily(
            "headrace_job_status", "1 for the status that the job has", labels=["job", "status"]
        )
        for name in STATUSES:
            status.add_metric([info.job, name], float(name == info.status))
        yield status
        yield _gauge("headrace_job_start_time_seconds", "when it began", job, info.began_ms / 1000)
        if info.epoch is None:
            return
        yield _gauge("headrace_epoch", "number of the last committed epoch", job, info.epoch)
        if info.lag is not None:
            yield _gauge("headrace_lag_rows", "rows the last epoch left unread", job, info.lag)
        yield _counter("headrace_rows", "what its epochs counted", "what", info.job, info.counts)
        epochs = CounterMetricFamily(
            "headrace_driver_epochs", "epochs of this driver", labels=["job"]
        )
        epochs.add_metric([info.job], board.count)
        yield epochs
        busy = CounterMetricFamily(
            "headrace_driver_busy_seconds", "time in epochs of this driver", labels=["job"]
        )
        busy.add_metric([info.job], board.busy_ms / 1000)
        yield busy
        watermarks = {name: at / 1000 for name, at in info.watermarks.items()}
        yield _gauges(
            "headrace_watermark_seconds", "event time of stages", "stage", info.job, watermarks
        )
        try:
            yield from self._parts(info.job)
        except UnavailableError:
            return

    def _parts(self, job: str) -> Iterator[Metric]:
        stages = stage_infos(self._board)
        for name, text, values in (
            ("headrace_state_bytes", "state of stages", {s.stage: s.state_bytes for s in stages}),
            ("headrace_standbys", "copies on other hosts", {s.stage: s.standbys for s in stages}),
            (
                "headrace_standby_behind_epochs",
                "how far the last copy is behind",
                {s.stage: s.standby_epochs_behind for s in stages},
            ),
        ):
            yield _gauges(name, text, "stage", job, values)
        tasks = {task.task: task.state_bytes for task in task_infos(self._board)}
        yield _gauges("headrace_task_state_bytes", "state of tasks", "task", job, tasks)
        offsets = GaugeMetricFamily(
            "headrace_input_next_offset",
            "next offset of each partition of inputs",
            labels=["job", "input", "partition"],
        )
        for one in input_infos(self._board):
            offsets.add_metric([job, one.input, str(one.partition)], one.next_offset)
        yield offsets


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    made = GaugeMetricFamily(name, text, labels=list(labels))
    made.add_metric(list(labels.values()), value)
    return made


def _gauges(
    name: str, text: str, label: str, job: str, values: dict[str, int] | dict[str, float]
) -> Metric:
    made = GaugeMetricFamily(name, text, labels=["job", label])
    _fill(made, job, values.items())
    return made


def _counter(name: str, text: str, label: str, job: str, values: dict[str, int]) -> Metric:
    made = CounterMetricFamily(name, text, labels=["job", label])
    _fill(made, job, values.items())
    return made


def _fill(
    made: GaugeMetricFamily | CounterMetricFamily,
    job: str,
    values: Iterable[tuple[str, float]],
) -> None:
    for name, value in values:
        made.add_metric([job, name], value)
