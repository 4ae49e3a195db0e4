"""For tests of jobs and components: the test driver, a manual clock, crashes, contract suites.

Start with ``TestDriver``, which runs a whole job in one thread. ``crash`` and similar functions
make items of its scripts; ``crash_at`` and ``call_at`` act at a fault point in a block. The
contract suites are in separate modules, because they need pytest.
"""

from headrace.faults import FAULT_POINTS
from headrace.testing.driver import TestDriver
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
