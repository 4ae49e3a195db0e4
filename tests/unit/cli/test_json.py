"""Every command takes ``--json`` and then prints objects alone, one a line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.cli.commands import headrace
from typer.main import get_command

import headrace as hr
from headrace.cli.main import app
from headrace.testing.driver import TestDriver

ON_SPARK = {"run", "demo", "bench readwrite", "bench idle", "bench tasks", "bench stores"}
"""What takes longer; their suites look at what they print."""

JOB = """
import headrace as hr

@hr.job("shop")
def shop(g):
    g.input("orders").partition_by("user").aggregate(n=hr.agg.count()).send_to(g.output("n"))
"""

CASES: dict[str, list[str]] = {
    "init": ["project"],
    "dev": ["shop_job.py", "--once", "--data", "orders=orders.jsonl"],
    "explain": ["shop_job.py"],
    "bus create": ["new", "--schema", "a:int64"],
    "bus append": ["orders", "orders.jsonl"],
    "bus tail": ["orders"],
    "bus describe": ["orders"],
    "bus trim": ["orders", "--before", "latest"],
    "bus alias": ["bought", "orders"],
    "bus configure": ["orders", "--retain", "7d"],
    "bus ls": [],
    "state ls": ["shop"],
    "state get": ["shop", "spent", "ann"],
    "state scan": ["shop", "spent"],
    "state diff": ["shop", "spent", "1", "2"],
    "state export": ["shop", "spent", "--to", "spent.parquet"],
    "state plan": ["shop"],
    "jobs ls": [],
    "jobs describe": ["shop"],
    "jobs reset": ["shop"],
    "jobs rewind": ["shop", "--to", "1"],
    "jobs delete": ["shop", "--yes"],
    "jobs rescale": ["shop", "--tasks", "3"],
    "dlq ls": [],
    "dlq show": ["shop"],
    "dlq redrive": ["shop", "--dry-run"],
    "config ls": [],
    "config explain": ["job.tasks"],
    "doctor": [],
    "version": [],
}
REFUSED = {"jobs stop": ["shop"]}
"""What cannot be done to a job that does not run."""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, found in inner.items():
        yield from commands(found, (*words, name))


ALL = dict(commands(get_command(app)))


def checked(order: Any) -> dict[str, Any]:
    if order.n < 0:
        raise ValueError("less than nothing")
    return {"user": order.user, "n": order.n}


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").map(checked, returns={"user": str, "n": int}, on_error="dead_letter")
    orders.partition_by("user").aggregate(name="spent", n=hr.agg.sum("n")).send_to(
        g.output("spent")
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a job that has run two epochs, and a dead letter."""
    folder = tmp_path_factory.mktemp("shop")
    with TestDriver(shop, tasks=2, home=folder / ".headrace", memory_bus=False) as driver:
        driver.create("orders", {"user": pa.string(), "n": pa.int64()})
        driver.feed("orders", [{"user": "ann", "n": 1}, {"user": "bob", "n": -1}])
        driver.run()
        driver.feed("orders", [{"user": "ann", "n": 2}])
        driver.run()
    (folder / "shop_job.py").write_text(JOB)
    (folder / "orders.jsonl").write_text('{"user": "cat", "n": 3}\n')
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "shop"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("shop_job", None)


def test_every_command_has_a_case() -> None:
    assert set(ALL) == {*CASES, *REFUSED, *ON_SPARK}


@pytest.mark.parametrize("name", ALL)
def test_a_command_takes_json(name: str) -> None:
    assert "--json" in [option for one in ALL[name].params for option in one.opts]


@pytest.mark.parametrize("name", CASES)
def test_it_prints_objects_alone(name: str, here: Path) -> None:
    ran = headrace(*name.split(), *CASES[name], "--json")

    assert ran.code == 0 or name == "doctor", ran.err  # a machine may lack something
    lines = ran.out.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert lines


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_told_on_stderr_alone(name: str, here: Path) -> None:
    ran = headrace(*name.split(), *REFUSED[name], "--json")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error HR100: ")
