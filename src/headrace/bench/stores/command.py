"""Runs every case of ``headrace bench stores`` and puts together what is printed and drawn."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from headrace.clock import SystemClock
from headrace.errors import InvalidInputError

RESULT = "stores.json"


def main(
    options: Mapping[str, Any], say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the cases, one after the other.

    Args:
        options: ``quick``, ``only`` (names of cases), ``workload``, ``out`` (folder of the JSON
            and the figures; what it holds of the same machine and size is kept where it is not
            measured again) and ``home``; those left out have the defaults of the command.
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
    out = None if not options.get("out") else Path(options["out"])
    result = _begin(out, size)
    say("warming Spark up")
    with _folder(home, workloads[0], cases[0]) as folder:
        measure(cases[0], workloads[0], QUICK, folder)
    for workload in workloads:
        found = result.setdefault(workload, {})
        # In rounds, so that what disturbs the machine for a while does not meet one case alone.
        rates: dict[str, list[dict[str, Any]]] = {}
        for turn in range(size.repeats):
            for case in cases:
                say(f"{workload}: {case.label}, {turn + 1} of {size.repeats}")
                with _folder(home, workload, case) as folder:
                    rates.setdefault(case.name, []).append(measure(case, workload, size, folder))
                found.setdefault(case.name, {})["rate"] = _median(rates[case.name])
                _save(out, result)
        # A quick look has latencies of one job only.
        for case in cases if size is not QUICK or workload == workloads[0] else ():
            say(f"{workload}: {case.label}, latency")
            with _folder(home, workload, case) as folder:
                one = found[case.name]
                one["processed"] = processed(case, workload, size, folder / "processed")
                rate = one["rate"]["rows_per_s"]
                one["visible"] = visible(case, workload, size, folder / "visible", rate)
            _save(out, result)
    if out is not None:
        draw(result, out)
    return result


def _begin(out: Path | None, size: Size) -> dict[str, Any]:
    """Return an empty result, or the one in a folder that was measured in the same way."""
    empty = {
        "machine": machine(),
        "size": {
            "ids": size.ids,
            "seconds": size.seconds,
            "repeats": size.repeats,
            "tasks": TASKS,
            "master": MASTER,
            "is_quick": size is QUICK,
        },
    }
    if out is None or not (out / RESULT).exists():
        return empty
    held: dict[str, Any] = json.loads((out / RESULT).read_text())
    alike = all(held.get(part) == empty[part] for part in empty)
    return held if alike else empty


def _save(out: Path | None, result: Mapping[str, Any]) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    parts = [f"{json.dumps(name)}: {_text(name, value)}" for name, value in result.items()]
    (out / RESULT).write_text("{\n " + ",\n ".join(parts) + "\n}\n")


def _text(name: str, value: Any) -> str:
    """One case a line, so that a change shows which."""
    if name not in WORKLOADS:
        return json.dumps(value)
    lines = [f"{json.dumps(case)}: {json.dumps(one)}" for case, one in value.items()]
    return "{\n  " + ",\n  ".join(lines) + "\n }"


def chosen(names: Sequence[str]) -> list[Case]:
    """Return the cases of some names; all where there are none."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise InvalidInputError(f"no cases {unknown}; known: {list(BY_NAME)}")
    return [case for case in CASES if not names or case.name in names]


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run in the middle, with the rates of all."""
    ordered = sorted(runs, key=lambda run: run["rows_per_s"])
    return {**ordered[len(ordered) // 2], "all_rows_per_s": [run["rows_per_s"] for run in runs]}


@contextmanager
def _folder(home: Path, workload: Workload, case: Case) -> Iterator[Path]:
    """Give a new folder; workers remember a job by its folder, so each run has one of its own."""
    folder = home / f"{workload}-{case.name}-{SystemClock().new_id()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def machine() -> dict[str, Any]:
    """Return what it is measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.system(),
    }
