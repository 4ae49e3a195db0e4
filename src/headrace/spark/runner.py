"""Runs the slots of a level as one Spark job, and learns where slots are."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from headrace.coordinator.placement import Slot
from headrace.errors import UnavailableError
from headrace.spark.located import Executor, SlotRDD, executors
from headrace.spark.worker import ORDERS_PROPERTY, WorkerSettings, slot_main
from headrace.task.orders import SlotOrder, SlotReport, decode_report, encode

JOB_GROUP = "headrace"


class SparkRunner:
    """Slots on the executors of a Spark application, one for each core.

    Called by one thread at a time; ``cancel`` from any.

    Args:
        context: of the session.
        settings: what each worker has to know; its slot number is set here.
        orders: folder where orders are written, which all hosts reach.
        slots: how many to use at most; ``None``: every core.
    """

    def __init__(
        self,
        context: SparkContext,
        settings: WorkerSettings,
        orders: Path,
        slots: int | None = None,
    ) -> None:
        self._context, self._settings, self._orders = context, settings, orders
        self._wanted = slots
        self._rdd: SlotRDD | None = None
        self._placed: list[Executor] = []

    def slots(self) -> list[Slot]:
        """Ask every slot where it is; placed anew when the executors have changed."""
        found = executors(self._context)
        if not found:
            raise UnavailableError(
                f"Spark master {self._context.master} has no executors; start a worker, or wait"
            )
        places = self._spread(found)
        if self._rdd is None or places != self._placed:
            described = [
                (self._for_slot(number), [executor.location])
                for number, executor in enumerate(places)
            ]
            self._rdd, self._placed = SlotRDD(self._context, described, slot_main), places
        reports = self._run(None, list(range(len(places))))
        return [Slot(report.slot, report.host) for report in reports]

    def _spread(self, found: Sequence[Executor]) -> list[Executor]:
        """One entry for each slot: executors in turn, as long as they have cores."""
        if str(self._context.master).startswith("local"):
            cores = self._wanted or self._context.defaultParallelism
            return [found[0]] * cores
        rounds = max(executor.cores for executor in found)
        places = [e for turn in range(rounds) for e in found if e.cores > turn]
        return places[: self._wanted]

    def _for_slot(self, number: int) -> WorkerSettings:
        from dataclasses import replace

        return replace(self._settings, slot=number)

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Write the orders, run their slots, and read the reports."""
        first = orders[0]
        stem = f"{first.epoch:012d}-{first.generation:08d}-{first.level:02d}"
        prefix = self._orders / stem
        paths = [self._orders / f"{stem}-{order.slot:04d}.json" for order in orders]
        for path, order in zip(paths, orders, strict=True):
            path.write_bytes(encode(order))
        reports = self._run(str(prefix), [order.slot for order in orders])
        for path in paths:
            path.unlink(missing_ok=True)
        return reports

    def _run(self, prefix: str | None, slots: list[int]) -> list[SlotReport]:
        assert self._rdd is not None
        self._context.setLocalProperty(ORDERS_PROPERTY, prefix)  # type: ignore[arg-type]
        self._context.setJobGroup(JOB_GROUP, "headrace epoch", interruptOnCancel=False)
        try:
            return [decode_report(data) for data in self._rdd.run(slots)]
        except (Py4JError, Py4JJavaError, EOFError, OSError) as error:
            raise UnavailableError(
                f"Spark could not run slots {slots}: {first_line(error)}; "
                "Spark's log file has the whole story"
            ) from error

    def cancel(self) -> None:
        """Have Spark drop the level that is running."""
        self._context.cancelJobGroup(JOB_GROUP)


def first_line(error: Exception) -> str:
    """Return the line of a JVM's story that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or "Error" in line]
    return (told or lines or [type(error).__name__])[0][:300]


def import_paths() -> tuple[str, ...]:
    """Folders that workers search for the user's modules: those of this process, existing."""
    here = os.getcwd()
    return tuple(dict.fromkeys(os.path.abspath(p or here) for p in sys.path if p != "" or here))
