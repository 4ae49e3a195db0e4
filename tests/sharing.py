"""How processes share tests out: a file at a time, those that take longest first.

So the processes end together, and what the fixtures of a module make is made once. How long each
file takes is in ``durations.json``, which this writes anew:
``make test ARGS=--durations-to=tests/durations.json``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

DURATIONS = Path(__file__).with_name("durations.json")
NEW_S = 5.0
CLUSTERS = "tests/spark/test_cluster"
KAFKA = "tests/servers/test_kafka"
"""First of all: its client library has crashed processes that had run hundreds of tests before."""


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Lets each file be run by one process, and all files with clusters or Kafka by the same.

    A cluster has a JVM for each host and for each executor: two of them at once would be slow
    enough for the hosts of one to be taken for frozen. Kafka and its registry are started once.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Let others run what a process that crashed left, but for the test that it crashed in.

        Else that test would crash each process that replaces it.
        """
        for unit in self.assigned_work[node].values():
            running = next((test for test, is_done in unit.items() if not is_done), None)
            if running is not None:
                left = self.assigned_work.pop(node)
                left[scope_of(running)][running] = True
                self.workqueue.update(
                    {name: one for name, one in left.items() if not all(one.values())}
                )
                for other in self.assigned_work:
                    self._reschedule(other)
                return running
        return super().remove_node(node)

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:  # else it has only been started
            super()._reschedule(node)

    def schedule(self) -> None:
        """Give work to all processes, also to one that replaces one that crashed.

        A process runs its last test when it knows what comes next, so one unit is not enough.
        """
        super().schedule()
        for node in list(self.assigned_work):
            self._reschedule(node)


def scope_of(nodeid: str) -> str:
    """Return what a test is shared out with: its file, or all with clusters and with Kafka."""
    return CLUSTERS if nodeid.startswith((CLUSTERS, KAFKA)) else nodeid.partition("::")[0]


def seconds() -> dict[str, float]:
    """Return how long each scope took when durations were written down."""
    taken: defaultdict[str, float] = defaultdict(float)
    for file, one in json.loads(DURATIONS.read_text()).items():
        taken[scope_of(file)] += one if isinstance(one, float) else one[0]
    return taken


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Share the tests out in this way where there are several processes."""
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first, where several processes share them."""
    if hasattr(config, "workerinput"):
        known = seconds()
        items.sort(
            key=lambda item: (
                item.nodeid.startswith(KAFKA),
                known.get(scope_of(item.nodeid), NEW_S),
            ),
            reverse=True,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that has durations written down."""
    parser.addoption("--durations-to", type=Path, help="write seconds by file to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    """Note durations where they are asked for, in the process that hears of all tests."""
    target = config.getoption("durations_to")
    if target is None:
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(target))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(CpuMeter())


class CpuMeter:
    """Adds to the last report of each test what this process and those that it started spent."""

    def __init__(self) -> None:
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        """Begin here: what imports take is of no test."""
        self._before = tree_cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[pytest.TestReport]:
        """Have the report tell it."""
        report: pytest.TestReport = yield  # type: ignore[misc] # pluggy sends it
        if call.when == "teardown":
            now = tree_cpu_s()
            report.cpu_s = round(max(0.0, now - self._before), 3)
            self._before = now
        return report


def tree_cpu_s(root: str = "self") -> float:
    """Return the CPU seconds of a process and of those that it started, also of those that ended.

    What was started by a process that ended first is missing, as are servers that detach.
    """
    spent, left = 0, [root]
    while left:
        process = left.pop()
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            for thread in os.listdir(f"/proc/{process}/task"):
                left += Path(f"/proc/{process}/task/{thread}/children").read_text().split()
        except OSError:  # it has just ended
            continue
        spent += sum(map(int, fields[11:15]))  # user, system, and both of children waited for
    return spent / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Adds up how long the tests of each file take, and writes that over what is known of it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._taken: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's beginning, its middle or its end."""
        taken = self._taken[report.nodeid.partition("::")[0]]
        taken[0] += report.duration
        taken[1] += getattr(report, "cpu_s", 0.0)

    def pytest_sessionfinish(self) -> None:
        """Write it down, without files that are gone."""
        root = DURATIONS.parents[1]
        known = json.loads(self._target.read_text()) if self._target.exists() else {}
        known |= {file: [round(one, 1) for one in taken] for file, taken in self._taken.items()}
        there = {file: known[file] for file in sorted(known) if (root / file).exists()}
        self._target.write_text(json.dumps(there, indent=0) + "\n")
