"""``headrace explain``: plans of jobs, also before their streams exist."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import done, refused

JOBS = """
import headrace as hr

@hr.job("counts")
def counts(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("customer")
    orders.aggregate(n=hr.agg.count()).send_to(g.output("counts"))

@hr.job("typed")
def typed(g: hr.Graph) -> None:
    orders = g.input("orders", time="at", schema={"customer": int, "at": int})
    orders.partition_by("customer").aggregate(n=hr.agg.count()).send_to(g.output("counts"))

@hr.job("wrong")
def wrong(g: hr.Graph) -> None:
    g.input("orders").partition_by("custmer").aggregate(n=hr.agg.count())
"""


@pytest.fixture
def jobs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file of jobs in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "explained_jobs.py").write_text(JOBS)
    yield "explained_jobs.py"
    sys.modules.pop("explained_jobs", None)


@pytest.fixture
def orders(home: Path) -> None:
    """The stream that the jobs read."""
    schema = "customer:int64,at:int64"
    done("bus", "create", "orders", "--schema", schema, "--time", "at", "--partitions", 3)


@pytest.mark.usefixtures("orders")
def test_a_plan_is_told_or_drawn(jobs: str) -> None:
    told = done("explain", f"{jobs}:counts", "--set", "job.tasks=5")

    assert "job counts: 2 levels, 2 stages, 8 tasks" in told
    assert "store orders.by_customer.aggregate (columnar)" in told
    assert "durability epoch: exactly once" in told
    told = done("explain", f"{jobs}:counts", "--set", "state.durability=backup(30s)")
    assert "durability backup(30s): exactly once while the disk of the driver's host" in told
    assert "at least once" in told
    assert done("explain", f"{jobs}:counts", "--mermaid").startswith("flowchart ")


def test_an_input_that_is_not_there_is_told_with_how_to_create_it(jobs: str, home: Path) -> None:
    told = refused("explain", f"{jobs}:counts")

    assert "no stream 'orders'" in told
    assert "headrace bus create orders --schema" in told
    assert not home.exists()


def test_an_input_with_a_schema_need_not_be_there(jobs: str) -> None:
    assert "job typed: 2 levels" in done("explain", f"{jobs}:typed")


@pytest.mark.usefixtures("orders")
def test_mistakes_of_a_graph_are_told_with_their_line(jobs: str) -> None:
    told = refused("explain", f"{jobs}:wrong")

    assert "error HR101: job 'wrong' has 1 mistake" in told
    assert "explained_jobs.py:16" in told
    assert "'customer'" in told


def test_columns_of_a_dataframe_that_no_run_has_read_are_asked_for(jobs: str) -> None:
    by_settings = ("--set", "inputs.orders.dataframe.format=csv")
    told = refused("explain", f"{jobs}:counts", *by_settings)
    assert "input 'orders' of job 'counts' is a Spark DataFrame, whose columns are known" in told
    assert "give the input schema= to plan without that" in told
    assert "bus create" not in told
    assert "typed.orders.dataframe" in done("explain", f"{jobs}:typed", *by_settings)
