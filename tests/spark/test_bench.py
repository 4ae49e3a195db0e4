"""The benchmarks run, count right and have the keys they promise; how fast is not tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.bench import readwrite, stores
from headrace.bench.store_jobs import Size

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "options",
    [{"path": "batch"}, {"path": "message", "whole": True, "key": "string"}],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_readwrite_counts_every_message(
    spark: SparkSession, home: Path, options: dict[str, Any]
) -> None:
    result = readwrite.measure_readwrite({"home": home, "rows": 4_000, "ids": 500, **options})
    assert result["sum_of_counts"] == 4_000
    assert result["epochs"] == 2
    assert result["compare"] == {}
    figures = ("rows_per_s", "epoch_ms_p50", "state_bytes", "changelog_bytes")
    assert all(result[name] > 0 for name in figures)
    assert not (home / "bench").exists()


@pytest.mark.slow
@pytest.mark.soak
def test_pysparks_own_ways_are_measured_beside_it(spark: SparkSession, home: Path) -> None:
    options = {"home": home, "rows": 300, "ids": 50, "compare": "pyspark", "tasks": 2}
    result = readwrite.measure_readwrite(options)
    assert set(result["compare"]) == {
        "applyInPandasWithState",
        "transformWithState",
        "transformWithStateInPandas",
        "groupBy.count",
    }
    assert all(rate > 0 for rate in result["compare"].values())


@pytest.mark.slow
@pytest.mark.soak
def test_stores_are_compared_and_drawn(spark: SparkSession, home: Path, tmp_path: Path) -> None:
    size = Size(ids=500, seconds=0.02, latency_seconds=0.02, epoch_rows=10_000, offered=2_000)
    names = ["memory", "columnar", "far-async"]
    options = {"home": home, "only": names, "workload": "readwrite", "out": tmp_path / "out"}
    result = stores.run(options, size)
    assert list(result["readwrite"]) == names
    for case in result["readwrite"].values():
        assert case["rate"]["rows_per_s"] > 0
        assert case["processed"]["mean_us"] > 0
        assert case["visible"]["p50_us"] > 0
    assert result["readwrite"]["far-async"]["rate"]["network_bytes_a_row"] > 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["figure-10.png", "figure-8.png", "figure-9.png", "stores.json"]
    assert not any((home / "bench").iterdir())


def test_small_epochs_are_timed(spark: SparkSession, home: Path) -> None:
    result = readwrite.measure_idle({"home": home, "epochs": 3, "tasks": 2})
    assert result["epochs"] == 3
    assert 0 < result["epoch_ms_p50"] <= result["epoch_ms_p95"]


def test_many_tasks_are_compared_with_few(spark: SparkSession, home: Path) -> None:
    result = readwrite.compare_tasks({"home": home, "rows": 2_000, "ids": 200, "few": 2, "many": 8})
    assert set(result["epoch_ms_p50"]) == {"2", "8"}
