"""This tree beside another one, such as an older commit: the same benchmarks by turns in one run.

    git archive COMMIT | tar x -C OTHER
    python bench/compare.py OTHER [--only NAME] [--turns 1]

Each case runs in a process of its own, with the interpreter and libraries of this one. ``ratio`` is
this tree's figure by the other's, of the best turns. ReadWrite runs on Spark's local[2]; windows,
restarts and idle epochs in the test driver, with files below TMPDIR. Figures in ``core`` seconds
are of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

RESTART = """
import json, statistics, time
from typing import Any
import pyarrow as pa
import headrace as hr
from headrace.testing import TestDriver

KEYS, EPOCHS, IDLE = 20_000, 4, 300

class Keep:
    def process(self, message: Any, context: Any) -> None:
        context.store("kept").put(message.id, message.id.to_bytes(8, "big") * 32)

@hr.job("restart")
def job(g: hr.Graph) -> None:
    rows = g.input("events", schema={"id": int}).partition_by("id")
    rows.process(Keep, stores=[hr.store("kept", bytes, "rocksdb")])

def timed(driver: TestDriver, number: int) -> float:
    driver.feed("events", [{"id": number}])
    began = time.process_time()
    driver.run()
    return round((time.process_time() - began) * 1000, 1)

with TestDriver(job, tasks=4, slots=1, memory_bus=False) as driver:
    driver.create("events", {"id": pa.int64()}, partitions=4)
    for epoch in range(EPOCHS):
        ids = range(epoch * KEYS // EPOCHS, (epoch + 1) * KEYS // EPOCHS)
        driver.feed("events", [{"id": one} for one in ids])
        driver.run()
    found = {"warm": min(timed(driver, one) for one in range(5))}
    again, lost = [], []
    for one in range(12):
        driver.crash()
        again.append(timed(driver, one))
        driver.crash(lose_hosts=[0])
        lost.append(timed(driver, one))
    driver.run()
    began = time.process_time()
    for _ in range(IDLE):
        driver.advance()
    idle = (time.process_time() - began) * 1000 / IDLE
    for name, taken in {"restart": again, "empty": lost}.items():
        found |= {name: min(taken), f"{name}, median": round(statistics.median(taken), 1)}
    print(json.dumps(found | {"idle": round(idle, 3)}))
"""

Read = Callable[[list[Any]], dict[str, float]]


def _read_write(rows: list[Any]) -> dict[str, float]:
    return {"rows/s": rows[-1]["rows_per_s"]}


def _windows(rows: list[Any]) -> dict[str, float]:
    return {f"{row['window']}, rows/core s": row["rows_per_core_s"] for row in rows}


def _tasks(rows: list[Any]) -> dict[str, float]:
    return {"an epoch, core ms": rows[-1]["total_cpu_ms"]["median"]}


def _restart(rows: list[Any]) -> dict[str, float]:
    return {f"{name}, core ms": value for name, value in rows[-1].items()}


class Case(NamedTuple):
    """One benchmark: its arguments for Python, in the folder of a tree, and its figures."""

    arguments: tuple[str, ...]
    read: Read


_BENCH = ("-m", "headrace.cli.main", "bench", "readwrite", "--json")
_MANY = ("--tasks", "10000", "--slots", "1000", "--epochs", "10")
CASES: Mapping[str, Case] = {
    "restart": Case(("-c", RESTART), _restart),
    "message": Case(
        (*_BENCH, "--rows", "1000000", "--ids", "200000", "--epoch-rows", "250000"), _read_write
    ),
    "batch": Case(
        (*_BENCH, "--path", "batch", "--rows", "8000000", "--epoch-rows", "2000000"), _read_write
    ),
    "windows": Case(
        ("bench/windows.py", "--rows", "400000", "--epoch-rows", "100000", "--keys", "20000"),
        _windows,
    ),
    "tasks": Case(("bench/coordinator.py", *_MANY), _tasks),
}


def run(tree: Path, case: Case) -> dict[str, float]:
    """Return the figures of a case with the code of a tree.

    Raises:
        SystemExit: it failed; what it printed is shown.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as home:
        given = {"PYTHONPATH": str(tree / "src"), "HEADRACE_HOME": home}
        done = subprocess.run(
            [sys.executable, *case.arguments],
            cwd=tree,
            env=os.environ | given,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(case.arguments)[:80]}\n{done.stderr[-2000:]}")
    lines = done.stdout.strip()
    if lines.startswith("{\n"):
        return case.read([json.loads(lines)])
    return case.read([json.loads(line) for line in lines.splitlines() if line.startswith("{")])


def main() -> None:
    """Run the cases, and print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    trees = {"other": options.other.resolve(), "this": Path(__file__).resolve().parents[1]}
    for name, case in CASES.items():
        if options.only not in {None, name}:
            continue
        found: dict[str, list[dict[str, float]]] = {"other": [], "this": []}
        for turn in range(options.turns):
            for side in sorted(trees, reverse=bool(turn % 2)):
                found[side].append(run(trees[side], case))
        for figure in found["this"][0]:
            best = max if "rows" in figure else min
            other, this = (best(one[figure] for one in found[side]) for side in ("other", "this"))
            line = {"case": name, "figure": figure, "other": other, "this": this}
            print(json.dumps(line | {"ratio": round(this / other, 2)}), flush=True)


if __name__ == "__main__":
    main()
