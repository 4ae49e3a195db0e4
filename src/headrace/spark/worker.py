"""What runs in a Python worker of Spark: finds its order by file, runs it, answers; heartbeats.

Spark's closure holds only ``slot_main`` and a small description of the job; which epoch is meant
comes with the Spark job's local properties. What a process keeps (plans, open stores, built tasks)
is in one object for each process and job. A slot that takes long writes heartbeats, files beside
the orders, which the driver reads; a short level costs nothing. Orders and heartbeats are in the
job's storage, which may be an object storage: then each is an object.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from headrace.closeable import running_beside
from headrace.coordinator.worker_host import (
    WorkerSettings,
    collect_garbage_in_background,
    open_worker,
    state_dir_here,
)
from headrace.errors import HeadraceError
from headrace.files import Files
from headrace.objects import StorageAwayError
from headrace.remote import on_host
from headrace.runtime.orders import SlotReport, decode_order_of, encode

HEARTBEAT_PROPERTY = "headrace.signs"


def heartbeat_property(prefix: Path, every_s: float) -> str:
    """Return what a Spark job passes to its slots: how often, and where."""
    return f"{every_s:g} {prefix}"


_FILES = Files(sync=False)


def _path(prefix: Path, slot: int) -> Path:
    return prefix.with_name(f"{prefix.name}-{slot:04d}.sign")


@contextlib.contextmanager
def heartbeats(said: str | None, slot: int, state_dir: Path, *, is_new: bool) -> Iterator[None]:
    """Send heartbeats while a block runs, in a thread of its own.

    Args:
        said: by the Spark job, as ``heartbeat_property``; none: nobody listens.
        slot: number of the slot.
        state_dir: of this host.
        is_new: the process has only begun, and has libraries to load: say so at once.
    """
    if not said:
        yield
        return
    every, _, prefix = said.partition(" ")
    path = _path(on_host(Path(prefix), state_dir), slot)
    count = 0

    def beat(over: threading.Event) -> None:
        nonlocal count
        while not over.wait(0 if is_new and not count else float(every)):
            count += 1
            with contextlib.suppress(OSError, HeadraceError):  # no sign is a sign, too
                _FILES.replace(path, f"{count}".encode(), durable=False)

    try:
        with running_beside("headrace-signs", beat, float(every)):
            yield
    finally:
        if count:
            with contextlib.suppress(OSError, HeadraceError):
                _FILES.remove(path)


def read_heartbeats(prefix: Path, slots: Collection[int]) -> dict[int, str]:
    """Return what slots have last said; those that have said nothing are left out.

    Raises:
        StorageAwayError: the storage does not answer, so nobody knows what slots have said.
    """
    found = {}
    for slot in slots:
        try:
            found[slot] = _FILES.read(_path(prefix, slot)).decode()
        except StorageAwayError:
            raise
        except OSError:
            continue
    return found


def remove_heartbeats(prefix: Path, slots: Collection[int]) -> None:
    """Remove what slots that never answered have left."""
    for slot in slots:
        with contextlib.suppress(OSError, HeadraceError):
            _FILES.remove(_path(prefix, slot))


ORDERS_PROPERTY = "headrace.orders"


_hosts: dict[tuple[int, str, object], Any] = {}


def slot_main(slots: Iterable[WorkerSettings]) -> Iterator[bytes]:
    """Run the order of each slot given, one in practice; yields one report for each.

    Without an order the slot only says where it is, and releases its stores: its tasks
    are about to be placed, maybe with another process of this host.
    """
    from pyspark import TaskContext

    for settings in slots:
        context = TaskContext.get()
        prefix = context.getLocalProperty(ORDERS_PROPERTY) if context is not None else None
        sent_to = context.getLocalProperty(HEARTBEAT_PROPERTY) if context is not None else None
        state_dir = state_dir_here(settings)
        if settings.served is not None:
            settings.served.connect()
        with heartbeats(sent_to, settings.slot, state_dir, is_new=not _hosts):
            report, is_over = _report(settings, prefix)
        yield report
        if is_over:  # its input is not read to its end, so Spark throws the worker away
            return
        if prefix:
            _spare_the_collector()


def _report(settings: WorkerSettings, prefix: str | None) -> tuple[bytes, bool]:
    """Return the report of the slot, and whether its process is to end."""
    from headrace.runtime.slot import describe_failure, run_slot
    from headrace.runtime.slot_host import release_all
    from headrace.spark.slot_metrics import measured

    if prefix:
        try:
            host = _host(settings)
            orders = host.files.read(on_host(Path(prefix), host.state_dir))
        except StorageAwayError as error:  # the driver waits for it; Spark would try and give up
            failure = describe_failure(error)
            return encode(SlotReport(settings.slot, "", "", os.getpid(), error=failure)), False
        order = decode_order_of(orders, settings.slot)
        report = run_slot(order, host)
        return encode(replace(report, metrics=measured(order, report))), order.renew
    host = _host(settings)
    release_all(host)
    collect_garbage_in_background(host.state_dir, host.files, host.clock, settings.keep_unused_s)
    return encode(SlotReport(settings.slot, "", host.host, os.getpid())), False


def warm_main(slots: Iterable[WorkerSettings]) -> Iterator[bytes]:
    """Load what slots will need, and nothing of the job's state, which another driver has."""
    from headrace.coordinator.plan_files import load_plan
    from headrace.spark.daemon import PRELOADED

    for settings in slots:
        sys.path[:0] = [path for path in settings.paths if path not in sys.path]
        for name in PRELOADED:
            with contextlib.suppress(ImportError):  # as of pandas, which a job need not have
                importlib.import_module(name)
        storage = on_host(Path(settings.storage), state_dir_here(settings))
        with contextlib.suppress(Exception):  # the driver says what is wrong, when it drives
            plans = _FILES.names(storage / "plans")
            newest = max(plans, key=lambda name: _FILES.status(storage / "plans" / name).written_s)
            load_plan(storage, newest, _FILES)
        yield b""


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
    key = (os.getpid(), settings.storage, settings.served)
    if key not in _hosts:
        from headrace.runtime.slot_host import release_all

        for kept in _hosts.values():
            release_all(kept)
        _hosts.clear()
        _hosts[key] = open_worker(settings, anchor=_executor())
    return _hosts[key]


def _executor() -> int:
    """Return the process that starts Python's daemon, which starts this one."""
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    except OSError:  # of another system
        return os.getppid()
    return int(stat.rpartition(")")[2].split()[1])
