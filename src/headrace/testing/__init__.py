"""For tests of jobs and of parts: the test driver, a manual clock, contract suites.

Begin with ``TestDriver``, which runs a whole job in one thread; ``crash`` and its like are items
of what it plays. The contract suites are in modules of their own, because they need pytest.
"""

from headrace.testing.clock import ManualClock
from headrace.testing.driver import DriverCrash, TestDriver
from headrace.testing.script import (
    Item,
    advance_clock,
    crash,
    epoch,
    finish,
    idle,
    restart,
    rows,
    settled,
)

__all__ = [
    "DriverCrash",
    "Item",
    "ManualClock",
    "TestDriver",
    "advance_clock",
    "crash",
    "epoch",
    "finish",
    "idle",
    "restart",
    "rows",
    "settled",
]
