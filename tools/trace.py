"""Show where one record goes: the files and functions of a warm epoch, and of an idle one.

The job maps a record, repartitions it by key, counts it in a store and sends it to an output, in
the test driver. ``docs/architecture.md`` walks along what this prints:

    python tools/trace.py           # files in the order in which the record comes to them
    python tools/trace.py --calls   # each function with its number of calls
    python tools/trace.py --cpu     # the processor time of both, over 16 partitions
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing import TestDriver

PACKAGE = Path(hr.__file__).parent
WARM_EPOCHS = 3
TIMED_EPOCHS, TIMED_ADVANCES = 60, 1000


@dataclass
class Trace:
    """What was called of the package, in order of the first call."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    depth: int = 0

    @property
    def files(self) -> list[str]:
        """Files below the package, in the order in which they were come to."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    def __str__(self) -> str:
        return (
            f"{len(self.files)} files, {len(self.calls)} functions, "
            f"{self.calls.total()} calls, {self.depth} deep"
        )


def traced(action: Callable[[], object]) -> Trace:
    """Do something, and return which functions of the package it called."""
    trace = Trace()
    deep = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deep
        path = frame.f_code.co_filename
        if not path.startswith(str(PACKAGE)) or "/testing/" in path:
            return
        if event == "call":
            deep += 1
            trace.depth = max(trace.depth, deep)
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            trace.calls[str(Path(path).relative_to(PACKAGE)), name] += 1
        elif event == "return":
            deep -= 1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return trace


class Counting:
    """Counts the messages of each user."""

    def process(self, message: Any, context: hr.Context) -> None:
        """Count one more."""
        counts = context.store("counts")
        total = counts.get(message.user, 0) + 1
        counts.put(message.user, total)
        context.emit({"user": message.user, "total": total})


@hr.job("traced")
def job(g: hr.Graph) -> None:
    """Map, partition_by, process with a store, output."""
    clicks = g.input("clicks").map(
        lambda message: {"user": message.user.lower()}, returns={"user": str}
    )
    counted = clicks.partition_by("user").process(
        Counting, stores={"counts": int}, returns={"user": str, "total": int}, name="count"
    )
    counted.send_to(g.output("totals"))


def traces() -> tuple[Trace, Trace]:
    """Return the traces of a warm epoch with one record, and of one that finds nothing."""
    with TestDriver(job, tasks=1, slots=1, memory_bus=False) as driver:
        driver.create("clicks", {"user": pa.string()}, partitions=1)
        for _ in range(WARM_EPOCHS):
            driver.feed("clicks", [{"user": "Ada"}])
            driver.advance()
        driver.feed("clicks", [{"user": "Ada"}])
        warm = traced(driver.advance)
        assert driver.output("totals")[-1] == {"user": "ada", "total": WARM_EPOCHS + 1}
        driver.advance()  # it looks once whether the tasks are where they should be
        return warm, traced(driver.advance)


def processor_times() -> tuple[float, float]:
    """Return the processor time of a warm epoch with one record, and of an idle advance, ms."""
    with TestDriver(job, tasks=1, slots=1, memory_bus=False) as driver:
        driver.create("clicks", {"user": pa.string()}, partitions=16)
        warm = 0.0
        for number in range(WARM_EPOCHS + TIMED_EPOCHS):
            driver.feed("clicks", [{"user": "Ada"}])
            began = time.process_time()
            driver.advance()
            warm += 0.0 if number < WARM_EPOCHS else time.process_time() - began
        driver.advance()
        began = time.process_time()
        for _ in range(TIMED_ADVANCES):
            driver.advance()
        idle = time.process_time() - began
    return warm * 1000 / TIMED_EPOCHS, idle * 1000 / TIMED_ADVANCES


def main() -> None:
    """Print both traces."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", action="store_true", help="show each function")
    options.add_argument("--cpu", action="store_true", help="measure processor time instead")
    given = options.parse_args()
    if given.cpu:
        warm_ms, idle_ms = processor_times()
        print(f"a record in a warm epoch: {warm_ms:.2f} ms, an idle advance: {idle_ms:.3f} ms")
        return
    shows_calls = given.calls
    for title, trace in zip(("a record in a warm epoch", "an idle advance"), traces(), strict=True):
        print(f"{title}: {trace}")
        for file in trace.files:
            names = {name: n for (at, name), n in trace.calls.items() if at == file}
            print(f"  {file}: {len(names)} functions, {sum(names.values())} calls")
            if shows_calls:
                for name, count in names.items():
                    print(f"    {count:4} {name}")


if __name__ == "__main__":
    main()
