"""Every command takes ``--json`` and then prints objects alone, one a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import ALL, headrace

ON_SPARK = {
    *("backfill", "run", "demo", "bench readwrite", "bench idle", "bench tasks", "bench stores"),
    *("cluster up", "cluster ls", "cluster kill", "cluster start", "cluster down"),
    *("cluster drain", "sql run", "sql serve", "serve", "ui", "bus offload"),
}
"""What takes longer, needs a server, or runs until it is stopped; their suites look at it."""

CASES: dict[str, list[str]] = {
    "init": ["project"],
    "dev": ["shop_job.py", "--once", "--data", "orders=orders.jsonl"],
    "explain": ["shop_job.py"],
    "submit": ["shop_job.py", "--master", "spark://h:7077", "--environment", "none", "--dry-run"],
    "bus create": ["new", "--schema", "a:int64"],
    "bus append": ["orders", "orders.jsonl"],
    "bus tail": ["orders"],
    "bus describe": ["orders"],
    "bus trim": ["orders", "--before", "latest"],
    "bus compact": ["latest"],
    "bus alias": ["bought", "orders"],
    "bus configure": ["orders", "--retain", "7d"],
    "bus ls": [],
    "bus mirror": ["orders", "copied", "--until-end"],
    "state ls": ["shop"],
    "state get": ["shop", "spent", "ann"],
    "state scan": ["shop", "spent"],
    "state diff": ["shop", "spent", "1", "2"],
    "state export": ["shop", "spent", "--out", "spent.parquet"],
    "state plan": ["shop"],
    "jobs ls": [],
    "jobs describe": ["shop"],
    "jobs why": ["shop"],
    "jobs history": ["shop"],
    "jobs hot-keys": ["shop"],
    "jobs accept-clock": ["shop"],
    "alerts ls": ["shop"],
    "alerts test": [],
    "jobs replay": ["shop", "--epoch", "1"],
    "jobs savepoint": ["shop"],
    "jobs savepoints": ["shop"],
    "jobs reset": ["shop"],
    "jobs rewind": ["shop", "--to", "1"],
    "jobs delete": ["shop", "--yes"],
    "jobs rescale": ["shop", "--tasks", "3"],
    "explore": ["select count(*) as n from orders"],
    "pipe": ["--stream", "orders", "--until", "latest", "cat"],
    "sql check": ["clicks.sql"],
    "sql deploy": ["clicks.sql"],
    "sql explain": ["clicks.sql"],
    "sql test": ["clicks.sql"],
    "sql query": ["clicks.sql", "select * from anns"],
    "warehouse ls": [],
    "warehouse describe": ["visits"],
    "warehouse compact": ["visits"],
    "warehouse sql": ["select * from visits"],
    "dlq ls": [],
    "dlq show": ["shop"],
    "dlq redrive": ["shop", "--dry-run"],
    "config ls": [],
    "config explain": ["job.tasks"],
    "doctor": [],
    "version": [],
}
REFUSED = {
    name: ["shop"]
    for name in ("jobs stop", "jobs top", "jobs pause", "jobs resume", "jobs restart")
}
"""What cannot be done to a job that does not run."""

REFUSED["jobs accept-streams"] = ["shop"]
"""What it reads is what it has read."""

REFUSED |= {name: ["shop", "shop"] for name in ("jobs compare", "jobs swap", "jobs merge")}


def test_every_command_has_a_case() -> None:
    assert set(ALL) == {*CASES, *REFUSED, *ON_SPARK}


@pytest.mark.parametrize("name", ALL)
def test_a_command_takes_json(name: str) -> None:
    assert "--json" in [option for one in ALL[name].params for option in one.opts]


@pytest.mark.usefixtures("app_in_sql")
@pytest.mark.parametrize("name", CASES)
def test_it_prints_objects_alone(name: str, shop: Path) -> None:
    ran = headrace(*name.split(), *CASES[name], "--json")

    assert ran.code == 0 or name == "doctor", ran.err  # a machine may lack something
    lines = ran.out.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert lines


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_told_on_stderr_alone(name: str, shop: Path) -> None:
    ran = headrace(*name.split(), *REFUSED[name], "--json")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error HR100: ")
