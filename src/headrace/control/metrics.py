"""Metrics of a running job in Prometheus's text format, made when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.control.board import Board
from headrace.control.figures import Histogram
from headrace.control.metric_table import TABLE, Family
from headrace.control.metric_values import Value, values


def metrics_text(board: Board) -> bytes:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Job(board))
    return generate_latest(registry)


class _Job(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Return each family of the table, with the values that there are by now."""
        found: dict[str, list[Value]] = {family.name: [] for family in TABLE}
        for value in values(self._board):
            found[value.name].append(value)
        for family in TABLE:
            yield _made(family, self._board.job, found[family.name])


def _made(family: Family, job: str, found: list[Value]) -> Metric:
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
