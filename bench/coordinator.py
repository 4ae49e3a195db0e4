"""What the coordinator alone costs: planning, placement and commit of an epoch of 10,000 tasks.

    python bench/coordinator.py [--tasks N] [--partitions N] [--slots N] [--epochs N] [--steady]
        [--profile]

Planning, placement, orders, reports, manifests, the log and the fold are the real ones, with fsync;
slots are made up: they answer at once that every task of theirs changed, and files are merged.
What they take counts for nothing. ``cpu`` is processor time, which a busy machine does not change.
Each eighth epoch takes place with a tenth of the hosts gone, and the next with these back, unless
hosts are ``--steady``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

import headrace as hr
from headrace.bus import MemoryBus
from headrace.clock import SystemClock
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.epoch_executor import EpochExecutor
from headrace.coordinator.epoch_placement import PlacementContext, StickyAssignment
from headrace.coordinator.epoch_ranges import plan_ranges
from headrace.coordinator.inputs import task_counts
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.placement import Slot
from headrace.files import Files
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.plan.stages import JobPlan
from headrace.runtime.async_loop import with_rare_gc
from headrace.runtime.orders import (
    ExchangeFile,
    FileRef,
    Merged,
    MergedTask,
    MergeOrder,
    OutputPart,
    Reached,
    SegmentRef,
    SlotOrder,
    SlotReport,
    StandbyReport,
    TaskReport,
    decode_report,
    encode,
)

SLOTS_A_HOST, ROWS = 4, 1_000
PARTS = ("plan", "orders", "absorb", "commit")


class _Count:
    def process(self, message: Any, context: Any) -> None:
        del message, context


def plan_of(partitions: int, tasks: int) -> JobPlan:
    """Return a job that reads so many partitions, and keeps state in so many tasks."""

    @hr.job("many")
    def job(g: Any) -> None:
        by_id = g.input("events").partition_by("id")
        counts = by_id.process(_Count, stores={"n": int}, returns={"id": int}, name="count")
        counts.send_to(g.output("out"))

    stream = StreamInfo(pa.schema({"id": pa.int64()}), partitions)
    groups = 1 << (tasks - 1).bit_length()
    return plan(job.build(), {"events": stream}, key_groups=groups, tasks=tasks)


def answer(order: SlotOrder, host: str) -> bytes:
    """Return what a slot says: everything was read, and every task changed."""
    attempt = f"{order.epoch}-{order.slot}"
    tasks, exchange, merges = [], [], []
    for task in order.tasks:
        count = next(iter(order.task_counts.values()))
        if task.ranges:
            reached = [Reached(r.operator, r.partition, r.stop, r.stop) for r in task.ranges]
            tasks.append(TaskReport(task.stage, task.task, reached))
            path = f"exchange/{order.epoch:012d}-{task.task}"
            exchange.append(ExchangeFile("events.by_id", task.task, path, 1, [1] * count))
            continue
        tasks.append(
            TaskReport(
                task.stage,
                task.task,
                changed=True,
                segment_bytes=1_000,
                segment_rows=10,
                outputs=[OutputPart("out", task.task % 4, f"output/{attempt}", 0, 100, 10)],
                state_bytes=100_000,
            )
        )
        if task.merge is not None:
            merges.append(MergedTask(task.stage, task.task, merged(task.merge, task.task)))
    segment = FileRef(f"segment/{order.epoch:012d}-{attempt}", 1_000, order.epoch, attempt, 7)
    standbys = [
        StandbyReport(one.stage, one.task, one.state.epoch, one.state.attempt)
        for one in order.standbys
    ]
    made = SlotReport(
        order.slot, attempt, host, 1, tasks, exchange, segment, merges=merges, standbys=standbys
    )
    return encode(made)


def merged(order: MergeOrder, task: int) -> Merged:
    """Return the file that a slot made of those that it was to join."""
    made, first = order.sources, order.sources[0].first_epoch
    size, rows = sum(one.bytes for one in made), sum(one.rows for one in made)
    path = f"snapshot/{order.epoch:012d}-{task}"
    ref = SegmentRef(path, size, order.epoch, order.attempt, 7, size, rows, first)
    return Merged(ref, tuple(one.path for one in made), order.snapshot)


class Bench:
    """One job, epoch after epoch."""

    def __init__(self, root: Path, wanted: argparse.Namespace) -> None:
        self.clock = SystemClock()
        self.plan = plan_of(wanted.partitions, wanted.tasks - wanted.partitions)
        self.copies, self.partitions = wanted.standbys, wanted.partitions
        self.slots = [Slot(n, f"host-{n // SLOTS_A_HOST:04d}") for n in range(wanted.slots)]
        self.root = root
        self.log = FileCommitLog(root, Files())
        self.writer = FencedManifestWriter("many", self.log, MemoryBus(), self.clock)
        self.writer.begin()
        self.writer.create(self._first())
        none = cast("Any", None)
        self.executor = EpochExecutor(none, self.writer, runner=none, storage=none, bus=none)
        self.took: dict[str, list[float]] = defaultdict(list)
        self.sticky = StickyAssignment()
        self.placed_over: list[Slot] = []

    def _first(self) -> JobState:
        return JobState(
            job="many",
            lineage=self.clock.new_id(),
            generation=self.writer.generation,
            epoch=0,
            time_ms=0,
            digest="",
            key_groups=self.plan.key_groups,
            fingerprint=self.plan.fingerprint,
            inputs={"events": {p: InputPosition(0) for p in range(self.partitions)}},
            task_counts=task_counts(self.plan),
        )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began, busy = time.perf_counter(), time.process_time()
        yield
        self.took[what][-1] += (time.perf_counter() - began) * 1000
        self.took[f"{what} cpu"][-1] += (time.process_time() - busy) * 1000

    def epoch(self, slots: list[Slot]) -> None:
        """Plan, place, report and commit one epoch, as a turn of a driver does."""
        with with_rare_gc():
            self._epoch(slots)

    def _epoch(self, slots: list[Slot]) -> None:
        for name in (*PARTS, "slots"):
            self.took[name].append(0.0)
            self.took[f"{name} cpu"].append(0.0)
        state = self.writer.state
        ends = {"events": [(state.epoch + 1) * ROWS] * self.partitions}
        if slots is not self.placed_over:  # a driver asks all slots where they are
            self.sticky.released()
            self.placed_over = slots
        with self._timed("plan"):
            ranges = plan_ranges(self.plan, state, ends, 1 << 40)
            run = EpochRun(
                self.plan,
                state,
                slots,
                ranges,
                self.writer.generation,
                "plan",
                self.clock.now_ms(),
                ends=ends,
                standby_copies=self.copies,
                context=PlacementContext(sticky=self.sticky),
            )
        hosts = {slot.number: slot.host for slot in slots}
        for level in range(len(self.plan.levels)):
            with self._timed("orders"):
                if not level:
                    run.placing.assigned(run.placing.leaving())
                orders = run.orders(level)
                for order in orders:
                    encode(order)
            with self._timed("slots"):
                answers = [answer(order, hosts[order.slot]) for order in orders]
            with self._timed("absorb"):
                run.absorb(orders, [decode_report(data) for data in answers])
                run.finish_level(level)
        (act,) = self.plan.commit_actions
        with self._timed("commit"):
            self.writer.check()
            if not self.executor.append(run, act, is_last=True):
                raise SystemExit("the epoch was lost to nobody")

    def sizes(self) -> list[tuple[int, int]]:
        """Return epoch and bytes of each manifest."""
        folder = self.root / "manifests"
        return [(int(p.stem), p.stat().st_size) for p in sorted(folder.glob("*.json"))]


def main() -> None:
    """Measure, and print one object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--standbys", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=70)
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--profile", action="store_true")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-") as home:
        bench = Bench(Path(home), wanted)
        few = [slot for slot in bench.slots if int(slot.host[5:]) % 10]
        profile = cProfile.Profile()
        for number in range(wanted.epochs):
            if wanted.profile and number:
                profile.enable()
            has_gone = number % 8 == 5 and not wanted.steady
            bench.epoch(few if has_gone else bench.slots)
            profile.disable()
        if wanted.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        total = _sums(bench.took[name] for name in PARTS)
        busy = _sums(bench.took[f"{name} cpu"] for name in PARTS)
        sizes = bench.sizes()
        deltas = [size for epoch, size in sizes if epoch % 64]
        found = {
            "tasks": wanted.tasks,
            "partitions": wanted.partitions,
            "slots": wanted.slots,
            "standbys": wanted.standbys,
            "steady": wanted.steady,
            "total_ms": _told(total[1:]),
            "total_cpu_ms": _told(busy[1:]),
            **{f"{name}_cpu_ms": _told(bench.took[f"{name} cpu"][1:]) for name in PARTS},
            "delta_bytes": _told(deltas),
            "base_bytes": [size for epoch, size in sizes if epoch % 64 == 0],
        }
    print(json.dumps(found, indent=1))


def _sums(parts: Iterable[list[float]]) -> list[float]:
    return [sum(each) for each in zip(*parts, strict=True)]


def _told(values: list[float] | list[int]) -> dict[str, float]:
    ranked = sorted(values)
    return {
        "median": round(statistics.median(ranked), 1),
        "p95": round(ranked[int(len(ranked) * 0.95)], 1),
        "most": round(ranked[-1], 1),
    }


if __name__ == "__main__":
    main()
