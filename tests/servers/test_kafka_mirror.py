"""``headrace bus mirror`` to and from topics of a real broker, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import done, headrace
from tests.support.homes import read_stream
from tests.support.kafka import KafkaServer, Topics
from tests.support.processes import MODULES

import headrace as hr

_MIRROR = """
import os, signal, sys
from headrace.cli.main import main
from headrace.faults import injected

point, nth = sys.argv[1], int(sys.argv[2])
passed = 0

def hook(name):
    global passed
    passed += name == point
    if passed == nth:
        os.kill(os.getpid(), signal.SIGKILL)

sys.argv = ["headrace", *sys.argv[3:]]
with injected(hook, (point,)):
    main()
"""


def killed(point: str, nth: int, *words: str) -> None:
    """Run a command in a process of its own, which is killed at a point."""
    command = [sys.executable, "-c", _MIRROR, point, str(nth), *words]
    environment = {**os.environ, "PYTHONPATH": MODULES}
    ran = subprocess.run(command, env=environment, timeout=120, check=False)
    assert ran.returncode == -signal.SIGKILL


def mirror(*words: str) -> None:
    ran = headrace(*words)
    assert ran.code == 0, ran.err


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return ["--until-end", "--set", "epoch.max_rows=20", "--home", str(tmp_path / "home")]


def test_a_killed_mirror_of_a_topic_is_continued_once(
    kafka: KafkaServer, topics: Topics, words: list[str], tmp_path: Path
) -> None:
    topics.create("mirrored", 2)
    for partition in (0, 1):
        rows = [{"id": n} for n in range(40) if n % 2 == partition]
        topics.send("mirrored", rows, partition=partition)
    order = ["bus", "mirror", kafka.url("mirrored"), "mirrored", "--schema", "id:int64", *words]
    killed("commit.published", 2, *order)
    topics.send("mirrored", [{"id": n} for n in range(40, 50)])
    mirror(*order)
    found = read_stream(tmp_path / "home", "mirrored")
    assert sorted(row["id"] for row in found) == list(range(50))


def test_a_killed_mirror_of_a_stream_is_continued_once(
    kafka: KafkaServer, topics: Topics, words: list[str]
) -> None:
    home = words[-2:]
    done("bus", "create", "numbers", "--schema", "id:int64", *home)
    lines = "".join(f'{{"id": {n}}}\n' for n in range(50))
    done("bus", "append", "numbers", "-", *home, stdin=lines)
    order = ["bus", "mirror", "numbers", kafka.url("numbers", key="id", partitions="2"), *words]
    for nth in (1, 2):
        killed("sink.sent", nth, *order)
    mirror(*order)
    assert sorted(row["id"] for row in topics.rows("numbers")) == list(range(50))


def test_bytes_come_through_a_stream_as_they_were(
    kafka: KafkaServer, topics: Topics, words: list[str]
) -> None:
    topics.create("first.bytes")
    headers = [("trace", b"\xff")]
    topics.send("first.bytes", [b"\x00one"], key=b"k", time=1_000, headers=headers)
    topics.send("first.bytes", [None], key=b"gone", time=2_000)
    mirror("bus", "mirror", kafka.url("first.bytes"), "kept", *words)
    mirror("bus", "mirror", "kept", kafka.url("last.bytes", partitions="1"), *words)
    sent, came = topics.read("first.bytes"), topics.read("last.bytes")
    assert [one[2:] for one in came] == [one[2:] for one in sent]


def test_a_topic_becomes_a_broadcast_store_by_a_mirror(
    kafka: KafkaServer, topics: Topics, words: list[str], tmp_path: Path
) -> None:
    """Of the last message of each key, and none of a key whose last one is a tombstone."""
    topics.create("rates", 2)
    for partition, (code, rates) in enumerate({"EUR": (1.0, 2.0), "XXX": (3.0, None)}.items()):
        values = [None if one is None else {"code": code, "rate": one} for one in rates]
        topics.send("rates", values, partition=partition, key=code.encode())
    home = str(tmp_path / "home")
    done(
        "bus",
        "create",
        "rates",
        "--schema",
        "code:string,rate:float64",
        "--key",
        "code",
        "--compact",
        "--home",
        home,
    )
    mirror("bus", "mirror", kafka.url("rates", key="code"), "rates", *words)
    topics.create("paid")
    topics.send("paid", [{"id": 1, "code": "EUR"}, {"id": 2, "code": "XXX"}])

    @hr.job("priced")
    def priced(g: hr.Graph) -> None:
        paid = g.input(kafka.url("paid"), schema={"id": int, "code": str})
        rates = hr.broadcast("rates", stream="rates", key="code")
        paid.join_table(rates, columns=["rate"]).send_to(kafka.url("priced", key="id"))

    hr.run(priced, {"job.bounded": True, "control.enabled": False}, home=home)
    found = {row["id"]: row["rate"] for row in topics.rows("priced")}
    assert found == {1: 2.0, 2: None}
