"""What the benchmark of stores computes, prints and draws from what it measured."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.bench.readwrite import random_ids
from headrace.bench.store_jobs import (
    BY_NAME,
    CASES,
    FULL,
    QUICK,
    WORKLOADS,
    Case,
    create_streams,
    feed,
    fill,
    make_job,
)
from headrace.bench.store_latency import distribution
from headrace.bench.store_rates import snapshot
from headrace.bench.stores import chosen, draw, lines, markdown, ratios, rows_of
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

LOCAL = [case for case in CASES if not case.is_remote]


def measured(rows_per_s: int, us: float) -> dict[str, Any]:
    spread = distribution(np.array([us, us, 2 * us]))
    return {
        "rate": {
            "rows_per_s": rows_per_s,
            "cpu_cores": {"workers": 1.5},
            "worker_us_a_row": us,
            "disk_written_bytes_a_row": 10.0,
            "network_bytes_a_row": 0.0,
        },
        "processed": spread,
        "visible": spread,
    }


RESULT = {
    "readwrite": {
        "memory": measured(200, 1.0),
        "memory-log": measured(190, 1.1),
        "disk-log": measured(180, 2.0),
        "far-blocking": measured(2, 2_000.0),
    },
    "readonly": {"memory": measured(300, 1.0), "remote-blocking": measured(3, 100.0)},
}


def test_a_distribution_rises_to_its_greatest() -> None:
    found = distribution(np.arange(1.0, 1001.0))
    assert (found["p50_us"], found["p99_us"], found["mean_us"]) == (500.0, 990.0, 500.5)
    points = found["points"]
    assert points[-1] == [1.0, 1000.0]
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(points))


def test_a_distribution_is_weighed_by_messages() -> None:
    found = distribution(np.array([1.0, 9.0]), np.array([99, 1]))
    assert (found["p50_us"], found["p99_us"], found["messages"]) == (1.0, 1.0, 100)
    assert found["points"][-1][1] == 9.0


def test_the_table_has_a_row_for_each_case_in_their_order() -> None:
    rows = rows_of(RESULT, "readwrite")
    labels = [BY_NAME[name].label for name in ("memory", "memory-log", "disk-log", "far-blocking")]
    assert [row[0] for row in rows[1:]] == labels
    assert rows[1][1] == "200"
    assert markdown(rows).splitlines()[1] == "|---|" + "---|" * (len(rows[0]) - 1)


def test_ratios_stand_beside_the_papers_where_both_were_measured() -> None:
    found = {row[0]: row[1:] for row in ratios(RESULT)}
    assert found["throughput lost to the changelog, in-memory"] == ("under 5 %", "-", "5 %")
    far = found["local by remote, blocking with 0.5 ms each way"]
    assert far == ("100 to 150 times", "-", "90 times")
    assert "throughput lost without caches" not in found
    assert any("in-memory + CLog" in line for line in lines(RESULT))


@pytest.mark.soak
def test_all_figures_are_drawn_also_of_a_part(tmp_path: Path) -> None:
    for number, result in enumerate((RESULT, {"readonly": RESULT["readonly"]})):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = draw(result, folder)
        assert [path.name for path in paths] == ["figure-8.png", "figure-9.png", "figure-10.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_cases_are_found_by_name() -> None:
    assert [case.name for case in chosen(["disk", "memory"])] == ["memory", "disk"]
    assert chosen([]) == list(CASES)
    with pytest.raises(InvalidInputError, match=r"no cases \['hot'\]; known: \['memory'"):
        chosen(["hot"])


def test_every_case_gets_rows_enough_for_its_epochs() -> None:
    assert all(size.rows(case, size.seconds) >= 2_000 for size in (FULL, QUICK) for case in CASES)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("case", LOCAL, ids=lambda case: case.name)
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
def test_the_jobs_do_the_same_over_every_local_store(
    case: Case, workload: Any, marked: bool, tmp_path: Path
) -> None:
    work = make_job(case, workload, marks=tmp_path if marked else None)
    ids = random_ids(500, 50)
    with TestDriver(work, tasks=2) as driver:
        stream = create_streams(driver.bus, case, workload)
        if workload == "readonly":
            fill(driver.bus, stream, case, 50)
            driver.run()
        feed(stream, ids, workload)
        driver.run()
        if workload == "readonly":
            found = driver.output("joined")
            assert sorted(row["id"] for row in found) == sorted(ids.tolist())
            values = np.random.default_rng(2).integers(0, 1 << 40, 50, np.int64)
            assert all(row["value"] == values[row["id"] - 1] for row in found)
            assert {row["part"] for row in found} == {b"p" * 30}
        elif case.changelog and not case.is_batch:
            counts = np.bincount(ids, minlength=51)
            assert driver.store("n") == {n: counts[n] for n in range(51) if counts[n]}


def test_this_process_uses_something() -> None:
    before = snapshot()
    sum(number * number for number in range(300_000))
    used = snapshot().since(before)
    assert used["driver"].cpu_s >= 0.0
    assert set(used) == {"workers", "driver", "jvm", "servers"}
