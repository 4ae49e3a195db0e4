"""``headrace run`` on real Spark: what it prints, and how signals to its process end it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import headrace
from tests.support.processes import until
from tests.support.shop import EXPECTED, ROWS, Shop, ended, next_line, objects
from tests.support.soak import more

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

MASTER = ("--master", "local[2]")
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Shop(tmp_path)
    yield made
    made.close()
    sys.modules.pop("shop", None)


def test_a_bounded_run_in_json(shop: Shop) -> None:
    ran = headrace("run", "shop.py:counts", *MASTER, "--bounded", "--json")

    assert (ran.code, ran.err) == (0, "")
    *epochs, end = objects(ran.out)
    assert {"epoch"} == {line["type"] for line in epochs}
    assert sum(line["rows"] for line in epochs) == ROWS
    assert (end["type"], end["rows"], end["output_rows"]) == ("end", ROWS, ROWS)
    assert (end["ended"], end["interrupted"]) == (True, False)
    assert shop.counted() == EXPECTED

    ran = headrace("run", "shop.py:counts", *MASTER)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("counts: its run had ended in epoch ")
    assert shop.counted() == EXPECTED

    ran = headrace("run", "shop.py:counts", *MASTER, "--bounded", "--replace")

    assert ran.code == 0
    assert "counts: run 2 begins, without state" in ran.err
    assert f"counts: {ROWS:,} rows in " in ran.out
    assert shop.counted() == EXPECTED


@pytest.mark.parametrize("number", more(SIGNALS[:1], SIGNALS))
def test_a_signal_ends_the_epoch_and_loses_nothing(shop: Shop, number: signal.Signals) -> None:
    """Ctrl-C reaches Spark's processes too; SIGTERM, as from a service manager, the driver."""
    where = ("run", "shop.py:counts", *MASTER, "--json")
    process = shop.start(*where, "--set", "epoch.max_rows=100")
    first = json.loads(next_line(process.stdout))
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code, out, err = ended(process)

    assert code == 130
    assert "ending the epoch" in err
    assert "Traceback" not in err
    end = objects(out)[-1]
    assert (end["type"], end["interrupted"], end["ended"]) == ("end", True, False)
    assert 0 < first["rows"] <= end["rows"] < ROWS

    ran = headrace(*where, "--bounded")

    assert (ran.code, ran.err) == (0, "")
    assert objects(ran.out)[-1]["rows"] == ROWS - end["rows"]
    assert shop.counted() == EXPECTED


def test_a_second_signal_exits_at_once(shop: Shop) -> None:
    """Also while a user's function hangs, until its gate gives up."""
    process = shop.start("run", "shop.py:waits", *MASTER)
    until(lambda: list(shop.gates.iterdir()), "a worker at the gate")

    running = next_line(process.stderr)
    assert "waits: running" in running
    found = re.search(r"Spark's UI: (http://127\.0\.0\.1:\d+)$", running)
    assert found is not None, running
    with urllib.request.urlopen(f"{found[1]}/jobs/") as answer:
        assert "waits epoch 1 level " in answer.read().decode()
    process.send_signal(signal.SIGINT)
    assert "ending the epoch" in next_line(process.stderr)
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=30) == 130


def test_a_mistake_in_a_function_names_operator_line_and_message(shop: Shop) -> None:
    ran = headrace("run", "shop.py:shares", *MASTER, "--bounded")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error HR102: operator 'share' raised ZeroDivisionError: ")
    assert "shop.py:13" in ran.err
    assert "Message(customer=7, price=7)" in ran.err
    move, details = ran.err.splitlines()[1:]
    assert move.startswith("next: fix the function")
    assert details == "details: .headrace/logs/headrace.log"
    log = (shop.folder / ".headrace" / "logs" / "headrace.log").read_text()
    assert "in the worker:\nTraceback" in log
