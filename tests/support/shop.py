"""A folder with orders and jobs over them, and commands that are run there, as by its owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from tests.support.homes import Home
from tests.support.processes import MODULES, end_group

ROWS, CUSTOMERS = 3000, 50
EXPECTED = Counter((c, n + 1) for c in range(CUSTOMERS) for n in range(ROWS // CUSTOMERS))
"""What the job ``counts`` sends."""

JOBS = """
from pathlib import Path

import headrace as hr
from tests.support.jobs import pass_gate

@hr.job("counts")
def counts(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("customer")
    orders.aggregate(n=hr.agg.count()).send_to(g.output("counts"))

def share(order) -> dict[str, int]:
    return {"share": 100 // (order.price - 7)}

@hr.job("shares")
def shares(g: hr.Graph) -> None:
    orders = g.input("orders").map(share, returns={"share": int}, name="share")
    orders.send_to(g.output("shares"))

def waiting(order) -> bool:
    pass_gate(Path("GATES"), "order")
    return True

@hr.job("waits")
def waits(g: hr.Graph) -> None:
    g.input("orders").filter(waiting).send_to(g.output("waited"))
"""


class Shop:
    """A working directory with a home, the stream ``orders``, and three jobs in ``shop.py``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gates = folder, folder / "gates"
        self.home = Home(folder / ".headrace")
        schema = {"customer": pa.int64(), "price": pa.int64()}
        self.home.create("orders", schema, partitions=2)
        for partition in range(2):
            numbers = range(partition, ROWS, 2)
            rows = [{"customer": n % CUSTOMERS, "price": n % 8} for n in numbers]
            self.home.send("orders", rows, partition)
        self.gates.mkdir()
        (folder / "shop.py").write_text(JOBS.replace("GATES", str(self.gates)))
        self._begun: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``headrace`` in a process group of its own."""
        process = started(self.folder, *words)
        self._begun.append(process)
        return process

    def close(self) -> None:
        """End what still runs."""
        self.home.close()
        for process in self._begun:
            end(process)

    def counted(self) -> Counter[tuple[int, int]]:
        """Return what the job ``counts`` has sent, as (customer, n)."""
        return Counter((row["customer"], row["n"]) for row in self.home.rows("counts"))

    def order(self) -> None:
        """Have the customer 1 order once more."""
        self.home.send("orders", [{"customer": 1, "price": 1}], 0)


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start ``headrace`` in a folder, in a process group of its own; what it prints is piped."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment["PYTHONPATH"] = MODULES
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a command, and close its pipes."""
    end_group(process)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def ended(process: subprocess.Popen[str], within_s: float = 120) -> tuple[int, str, str]:
    """Wait for the end of a command; return its code and what it printed."""
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def next_line(stream: IO[str] | None) -> str:
    """Wait for what a command prints next."""
    assert stream is not None
    return stream.readline()


def objects(text: str) -> list[dict[str, Any]]:
    """Return what a command printed by ``--json``."""
    return [json.loads(line) for line in text.splitlines()]
