"""Tests of behaviour use what users use, and ``tests/support``: so modules can change their shape.

A test that imports an inner module breaks when the module is renamed, joined or cut, although
nothing that anybody sees has changed. So such tests are beside the few modules that are doors of
their own: those whose form or rules others depend on, by files on disk, by a protocol, or by a
proof. They are named here, with the reason; all others go through the front.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pytest

TESTS = Path(__file__).parents[1]
PUBLIC = {
    "headrace",
    "headrace.agg",
    "headrace.bus",
    "headrace.errors",
    "headrace.sinks",
    "headrace.spark",
    "headrace.serving",
    "headrace.stores",
    "headrace.testing",
    "headrace.sql",
    "headrace.warehouse",
}
"""What docs/reference and the guide of errors describe."""

SHIPPED = ("headrace.testing.",)
"""Contract suites, clusters and servers of the test kit that need more than the kit itself."""

COMMAND = "headrace.cli.main"
"""What ``python -m`` runs."""

MOST_BEHIND = 0.05
"""The share of tests of behaviour that may import inner modules: fewer, never more."""


class Door(NamedTuple):
    """Tests beside modules that are doors of their own.

    Attributes:
        why: what depends on the form of the module, so that its tests are of that form.
        files: below tests, as patterns.
    """

    why: str
    files: tuple[str, ...]


DOORS = {
    "files of streams": Door(
        "what is on disk is read by later versions, and by other processes meanwhile",
        ("unit/bus/test_*.py", "compat/make_streams.py"),
    ),
    "files of state": Door(
        "segments, snapshots, runs and stores on disk are read by later versions; policies of "
        "merges and costs are proved by numbers",
        ("unit/state/test_*.py", "model/test_*.py", "model/ledger.py"),
    ),
    "object storage": Door(
        "the contract of what is durable there, which plug-ins implement",
        (
            "servers/test_s3_storage.py",
            "servers/test_s3_faults.py",
            "unit/runtime/test_host_storage.py",
            "servers/test_s3_bus.py",
            "servers/test_hdfs_storage.py",
        ),
    ),
    "records": Door(
        "encodings of keys, rows and schemas are in every file",
        ("unit/records/test_*.py",),
    ),
    "manifests": Door(
        "the one truth of a job is read by later versions; its fold is pure",
        (
            "unit/coordinator/test_manifest.py",
            "unit/coordinator/test_task_files.py",
            "unit/coordinator/test_storage.py",
            "unit/coordinator/test_job_events.py",
            "unit/coordinator/test_key_kinds.py",
            "contract/test_commit_log.py",
        ),
    ),
    "placement and plans of epochs": Door(
        "pure rules with worst cases, over many made-up clusters",
        (
            "unit/coordinator/test_placement.py",
            "unit/coordinator/test_orders.py",
            "unit/coordinator/test_planning.py",
            "unit/coordinator/test_reading_order.py",
            "unit/coordinator/test_stages_together.py",
            "unit/coordinator/test_standby_placing.py",
            "unit/coordinator/test_watermarks.py",
        ),
    ),
    "state machines": Door(
        "all that can happen to a driver and a cluster, a thousand orders a minute",
        (
            "unit/coordinator/machines/test_*.py",
            "sim/machine_*.py",
            "sim/test_coordinator_machines.py",
        ),
    ),
    "leases, locks and retries": Door(
        "protocols between processes, by an injected clock",
        (
            "unit/coordinator/test_commands.py",
            "unit/coordinator/test_lease.py",
            "unit/coordinator/test_retry_policy.py",
            "unit/coordinator/test_recovery.py",
            "unit/coordinator/test_failure_detector.py",
            "unit/coordinator/test_leadership.py",
            "unit/runtime/test_connections.py",
            "unit/control/test_merge_lock.py",
            "unit/control/test_quiesce.py",
            "unit/standalone/test_*.py",
            "standalone/test_driver_side.py",
            "standalone/test_encryption.py",
        ),
    ),
    "rules of tasks": Door(
        "rules that are pure, or faster by vectors than by rows, against brute force",
        (
            "unit/runtime/test_background.py",
            "unit/runtime/test_call_rules.py",
            "unit/runtime/test_clusters.py",
            "unit/runtime/test_deduplicate.py",
            "unit/runtime/test_exchange.py",
            "unit/runtime/test_exchange_network.py",
            "unit/runtime/test_hot_keys.py",
            "unit/runtime/test_join_search.py",
            "unit/runtime/test_lateness.py",
            "unit/runtime/test_outputs.py",
            "unit/runtime/test_partials.py",
            "unit/runtime/test_timer_service.py",
            "unit/runtime/test_slot.py",
            "unit/runtime/test_source.py",
            "unit/runtime/test_standbys.py",
            "unit/runtime/test_tables.py",
            "unit/runtime/test_timers.py",
            "sim/window_nodes.py",
        ),
    ),
    "graphs": Door(
        "a graph is data that is printed and compared; laws of aggregates hold for each form",
        (
            "unit/graph/test_aggregates.py",
            "unit/graph/test_sketches.py",
            "unit/graph/test_durations.py",
            "unit/graph/test_streams.py",
            "unit/graph/test_types.py",
        ),
    ),
    "settings": Door(
        "their names and texts are what users write; those of Samza are read, too",
        ("unit/config/test_*.py",),
    ),
    "alerts and samples": Door(
        "pure courses over time, and files that are kept for a month",
        (
            "unit/control/test_alerts.py",
            "unit/control/test_clock_alerts.py",
            "unit/control/test_pace.py",
            "unit/control/test_samples.py",
        ),
    ),
    "texts of the command": Door(
        "figures, words and tables are pure functions of what they show; so is when to scale, and "
        "when to start a driver again",
        (
            "unit/cli/test_caught_up.py",
            "unit/cli/test_reporters.py",
            "unit/cli/test_run_text.py",
            "unit/cli/test_screen.py",
            "unit/cli/test_state_keys.py",
            "unit/cli/test_supervisor.py",
            "unit/cli/test_tailing_text.py",
        ),
    ),
    "other systems": Door(
        "what is spoken with Spark, Delta, Redis, PostgreSQL, object stores and OpenTelemetry",
        (
            "unit/control/test_tracing.py",
            "spark/test_located.py",
            "unit/spark/test_*.py",
            "unit/sinks/test_formats.py",
            "unit/sinks/test_postgres_*.py",
            "unit/sources/test_*.py",
            "unit/warehouse/test_delta_files.py",
            "unit/warehouse/test_packet.py",
            "unit/warehouse/test_tables.py",
            "servers/test_frozen_senders.py",
            "servers/test_remote_failures.py",
            "servers/test_remote_store.py",
        ),
    ),
    "leaves": Door(
        "the clock, files, fences, faults and figures that all others stand on",
        (
            "unit/test_clock.py",
            "unit/test_faults.py",
            "unit/test_fencing.py",
            "unit/test_files.py",
            "unit/test_redaction.py",
            "unit/bench/test_*.py",
            "unit/demo/test_*.py",
        ),
    ),
}

_INNER_NAME = re.compile(r"headrace(\.[a-z_0-9]+){2,}(\.[A-Za-z_]+)?")


class Module(NamedTuple):
    """A file of tests: its path below tests, how many tests it has, inner modules it imports."""

    path: str
    tests: int
    inner: tuple[str, ...]


def inner_modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the inner modules that a file imports, or names in a text, as patches do."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "headrace":
            joined = [f"headrace.{alias.name}" for alias in node.names]
            names = [name for name in joined if is_module(name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Constant) and _may_name(node.value):
            parts = node.value.split(".")
            is_name = _INNER_NAME.fullmatch(node.value) and is_module(".".join(parts[:2]))
            names = [node.value] if is_name else []
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "headrace" and is_inner(name))


def _may_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith("headrace.")


def is_inner(name: str) -> bool:
    return name not in PUBLIC and not name.startswith(SHIPPED) and name != COMMAND


def is_module(name: str) -> bool:
    path = TESTS.parent / "src" / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def read(path: Path) -> Module:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    tests = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
    inner = tuple(sorted(set(inner_modules(nodes))))
    return Module(path.relative_to(TESTS).as_posix(), len(tests), inner)


@cache
def modules() -> list[Module]:
    """Read all files of tests: when a test asks, for that takes seconds."""
    return [read(path) for path in sorted(TESTS.rglob("*.py")) if "support" not in path.parts]


def beside(pattern: str) -> set[str]:
    """Return the files of a pattern that import inner modules; the others need no door."""
    inner = {module.path for module in modules() if module.inner}
    return {path.relative_to(TESTS).as_posix() for path in TESTS.glob(pattern)} & inner


def beside_doors() -> set[str]:
    return {path for door in DOORS.values() for pattern in door.files for path in beside(pattern)}


def test_nine_of_ten_tests_of_behaviour_go_through_the_front() -> None:
    """Fails with the list of those that do not, the worst first."""
    doors = beside_doors()
    front = [module for module in modules() if module.path not in doors]
    behind = sorted((m for m in front if m.inner), key=lambda m: -m.tests)
    tests, inner = sum(m.tests for m in front), sum(m.tests for m in behind)
    share = inner / tests
    print(f"{inner} of {tests} tests of behaviour, {share:.1%}, import inner modules")
    told = "\n".join(f"{m.path}: {m.tests} tests, {', '.join(m.inner)}" for m in behind)
    assert share <= MOST_BEHIND, f"{share:.1%} import inner modules:\n{told}"


@pytest.mark.parametrize("name", DOORS)
def test_a_door_is_one(name: str) -> None:
    assert [pattern for pattern in DOORS[name].files if not beside(pattern)] == []


def test_helpers_outside_support_go_through_the_front() -> None:
    doors = beside_doors()
    helpers = [m for m in modules() if not Path(m.path).name.startswith("test_")]
    told = [f"{m.path}: {', '.join(m.inner)}" for m in helpers if m.inner and m.path not in doors]
    assert told == []
