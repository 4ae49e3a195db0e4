"""What runs in a Python worker of Spark: finds its order by file, runs it, answers.

Spark's closure holds only this function and a small description of the job; which epoch
is meant comes with the Spark job's local properties. What a process keeps (plans, open
stores, built tasks) is in one object for each process and job.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from headrace.coordinator.collector import collect_beside
from headrace.coordinator.running.workers import WorkerSettings, open_worker
from headrace.spark.signs import PROPERTY as SIGNS_PROPERTY
from headrace.spark.signs import living
from headrace.task.orders import SlotReport, decode_order, encode

ORDERS_PROPERTY = "headrace.orders"


_hosts: dict[tuple[int, str], Any] = {}


def slot_main(slots: Iterable[WorkerSettings]) -> Iterator[bytes]:
    """Run the order of each slot given, one in practice; yields one report for each.

    Without an order the slot only says where it is, and lets go of its stores: its tasks
    are about to be placed, maybe with another process of this host.
    """
    from pyspark import TaskContext

    for settings in slots:
        context = TaskContext.get()
        prefix = context.getLocalProperty(ORDERS_PROPERTY) if context is not None else None
        signs = context.getLocalProperty(SIGNS_PROPERTY) if context is not None else None
        with living(signs, settings.slot, is_new=not _hosts):
            report, is_over = _report(settings, prefix)
        yield report
        if is_over:  # its input is not read to its end, so Spark throws the worker away
            return
        if prefix:
            _spare_the_collector()


def _report(settings: WorkerSettings, prefix: str | None) -> tuple[bytes, bool]:
    """Return the report of the slot, and whether its process is to end."""
    from headrace.task.slot import run_slot
    from headrace.task.slot_host import release

    if prefix:
        order = decode_order(Path(f"{prefix}-{settings.slot:04d}.json").read_bytes())
        return encode(run_slot(order, _host(settings))), order.renew
    host = _host(settings)
    release(host)
    collect_beside(host.state_dir, host.files, host.clock, settings.keep_unused_s)
    return encode(SlotReport(settings.slot, "", host.host, os.getpid())), False


_served = count(1)


def _spare_the_collector() -> None:
    """Hide what lives long from Spark's full collection after every task of a worker.

    Walking the loaded libraries took 50 ms a task, more than all else in an idle epoch. At
    powers of two, so that what was hidden and then dropped in a cycle stays a bounded loss.
    """
    served = next(_served)
    if served & (served - 1) == 0:
        gc.collect()
        gc.freeze()


def _host(settings: WorkerSettings) -> Any:
    key = (os.getpid(), settings.storage)
    if key not in _hosts:
        from headrace.task.slot_host import release

        for kept in _hosts.values():
            release(kept)
        _hosts.clear()
        _hosts[key] = open_worker(settings)
    return _hosts[key]
