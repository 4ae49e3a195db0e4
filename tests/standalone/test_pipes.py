"""Pipes in processes of their own: killed with their clients or their host, slow clients, codes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.homes import Home
from tests.support.processes import MODULES, Started, is_alive, until

SPAN = 20
PARTITIONS = 2
CLIENT = """
echo $$ >"client-$HEADRACE_PARTITION.new"
mv "client-$HEADRACE_PARTITION.new" "client-$HEADRACE_PARTITION"
while read -r line; do
  case $line in '['*) ;; *) echo "$HEADRACE_OFFSET $line" >>"seen-$HEADRACE_PARTITION" ;; esac
  echo "$line"
done
"""
"""Keeps each row with the offset that its client began at, sends it on, and acknowledges."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    running = Started(tmp_path, tmp_path / "home")
    yield running
    running.end()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "home") as found:
        yield found


def clients(folder: Path) -> list[int]:
    """The processes of the clients that run now."""
    found = [int(file.read_text()) for file in folder.glob("client-?")]
    return [one for one in found if is_alive(one)]


def stopped(processes: list[int]) -> None:
    """Let processes end at the same moment, as they do with their host."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)


def test_each_row_is_there_at_least_once_whatever_is_killed_when(
    home: Home, started: Started, tmp_path: Path
) -> None:
    """Clients, the pipe, and all at once, each at any moment; output is once."""
    for name in ("orders", "copy"):
        home.create(name, {"id": pa.int64()}, partitions=PARTITIONS)
    fed = 0

    def feed(count: int) -> None:
        nonlocal fed
        rows = [{"id": number} for number in range(fed, fed + count)]
        for partition in range(PARTITIONS):
            home.send("orders", rows, partition)
        fed += count

    def run() -> subprocess.Popen[str]:
        words = ("--every-rows", str(SPAN), "--output", "copy", "--every-s", "0.2")
        again = ("--restarts", "1000", "--restart-delay", "0.01")
        command = ("sh", "-c", CLIENT)
        return started.start("pipe", "--stream", "orders", *words, *again, "--", *command)

    moments, kills = random.Random(21), 0
    feed(300)
    pipe = run()
    for turn, victim in enumerate(("client", "pipe", "host", "client", "host", "pipe")):
        until(lambda: len(clients(tmp_path)) == PARTITIONS, "a client for each partition")
        wanted = home.count("copy") + moments.randrange(300)
        feed(200)
        until(lambda: home.count("copy") > wanted, "rows to be copied")  # noqa: B023
        running = clients(tmp_path)
        if victim == "client":
            stopped([running[turn % len(running)]])
            kills += 1
            continue
        stopped([pipe.pid] if victim == "pipe" else [pipe.pid, *running])
        pipe.wait()
        until(lambda: not clients(tmp_path), "clients to end with their pipe")
        kills += 1
        pipe = run()
    feed(100)
    until(lambda: home.count("copy") >= PARTITIONS * fed, "all rows to be copied")
    pipe.send_signal(signal.SIGTERM)
    assert pipe.wait(60) == 130

    assert [row["id"] for row in home.rows("copy")] == [*range(fed)] * PARTITIONS
    for partition in range(PARTITIONS):
        lines = (tmp_path / f"seen-{partition}").read_text().splitlines()
        pairs = [re.fullmatch(r'(\d+) {"id":(\d+)}', line) for line in lines]
        seen = [(int(one[1]), int(one[2])) for one in pairs if one]
        ids = [number for _, number in seen]
        assert [*dict.fromkeys(ids)] == [*range(fed)]  # none is left out
        assert all(later <= earlier + 1 for earlier, later in pairwise(ids))
        # A crash costs the rows of one span at most, and a client begins at a checkpoint.
        assert len(ids) <= fed + kills * SPAN
        begins = dict(reversed(seen))
        assert all(begin == number for begin, number in begins.items())


MIB = 1 << 20
SLOW = """
(while :; do grep RssAnon /proc/$0/status >>held; sleep 0.02; done) &
sleep 0.5; head -c 20000000 >/dev/null; sleep 0.3; cat | wc -c; sleep 0.1
"""
"""Reads nothing, then a part, then all, and notes meanwhile what the pipe has in memory."""


def test_a_slow_client_holds_the_pipe_up_and_not_in_memory(
    home: Home, started: Started, tmp_path: Path
) -> None:
    home.create("lines", {"line": pa.binary()})
    for _ in range(60):
        home.send("lines", [{"line": b"x" * (MIB - 1)}] * 2)
    words = ("--format", "raw", "--ack", "exit", "--every-rows", "1000000", "--until", "latest")
    command = ("sh", "-c", 'exec sh -c "$0" $PPID', SLOW)
    pipe = started.start("pipe", "--stream", "lines", *words, "--", *command)

    assert pipe.wait(120) == 0
    assert str(120 * MIB - 20_000_000) in started.said(0)
    held = [int(line.split()[1]) * 1024 for line in (tmp_path / "held").read_text().splitlines()]
    assert max(held) - held[0] < 24 * MIB


PRINTER = 'while read -r line; do echo "$line"; case $line in "{"*) echo x;; esac; done'


def test_a_pipe_whose_output_nobody_reads_ends(home: Home, tmp_path: Path) -> None:
    home.create("orders", {"id": pa.int64()})
    home.send("orders", [{"id": number} for number in range(50_000)])
    words = ("pipe", "--stream", "orders", "--home", str(home.home), "--", "sh", "-c")
    with subprocess.Popen(
        (sys.executable, "-m", "headrace.cli.main", *words, PRINTER),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": MODULES},
        cwd=tmp_path,
    ) as pipe:
        assert pipe.stdout is not None
        assert pipe.stdout.readline()
        pipe.stdout.close()
        assert pipe.wait(60) == 141
