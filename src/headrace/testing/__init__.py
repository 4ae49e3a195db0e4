"""What users and we test with: a driver for whole jobs, contract suites, a clock.

Names load what they need when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.clock import ManualClock
    from headrace.testing.driver import TestDriver

__all__ = ["ManualClock", "TestDriver"]


def __getattr__(name: str) -> Any:
    if name == "ManualClock":
        from headrace.testing.clock import ManualClock

        return ManualClock
    if name == "TestDriver":
        from headrace.testing.driver import TestDriver

        return TestDriver
    raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}; it has {__all__}")
