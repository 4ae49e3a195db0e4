"""Jobs from topic to topic on a real broker: each message counts once, whichever process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.support.changes import begin_from, save
from tests.support.kafka import KafkaServer, Topics
from tests.support.processes import MODULES
from tests.support.runs import World

import headrace as hr
from headrace import Job
from headrace.testing import TestDriver

COLUMNS = {"user": str, "n": int}
POINTS = ["epoch.before_commit", "commit.published", "sink.sent", "sink.committed"]


class Counting:
    def process(self, message: Any, context: Any) -> None:
        counts = context.store("counts")
        total = counts.get(message.user, 0) + message.n
        counts.put(message.user, total)
        context.emit({"user": message.user, "total": total})


def counting(source: str, target: str, output: str = "totals", via: str = "exchange") -> Job:
    @hr.job("counting")
    def job(g: hr.Graph) -> None:
        keyed = g.input(source, schema=COLUMNS, name="clicks").partition_by("user", via=via)
        totals = keyed.process(Counting, {"counts": int}, returns={"user": str, "total": int})
        totals.send_to(g.output(target), name=output)

    return job


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [{"user": f"u{n % 7}", "n": n, "more": [n]} for n in range(first, first + count)]


def running_totals(rows: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """What the job makes of rows that are all read in one order for each user."""
    seen: Counter[str] = Counter()
    made = []
    for row in rows:
        seen[row["user"]] += row["n"]
        made.append((row["user"], seen[row["user"]]))
    return sorted(made)


def sent(topics: Topics, topic: str) -> list[tuple[str, int]]:
    return sorted((row["user"], row["total"]) for row in topics.rows(topic))


@pytest.fixture
def pair(kafka: KafkaServer, topics: Topics, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The names of an input and an output of this test."""
    name = f"t{abs(hash(request.node.nodeid))}"
    topics.create(f"{name}.in", 2)
    return f"{name}.in", f"{name}.out"


def feed(topics: Topics, topic: str, rows: list[dict[str, Any]]) -> None:
    for partition in (0, 1):
        mine = [row for row in rows if int(row["user"][1:]) % 2 == partition]
        topics.send(topic, mine, partition=partition)


def job_of(kafka: KafkaServer, pair: tuple[str, str]) -> Job:
    return counting(kafka.url(pair[0]), kafka.url(pair[1], key="user", partitions="3"))


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str], point: str
) -> None:
    rows = clicks(0, 90)
    with TestDriver(job_of(kafka, pair), tasks=2) as driver:
        for part, nth in enumerate((1, 2, 0)):
            feed(topics, pair[0], rows[30 * part : 30 * part + 30])
            assert not nth or driver.advance_with_crash(point, nth) or nth == 2
        driver.run()
    assert sent(topics, pair[1]) == running_totals(rows)


_DRIVER = """
import os, signal, sys
from pathlib import Path
from tests.servers.test_kafka_jobs import counting, driver_of
from headrace.faults import injected

source, target, home, point, place = sys.argv[1:]

def hook(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

with injected(hook):
    driver_of(source, target, Path(home), place).run()
"""


def driver_of(source: str, target: str, home: Path, place: str) -> TestDriver:
    """Return a driver of the job, whose addresses are in its code or in the settings."""
    if place == "code":
        return TestDriver(counting(source, target), tasks=2, home=home, memory_bus=False)
    addresses: dict[str, Any] = {
        "inputs": {"clicks": {"address": source}},
        "outputs": {"totals": {"address": target}},
    }
    job = counting("clicks", "totals")
    return TestDriver(job, tasks=2, home=home, memory_bus=False, **addresses)


def in_a_process(
    kafka: KafkaServer, pair: tuple[str, str], home: Path, point: str, place: str = "code"
) -> int:
    urls = (kafka.url(pair[0]), kafka.url(pair[1], key="user", partitions="3"))
    words = [sys.executable, "-c", _DRIVER, *urls, str(home), point, place]
    environment = {**os.environ, "PYTHONPATH": MODULES}
    return subprocess.run(words, env=environment, timeout=120, check=False).returncode


def test_a_killed_driver_is_followed_by_one_that_sends_the_rest_once(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    """kill -9 with the epoch's manifest there, and with its messages in an open transaction.

    Where the addresses are, in the code or in the settings, changes nothing of the job.
    """
    rows = clicks(0, 120)
    feed(topics, pair[0], rows[:40])
    assert in_a_process(kafka, pair, tmp_path, "commit.published") == -signal.SIGKILL
    feed(topics, pair[0], rows[40:80])
    assert in_a_process(kafka, pair, tmp_path, "sink.sent", "settings") == -signal.SIGKILL
    feed(topics, pair[0], rows[80:])
    urls = (kafka.url(pair[0]), kafka.url(pair[1], key="user", partitions="3"))
    with driver_of(*urls, tmp_path, "settings") as driver:
        driver.run()
    assert sent(topics, pair[1]) == running_totals(rows)


def test_outputs_by_settings_are_sent_once_however_the_driver_dies(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str]
) -> None:
    """The code names streams only; each of them is a topic by the settings."""
    rows = clicks(0, 90)
    addresses: dict[str, Any] = {
        "inputs": {"clicks": {"address": kafka.url(pair[0])}},
        "outputs": {"totals": {"address": kafka.url(pair[1], key="user", partitions="3")}},
    }
    with TestDriver(counting("clicks", "totals"), tasks=2, **addresses) as driver:
        for part, point in enumerate(("commit.published", "sink.sent", "sink.committed")):
            feed(topics, pair[0], rows[30 * part : 30 * part + 30])
            driver.advance_with_crash(point)
        driver.run()
        assert "totals" not in driver.bus.names()
    assert sent(topics, pair[1]) == running_totals(rows)


def test_a_savepoint_continues_in_its_topics_under_another_name(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    """The job that starts sends to another topic; what both made is what one would have."""
    rows, other = clicks(0, 90), f"{pair[1]}.2"
    with TestDriver(job_of(kafka, pair), tasks=2, home=tmp_path, memory_bus=False) as driver:
        feed(topics, pair[0], rows[:50])
        driver.run()
        save(driver, "s")
        feed(topics, pair[0], rows[50:])
        target = kafka.url(other, key="user", partitions="3")
        driver.job = counting(kafka.url(pair[0]), target, "again")
        begin_from(driver)
        driver.run()
        assert driver.coordinator.state.job == "other"
    assert sorted(sent(topics, pair[1]) + sent(topics, other)) == running_totals(rows)


def test_a_savepoint_of_a_topic_begins_no_job_that_reads_another(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    second = f"{pair[0]}.2"
    topics.create(second, 2)
    feed(topics, pair[0], clicks(0, 50))
    feed(topics, second, clicks(0, 50))
    with TestDriver(job_of(kafka, pair), tasks=2, home=tmp_path, memory_bus=False) as driver:
        driver.run()
        save(driver, "s")
        driver.job = counting(kafka.url(second), kafka.url(pair[1], key="user"))
        with pytest.raises(hr.InvalidInputError, match=r"'clicks' in Kafka topic .* found Kafka"):
            begin_from(driver)


def test_a_bounded_run_in_processes_of_its_own_ends_where_the_topic_does(
    kafka: KafkaServer, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    """Slots open the topic by what the driver left for them; settings name another input."""
    rows = clicks(0, 90)
    feed(topics, pair[0], rows)
    sets = ("job.bounded=true", "control.enabled=false", "epoch.max_rows=40")
    address = f"inputs.clicks.address={kafka.url(pair[0])}"
    world = World(tmp_path / "home")
    target = kafka.url(pair[1], key="user", partitions="3")
    result = hr.run(counting("clicks", target), world.settings(*sets, address))
    assert result.state.ended
    assert result.epochs > 2
    assert sent(topics, pair[1]) == running_totals(rows)
