"""What a slot does with what it is asked, in whichever thread or process it is."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.coordinator.collector import collect_beside
from headrace.coordinator.running.workers import WorkerSettings, open_worker
from headrace.task.orders import SlotOrder, SlotReport
from headrace.task.slot import run_slot
from headrace.task.slot_host import SlotHost, release


class Answering:
    """A slot, which gets ready when it is first asked; for one thread.

    Args:
        settings: of the slot.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._host: SlotHost | None = None

    def answer(self, order: SlotOrder | None) -> SlotReport:
        """Run an order; without one let go of everything, and say where the slot is."""
        if self._host is None:
            self._host = open_worker(self._settings, Path(self._settings.state_dir))
        host = self._host
        if order is None:
            release(host)
            collect_beside(host.state_dir, host.files, host.clock, self._settings.keep_unused_s)
            return SlotReport(self._settings.slot, "", host.host, os.getpid())
        report = run_slot(order, host)
        if order.renew:
            self.close()
        return report

    def close(self) -> None:
        """Let go of everything; the next order finds a slot that is new."""
        host, self._host = self._host, None
        if host is not None:
            release(host)
