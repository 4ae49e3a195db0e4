"""What is promised of rows: at least once where that is chosen, and offsets that have expired."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.servers.test_kafka_jobs import clicks, counting, feed, running_totals, sent
from tests.support.homes import rows_in
from tests.support.kafka import KafkaServer, Topics

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


def copying(source: str, target: Any, columns: Any = None) -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema=columns or {"id": int}, name="rows").send_to(target, name="out")

    return job


def test_at_least_once_loses_nothing_and_writes_nothing_twice_to_storage(
    kafka: KafkaServer, topics: Topics, name: str, tmp_path: Any
) -> None:
    """Whoever dies after slots have sent: the epoch is run again, and its rows are there again."""
    topics.create(f"{name}.in", 2)
    target = kafka.url(f"{name}.out", key="user", partitions="3", delivery="at_least_once")
    job = counting(kafka.url(f"{name}.in"), target)
    rows = clicks(0, 90)
    home = tmp_path / "home"
    with TestDriver(job, tasks=2, home=home, memory_bus=False) as driver:
        feed(topics, f"{name}.in", rows[:30])
        driver.run()
        assert sent(topics, f"{name}.out") == running_totals(rows[:30])
        feed(topics, f"{name}.in", rows[30:60])
        assert driver.advance_with_crash("epoch.before_commit", 1)
        driver.run()
        feed(topics, f"{name}.in", rows[60:])
        driver.run()
    found = sent(topics, f"{name}.out")
    assert set(found) == set(running_totals(rows))
    assert len(found) == 90 + 30, "one epoch was sent twice"
    assert not list(home.rglob("*.messages"))


def test_at_least_once_refuses_what_is_too_large_and_another_promise(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.send(name, [{"id": 1}])
    direct = kafka.url(f"{name}.out", delivery="at_least_once")
    with TestDriver(copying(kafka.url(name), direct)) as driver:
        driver.run()
        driver.crash()
        driver.job = copying(kafka.url(name), kafka.url(f"{name}.out"))
        with pytest.raises(InvalidInputError, match="at least once"):
            driver.run()
    assert topics.rows(f"{name}.out") == [{"id": 1}]
    topics.create(f"{name}.small", max_message_bytes="1512")
    small = kafka.url(f"{name}.small", delivery="at_least_once", message__max__bytes="1000")
    topics.send(name, [{"id": 2}], key=b"k" * 1200)
    with (
        TestDriver(copying(kafka.url(name), small, {"id": int, "_key": bytes})) as driver,
        pytest.raises(InvalidInputError, match=r"more than message\.max\.bytes"),
    ):
        driver.run()


@pytest.mark.parametrize(("policy", "read"), [("earliest", [0, 4, 5]), ("latest", [0, 6])])
def test_a_job_jumps_over_what_has_expired_where_that_is_declared(
    kafka: KafkaServer, topics: Topics, name: str, policy: str, read: list[int]
) -> None:
    """The jump is durable, counted and told; with no declaration it is an error."""
    topics.create(name)
    topics.send(name, [{"id": 0}])
    told: list[str] = []
    job = copying(kafka.url(name, offsets_expired=policy), "copied")
    with TestDriver(job) as driver:
        driver.run()
        topics.send(name, [{"id": n} for n in range(1, 6)])
        topics.drop_before(name, 0, 4)
        driver.coordinator.notify = told.append
        driver.run()
        driver.crash()
        topics.send(name, [{"id": 6}])
        driver.run()
        found = [row["id"] for row in rows_in(driver.bus, "copied")]
        [counts] = [
            one.counts
            for one in driver.coordinator.state.operators.values()
            if one.counts.get("expired")
        ]
    wanted = read if policy == "latest" else [*read, 6]
    assert found == wanted
    gone = 3 if policy == "earliest" else 5
    assert counts["expired"] == gone
    [line] = told
    assert re.search(rf"has no offset 1 of partition 0 .* {gone} offsets are not read", line)
