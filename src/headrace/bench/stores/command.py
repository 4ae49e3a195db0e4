"""Runs every case of ``headrace bench stores`` and puts together what is printed and drawn."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.bench.stores.cases import (
    BY_NAME,
    CASES,
    FULL,
    QUICK,
    WORKLOADS,
    Case,
    Size,
    Workload,
)
from headrace.bench.stores.figures import draw, need_matplotlib
from headrace.bench.stores.latency import processed, visible
from headrace.bench.stores.run import MASTER, TASKS, measure
from headrace.errors import InvalidInputError

RESULT = "stores.json"


def main(
    options: Mapping[str, Any], say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the cases, one after the other.

    Args:
        options: ``quick``, ``only`` (names of cases), ``workload``, ``out`` (folder of the JSON
            and the figures) and ``home``; those left out have the defaults of the command.
        say: told what is being measured.

    Returns:
        ``machine``, ``size``, and for each workload each case's ``rate``, ``processed`` and
        ``visible``; the same as in ``out``.

    Raises:
        InvalidInputError: no case of that name, or a program or library is missing.
    """
    return run(options, QUICK if options.get("quick") else FULL, say)


def run(
    options: Mapping[str, Any], size: Size, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure as much as a size says; see ``main``."""
    cases = chosen(options.get("only") or ())
    workloads: Sequence[Workload] = WORKLOADS
    if options.get("workload"):
        workloads = (options["workload"],)
    need_matplotlib()
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    result: dict[str, Any] = {
        "machine": machine(),
        "size": {
            "ids": size.ids,
            "seconds": size.seconds,
            "tasks": TASKS,
            "master": MASTER,
            "is_quick": size is QUICK,
        },
    }
    for workload in workloads:
        found = result[workload] = {}
        for case in cases:
            say(f"{workload}: {case.label}")
            # A quick look draws latencies of one job only.
            with_latencies = size is not QUICK or workload == workloads[0]
            found[case.name] = _measured(case, workload, size, home, with_latencies)
    if options.get("out"):
        _write(Path(options["out"]), result)
    return result


def chosen(names: Sequence[str]) -> list[Case]:
    """Return the cases of some names; all where there are none."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise InvalidInputError(f"no cases {unknown}; known: {list(BY_NAME)}")
    return [case for case in CASES if not names or case.name in names]


def _measured(
    case: Case, workload: Workload, size: Size, home: Path, with_latencies: bool
) -> dict[str, Any]:
    # Workers remember a job by its folder, so each run has one of its own.
    folder = home / f"{workload}-{case.name}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        found: dict[str, Any] = {"rate": measure(case, workload, size, folder / "rate")}
        if with_latencies:
            found["processed"] = processed(case, workload, size, folder / "processed")
            rows_per_s = found["rate"]["rows_per_s"]
            found["visible"] = visible(case, workload, size, folder / "visible", rows_per_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def machine() -> dict[str, Any]:
    """Return what it is measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _write(folder: Path, result: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n")
    draw(result, folder)
