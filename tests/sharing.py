"""How processes share tests out: a file at a time, those that take longest first.

So the processes end together, and what the fixtures of a module make is made once. There are more
processes than cores, since tests of servers mostly wait: whoever needs a file gets the longest
one for which the others leave CPU. How long each file takes, and how much CPU in that time, is in
``durations.json``, which this writes anew: ``make test ARGS=--durations-to=tests/durations.json``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadFileScheduling

DURATIONS = Path(__file__).with_name("durations.json")
CORES = len(os.sched_getaffinity(0))
ROUNDING = 0.1
CLUSTERS = "tests/spark/test_cluster"
KAFKA = "tests/servers/test_kafka"
"""First of all: its client library has crashed processes that had run hundreds of tests before."""

SPARK = "tests/spark/"
WITH_SESSION = (SPARK, "tests/docs/test_snippets.py")


class Taken(NamedTuple):
    """How long tests took, and the CPU seconds of their processes in that time."""

    seconds: float
    cpu_s: float

    @property
    def cores(self) -> float:
        """How many cores they keep busy."""
        return self.cpu_s / self.seconds if self.seconds else 0.0

    def __add__(self, other: tuple[float, ...]) -> Taken:  # type: ignore[override]
        return Taken(self.seconds + other[0], self.cpu_s + other[1])


NEW = Taken(5.0, 5.0)


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Lets each file be run by one process, and all with clusters or Kafka, or on Spark, by one.

    A cluster has a JVM for each host and for each executor: two of them at once would be slow
    enough for the hosts of one to be taken for frozen. Kafka and its registry are started once, and
    so is the session of Spark: what its JVM runs for the first time costs ten times what it does
    later.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._known = known()

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Give a process what leaves the others their cores; it is the last of what it has."""
        others = [
            next(reversed(units))
            for one, units in self.assigned_work.items()
            if one is not node and units
        ]
        chosen = next_scope(self.workqueue, others, self._known, CORES)
        self.workqueue.move_to_end(chosen, last=False)
        with suppress(OSError):  # it has just crashed: ``remove_node`` follows
            super()._assign_work_unit(node)

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
    """Return what a test is shared out with: its file, or all of one kind that share a server."""
    if nodeid.startswith((CLUSTERS, KAFKA)):
        return CLUSTERS
    return SPARK if nodeid.startswith(WITH_SESSION) else nodeid.partition("::")[0]


def next_scope(
    waiting: Collection[str], running: Collection[str], taken: Mapping[str, Taken], cores: int
) -> str:
    """Return the first of what waits that needs no more CPU than is left, or else the least."""
    busy = {scope: taken.get(scope, NEW).cores for scope in (*waiting, *running)}
    room = cores + ROUNDING - sum(busy[scope] for scope in running)
    fitting = (scope for scope in waiting if busy[scope] <= room)
    return next(fitting, min(waiting, key=busy.__getitem__))


def known() -> dict[str, Taken]:
    """Return what each scope took when durations were written down."""
    taken: defaultdict[str, Taken] = defaultdict(lambda: Taken(0.0, 0.0))
    for file, one in json.loads(DURATIONS.read_text()).items():
        taken[scope_of(file)] += one
    return dict(taken)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Share the tests out in this way where there are several processes."""
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first, where several processes share them."""
    if hasattr(config, "workerinput"):
        taken = known()
        items.sort(
            key=lambda item: (
                item.nodeid.startswith(KAFKA),
                taken.get(scope_of(item.nodeid), NEW).seconds,
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
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Have the report tell it."""
        report = yield
        if call.when == "teardown":
            now = tree_cpu_s()
            vars(report)["cpu_s"] = round(max(0.0, now - self._before), 3)
            self._before = now
        return report


def tree_cpu_s(root: str = "self") -> float:
    """Return the CPU seconds of a process and of those that it started, also of those that ended.

    What was started by a process that ended first is missing, as are servers that detach.
    """
    spent, left = 0, [root]
    while left:
        process = left.pop()
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, fields[11:15]))  # user, system, both of children waited for
            for thread in os.listdir(f"/proc/{process}/task"):
                with suppress(OSError):
                    children = Path(f"/proc/{process}/task/{thread}/children")
                    left += children.read_text().split()
    return spent / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Adds up how long the tests of each file take, and writes that over what is known of it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._taken: defaultdict[str, Taken] = defaultdict(lambda: Taken(0.0, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's beginning, its middle or its end."""
        spent = getattr(report, "cpu_s", 0.0)
        self._taken[report.nodeid.partition("::")[0]] += (report.duration, spent)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what each kind took, as the table of ``tests/README.md`` has it."""
        kinds: defaultdict[str, Taken] = defaultdict(lambda: Taken(0.0, 0.0))
        for file, taken in self._taken.items():
            kinds[file.split("/")[1]] += taken
        said = (f"{kind} {taken.seconds:.0f} ({taken.cpu_s:.0f})" for kind, taken in kinds.items())
        terminalreporter.write_line(f"seconds (of CPU) by kind: {', '.join(sorted(said))}")

    def pytest_sessionfinish(self) -> None:
        """Write it down, without files that are gone."""
        root = DURATIONS.parents[1]
        held = json.loads(self._target.read_text()) if self._target.exists() else {}
        held |= {file: [round(one, 1) for one in taken] for file, taken in self._taken.items()}
        lines = (
            f'"{file}": {json.dumps(held[file])}' for file in sorted(held) if (root / file).exists()
        )
        self._target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
