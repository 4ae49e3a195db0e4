"""What runs in a Python worker of Spark: finds its order by file, runs it, answers.

Spark's closure holds only this function and a small description of the job; which epoch
is meant comes with the Spark job's local properties. What a process keeps (plans, open
stores, built tasks) is in one object for each process and job.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

from headrace.clock import SystemClock
from headrace.task.orders import SlotReport, decode_order, encode

ORDERS_PROPERTY = "headrace.orders"


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker has to know of a job; travels once, with the slots.

    ``state_dir`` is a host's own folder; the variable ``HEADRACE_STATE_DIR`` of a host
    overrides it there.
    """

    job: str
    slot: int
    storage: str
    bus: str
    state_dir: str
    paths: tuple[str, ...]
    adopt_bytes: int
    cache_bytes: int
    block_cache_bytes: int
    write_buffer_bytes: int
    copy: str = ""
    keep_unused_s: float = 86_400.0
    standby_share: float = 0.5


_hosts: dict[tuple[int, str], Any] = {}


def slot_main(slots: Iterable[WorkerSettings]) -> Iterator[bytes]:
    """Run the order of each slot given, one in practice; yields one report for each.

    Without an order the slot only says where it is, and lets go of its stores: its tasks
    are about to be placed, maybe with another process of this host.
    """
    from pyspark import TaskContext

    from headrace.task.slot import run_slot
    from headrace.task.slot_host import release

    for settings in slots:
        context = TaskContext.get()
        prefix = context.getLocalProperty(ORDERS_PROPERTY) if context is not None else None
        if not prefix:
            host = _host(settings)
            release(host)
            _collect_beside(host, settings.keep_unused_s)
            yield encode(SlotReport(settings.slot, "", host.host, os.getpid()))
            continue
        order = decode_order(Path(f"{prefix}-{settings.slot:04d}.json").read_bytes())
        yield encode(run_slot(order, _host(settings)))
        _spare_the_collector()


def _collect_beside(host: Any, keep_s: float) -> None:
    """Remove local state that nobody needs; the slot does not wait for it."""
    from headrace.coordinator.collector import collect
    from headrace.errors import HeadraceError

    def run() -> None:
        with suppress(OSError, HeadraceError):  # what is left is collected another time
            collect(host.state_dir, host.files, host.clock, keep_s)

    Thread(target=run, name="headrace-collector", daemon=True).start()


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
        for path in reversed(settings.paths):
            if path not in sys.path:
                sys.path.insert(0, path)
        from headrace.bus.address import open_bus
        from headrace.coordinator.hosting import open_host
        from headrace.files import Files
        from headrace.state.options import RocksDBSettings
        from headrace.task.slot_host import release

        for kept in _hosts.values():
            release(kept)
        _hosts.clear()
        _hosts[key] = open_host(
            storage=Path(settings.storage),
            bus=open_bus(Path(settings.bus)),
            state_dir=Path(os.environ.get("HEADRACE_STATE_DIR", settings.state_dir)),
            clock=SystemClock(),
            files=Files(),
            adopt_bytes=settings.adopt_bytes,
            copy=Path(settings.copy) if settings.copy else None,
            cache_bytes=settings.cache_bytes,
            standby_share=settings.standby_share,
            rocksdb=RocksDBSettings.within(settings.block_cache_bytes, settings.write_buffer_bytes),
        )
    return _hosts[key]
