"""Compaction of a table by hand, beside its job or without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.clock import Clock, Deadline
from headrace.files import Files
from headrace.graph.daily import DailyTable
from headrace.graph.sinks import ReceiverAwayError, SinkSite
from headrace.warehouse import delta
from headrace.warehouse.compaction import Aims
from headrace.warehouse.delta_log import DELTA_LOG
from headrace.warehouse.receiver import TableReceiver
from headrace.warehouse.snapshot import Place, existing

WAIT_S = 30.0
_PAUSE_S = 0.05


def compact(folder: Path, aims: Aims, files: Files, clock: Clock) -> tuple[int, int]:
    """Merge the small files of all days of a table, however few they are.

    A running job waits for a step of it, or each step for an epoch, up to half a minute.

    Args:
        folder: of the table.
        aims: of its files.
        files: the file system.
        clock: time and names.

    Returns:
        How many files there were before, and are since.

    Raises:
        InvalidInputError: there is no such table, or its file system cannot exchange folders.
        ReceiverAwayError: the job writes to it all the time.
    """
    deadline = Deadline(clock, WAIT_S)

    def begin_again() -> None:
        nonlocal deadline
        deadline = Deadline(clock, WAIT_S)

    while True:
        try:
            if (folder / DELTA_LOG).is_dir():
                return delta.compact(folder, aims.keep_ms)
            return _compact(folder, aims, files, clock, begin_again)
        except ReceiverAwayError:
            if deadline.expired:
                raise
            clock.sleep(_PAUSE_S)


def _compact(
    folder: Path, aims: Aims, files: Files, clock: Clock, on_step: Callable[[], None]
) -> tuple[int, int]:
    place = Place(folder)
    held = existing(place)
    table = DailyTable(folder.name, held.time, held.order)
    site = SinkSite(held.job, held.operator, held.schema, clock, files)
    return TableReceiver(place, table, aims, site).compact(on_step)
