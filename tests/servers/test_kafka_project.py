"""The project of ``headrace init --kafka`` does on a real broker what its README says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.support.cli import done, headrace, write_project
from tests.support.kafka import KafkaServer, Topics, lib
from tests.support.processes import MODULES, until

HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


def steps(project: Path) -> list[list[str]]:
    """Return the commands of Headrace in the README, in their order."""
    blocks = re.findall(r"```sh\n(.*?)```", (project / "README.md").read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("headrace ")]


def minutes(project: Path) -> Counter[tuple[str, int]]:
    """What each customer spends in each minute whose window has closed, by brute force."""
    found: Counter[tuple[str, int]] = Counter()
    rows = [
        msgspec.json.decode(line)
        for line in (project / "data/orders.jsonl").read_bytes().splitlines()
    ]
    last = max(row["at"] for row in rows) - 5_000
    for row in rows:
        minute = row["at"] // 60_000
        if row["cents"] > 0 and (minute + 1) * 60_000 <= last:
            found[row["customer"], minute] += row["cents"]
    return found


def results(topics: Topics) -> int:
    """Return how many there are; brokers may not know yet who leads a topic that is new."""
    with suppress(lib.KafkaException):
        return len(topics.rows("spending")) if topics.exists("spending") else 0
    return 0


def test_its_commands_fill_a_topic_and_read_what_comes_of_it(
    kafka: KafkaServer, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "my-shop"
    write_project(project, kafka.address)
    monkeypatch.chdir(project)
    environment = {**os.environ, "PYTHONPATH": MODULES}
    append, fill, run, look, tail = steps(project)
    done(*append)
    assert headrace(*fill).code == 0
    expected = minutes(project)
    with subprocess.Popen([*HEADRACE, *run], env=environment) as running:
        try:
            until(lambda: results(topics) >= len(expected), "the results")
        finally:
            running.terminate()
    assert headrace(*look).code == 0
    lines = done(*tail, "-n", 99, "--json").splitlines()
    rows = [msgspec.json.decode(line)["row"] for line in lines]
    assert sorted(row["cents"] for row in rows) == sorted(expected.values())
    assert {row["customer"] for row in rows} == {customer for customer, _ in expected}


def test_its_own_test_needs_no_broker(tmp_path: Path) -> None:
    project = tmp_path / "my-shop"
    write_project(project, "localhost:1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": MODULES}
    ran = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
