"""``headrace run`` in a process of its own, on real Spark: what it prints and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.clock import Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.testing.processes import end_group, wait_until

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
ROWS, CUSTOMERS = 3000, 50
JOBS = """
from pathlib import Path

import headrace as hr
from tests.spark.jobs import pass_gate

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

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a home, the stream ``orders``, and three jobs in a file."""
    schema = pa.schema([("customer", pa.int64()), ("price", pa.int64())])
    with open_bus(tmp_path / ".headrace" / "bus") as bus:
        stream = bus.create(StreamSpec("orders", 2, schema))
        for partition in range(2):
            numbers = range(partition, ROWS, 2)
            rows = {"customer": [n % CUSTOMERS for n in numbers], "price": [n % 8 for n in numbers]}
            stream.append(partition, pa.RecordBatch.from_pydict(rows, schema=schema))
    (tmp_path / "gates").mkdir()
    (tmp_path / "shop.py").write_text(JOBS.replace("GATES", str(tmp_path / "gates")))
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts ``headrace`` in a process group of its own."""
    begun: list[subprocess.Popen[str]] = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

    def started(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield started
    for process in begun:
        end_group(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def run(start: Start, job: str, *words: str) -> subprocess.Popen[str]:
    return start("run", f"shop.py:{job}", "--master", "local[2]", *words)


def ended(process: subprocess.Popen[str], within_s: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def counted(folder: Path) -> Counter[tuple[int, int]]:
    """What the job ``counts`` has sent, as (customer, n)."""
    with open_bus(folder / ".headrace" / "bus") as bus:
        stream = bus.stream("counts")
        return Counter(
            (row["customer"], row["n"])
            for partition in range(stream.spec.partitions)
            for found in stream.read(partition, stream.begins()[partition])
            for row in found.batch.to_pylist()
        )


EXPECTED = Counter((c, n + 1) for c in range(CUSTOMERS) for n in range(ROWS // CUSTOMERS))


def next_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def test_a_bounded_run_in_json(start: Start, folder: Path) -> None:
    code, out, err = ended(run(start, "counts", "--bounded", "--json"))

    assert (code, err) == (0, "")
    *epochs, end = objects(out)
    assert {"epoch"} == {line["type"] for line in epochs}
    assert sum(line["rows"] for line in epochs) == ROWS
    assert (end["type"], end["rows"], end["output_rows"]) == ("end", ROWS, ROWS)
    assert (end["ended"], end["interrupted"]) == (True, False)
    assert counted(folder) == EXPECTED

    code, out, err = ended(run(start, "counts"))

    assert (code, err) == (0, "")
    assert out.startswith("counts: its run had ended in epoch ")
    assert counted(folder) == EXPECTED

    code, out, err = ended(run(start, "counts", "--bounded", "--replace"))

    assert code == 0
    assert "counts: run 2 begins, without state" in err
    assert f"counts: {ROWS:,} rows in " in out
    assert counted(folder) == EXPECTED


@pytest.mark.parametrize(("number", "loop"), [(signal.SIGINT, "direct"), (signal.SIGTERM, "query")])
def test_a_signal_ends_the_epoch_and_loses_nothing(
    start: Start, folder: Path, number: signal.Signals, loop: str
) -> None:
    """Ctrl-C reaches Spark's processes too; SIGTERM, as from a service manager, the driver."""
    words = ("--loop", loop, "--set", "epoch.max_rows=100")
    process = run(start, "counts", "--json", *words)
    first = json.loads(next_line(process.stdout))
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code, out, err = ended(process, within_s=10)

    assert code == 130
    assert "ending the epoch" in err
    assert "Traceback" not in err
    end = objects(out)[-1]
    assert (end["type"], end["interrupted"], end["ended"]) == ("end", True, False)
    assert 0 < first["rows"] <= end["rows"] < ROWS

    code, out, err = ended(run(start, "counts", "--bounded", "--loop", loop, "--json"))

    assert (code, err) == (0, "")
    assert objects(out)[-1]["rows"] == ROWS - end["rows"]
    assert counted(folder) == EXPECTED


def test_a_second_signal_exits_at_once(start: Start, folder: Path) -> None:
    """Also while a user's function hangs."""
    process = run(start, "waits")
    clock = SystemClock()
    at_gate = folder / "gates"
    wait_until(lambda: list(at_gate.iterdir()), Deadline(clock, 90), "a worker at the gate")

    process.send_signal(signal.SIGINT)
    assert "ending the epoch" in next_line(process.stderr)
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=5) == 130


def test_a_mistake_in_a_function_names_operator_line_and_message(
    start: Start, folder: Path
) -> None:
    code, out, err = ended(run(start, "shares", "--bounded"))

    assert (code, out) == (1, "")
    assert err.startswith("error HR102: operator 'share' raised ZeroDivisionError: ")
    assert "shop.py:13" in err
    assert "Message(customer=7, price=7)" in err
    move, details = err.splitlines()[1:]
    assert move.startswith("next: mend the function")
    assert details == "details: .headrace/logs/headrace.log"
    log = (folder / ".headrace" / "logs" / "headrace.log").read_text()
    assert "in the worker:\nTraceback" in log


def test_a_wrong_job_is_told_before_spark_starts(start: Start, folder: Path) -> None:
    code, out, err = ended(run(start, "count", "--bounded"))

    assert (code, out) == (1, "")
    assert "shop.py has no job 'count'; did you mean shop.py:counts?" in err
    assert not (folder / ".headrace" / "jobs").exists()


def test_a_second_driver_is_refused(start: Start) -> None:
    process = run(start, "counts", "--json")
    next_line(process.stdout)

    code, out, err = ended(run(start, "counts"))

    assert (code, out) == (4, "")
    assert f"is already driven by process {process.pid}" in err


def test_a_running_job_is_watched_paused_and_resumed(start: Start, folder: Path) -> None:
    def has(rows: int) -> bool:
        try:
            return sum(counted(folder).values()) == rows
        except InvalidInputError:  # there is no such stream yet
            return False

    def told() -> list[str]:
        (alerts,) = objects(ended(start("alerts", "ls", "counts", "--json"))[1])
        return [event["state"] for event in alerts["events"]]

    rule = 'alerts.rules=[{"name": "behind", "kind": "lag", "above": 0}]'
    running = run(start, "counts", "--json", "--set", rule)
    wait_until(lambda: has(ROWS), Deadline(SystemClock(), 120), "the first rows")

    (found,) = objects(ended(start("jobs", "top", "counts", "--json"))[1])
    assert (found["status"], found["counts"]["in"]) == ("running", ROWS)
    assert found["epochs"][-1]["steps_ms"]["level 0"] > 0
    for words in (("ls",), ("describe", "counts"), ("why", "counts"), ("history", "counts")):
        (answer,) = objects(ended(start("jobs", *words, "--json"))[1])
        assert answer["live"] is True, words
    code, out, _ = ended(start("jobs", "pause", "counts"))
    assert (code, out) == (0, "counts is paused\n")
    with open_bus(folder / ".headrace" / "bus") as bus:
        rows = pa.RecordBatch.from_pydict(
            {"customer": [1], "price": [1]}, schema=bus.stream("orders").spec.schema
        )
        bus.stream("orders").append(0, rows)
    code, out, _ = ended(start("jobs", "top", "counts"))
    assert (code, out.splitlines()[0][:17]) == (0, "counts is paused:")
    assert has(ROWS)
    wait_until(lambda: told()[-1:] == ["firing"], Deadline(SystemClock(), 60), "the alert")

    assert ended(start("jobs", "resume", "counts"))[1] == "counts is running\n"
    wait_until(lambda: has(ROWS + 1), Deadline(SystemClock(), 60), "the last row")
    assert ended(start("jobs", "stop", "counts"))[0] == 0
    assert ended(running)[0] == 130
    code, _, err = ended(start("jobs", "top", "counts"))
    assert code == 1
    assert "no driver of job 'counts' answers" in err
    assert told()[-1] == "over"  # it looks once more when it ends
    (heavy,) = objects(ended(start("jobs", "hot-keys", "counts", "--json"))[1])
    (keys,) = heavy["hot_keys"]
    assert (keys["columns"], len(keys["keys"])) == (["customer"], 10)
    assert 0 < keys["rows"] <= ROWS + 1  # what is older counts less


def test_another_job_goes_on_from_a_savepoint(start: Start, folder: Path) -> None:
    """Of the running job, and of the one that it was stopped with: the counts go on."""

    def has(rows: int) -> bool:
        try:
            return sum(counted(folder).values()) == rows
        except InvalidInputError:  # there is no such stream yet
            return False

    running = run(start, "counts", "--json")
    wait_until(lambda: has(ROWS), Deadline(SystemClock(), 120), "the first rows")
    (made,) = objects(ended(start("jobs", "savepoint", "counts", "--name", "live", "--json"))[1])
    assert (made["live"], made["epoch"] >= 1) == (True, True)
    (stopped,) = objects(ended(start("jobs", "stop", "counts", "--savepoint", "--json"))[1])
    assert ended(running)[0] == 130
    assert (stopped["by"], stopped["goes_on_in"]) == ("api", [])
    assert stopped["savepoint"]["epoch"] == stopped["epoch"]
    schema = pa.schema([("customer", pa.int64()), ("price", pa.int64())])
    with open_bus(folder / ".headrace" / "bus") as bus:
        row = pa.RecordBatch.from_pydict({"customer": [1], "price": [1]}, schema=schema)
        bus.stream("orders").append(0, row)

    for name, word in (("one", "live"), ("two", stopped["savepoint"]["path"])):
        words = ("--as", name, "--from-savepoint", word, "--bounded")
        code, out, err = ended(run(start, "counts", *words))
        assert (code, name in out, f"job {name} begins with epoch" in err) == (0, True, True)

    assert counted(folder) - EXPECTED == Counter({(1, ROWS // CUSTOMERS + 1): 2})
