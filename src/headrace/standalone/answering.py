"""What a slot does with what it is asked, in whichever thread or process it is."""

from __future__ import annotations

import os

from headrace.task.orders import SlotOrder, SlotReport
from headrace.task.slot import run_slot
from headrace.task.slot_host import SlotHost, release


def answer(host: SlotHost, slot: int, order: SlotOrder | None) -> SlotReport:
    """Do what a slot is asked: run an order, or let go of everything and say where it is."""
    if order is not None:
        return run_slot(order, host)
    release(host)
    return SlotReport(slot, "", host.host, os.getpid())
