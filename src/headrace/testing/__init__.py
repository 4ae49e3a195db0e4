"""For tests of jobs and of parts: the test driver, a manual clock, contract suites.

Begin with ``TestDriver``, which runs a whole job in one thread. The contract suites are in
modules of their own, because they need pytest.
"""

from headrace.testing.clock import ManualClock
from headrace.testing.driver import DriverCrash, TestDriver

__all__ = ["DriverCrash", "ManualClock", "TestDriver"]
