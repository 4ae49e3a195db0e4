"""For tests of jobs and components: the test driver, a manual clock, crashes, contract suites.

Start with ``TestDriver``, which runs a whole job in one thread. ``crash`` and similar functions
make items of its scripts; ``crash_at`` and ``call_at`` act at a fault point in a block. The
contract suites are in separate modules, because they need pytest. The test driver is loaded when
it is first named: a process that runs a contract of a bus needs no operators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.faults import FAULT_POINTS
from headrace.testing.script import (
    DriverCrash,
    Item,
    ManualClock,
    SlotCrash,
    advance_clock,
    call_at,
    crash,
    crash_at,
    each_at,
    epoch,
    finish,
    idle,
    jump_clock,
    points_passed,
    restart,
    rows,
    settled,
)

if TYPE_CHECKING:
    from headrace.testing.driver import TestDriver

__all__ = [
    "FAULT_POINTS",
    "DriverCrash",
    "Item",
    "ManualClock",
    "SlotCrash",
    "TestDriver",
    "advance_clock",
    "call_at",
    "crash",
    "crash_at",
    "each_at",
    "epoch",
    "finish",
    "idle",
    "jump_clock",
    "points_passed",
    "restart",
    "rows",
    "settled",
]


def __getattr__(name: str) -> Any:
    if name != "TestDriver":
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    found = importlib.import_module("headrace.testing.driver").TestDriver
    globals()[name] = found
    return found
