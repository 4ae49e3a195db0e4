"""Coordinators that load or have moved, brokers that are slow, and clocks that are behind."""

from __future__ import annotations

import pytest
from tests.servers.test_kafka_jobs import clicks, counting, feed, running_totals, sent
from tests.support.homes import rows_in
from tests.support.kafka import KafkaServer, Topics
from tests.support.kafka_proxy import (
    ADD_OFFSETS_TO_TXN,
    DESCRIBE_CONFIGS,
    INIT_PRODUCER_ID,
    LOADING,
    NOT_COORDINATOR,
    OFFSET_FETCH,
    UNKNOWN_TOPIC,
    KafkaProxy,
)
from tests.support.processes import SystemClock

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

pytestmark = pytest.mark.usefixtures("kafka")  # which the proxy leads to
HOUR_MS = 3_600_000
COLUMNS = {"id": int, "_timestamp": int}


@pytest.mark.parametrize("error", [LOADING, NOT_COORDINATOR])
def test_a_coordinator_that_loads_or_has_moved_is_asked_again(
    between: KafkaProxy, error: int
) -> None:
    """By a driver that starts, which asks how far the sink is, and by one that sends."""
    topics = Topics(between.address)
    name = f"answers{error}"
    topics.create(f"{name}.in", 2)
    rows = clicks(0, 60)
    source = f"kafka://{between.address}/{name}.in"
    target = f"kafka://{between.address}/{name}.out?key=user&partitions=2"
    with TestDriver(counting(source, target), tasks=2) as driver:
        feed(topics, f"{name}.in", rows[:30])
        for request in (INIT_PRODUCER_ID, OFFSET_FETCH, ADD_OFFSETS_TO_TXN):
            between.answer(request, [error] * 3)
        driver.run()
        assert between.left() == 0
        driver.crash()
        between.answer(OFFSET_FETCH, [error] * 3)
        feed(topics, f"{name}.in", rows[30:])
        driver.run()
        assert between.left() == 0
    assert sent(topics, f"{name}.out") == running_totals(rows)


def test_a_broker_that_has_not_heard_of_a_new_topic_is_asked_again(between: KafkaProxy) -> None:
    topics = Topics(between.address)
    topics.create("heard.in", 2)
    rows = clicks(0, 30)
    feed(topics, "heard.in", rows)
    target = f"kafka://{between.address}/heard.out?key=user&partitions=2"
    between.answer(DESCRIBE_CONFIGS, [UNKNOWN_TOPIC] * 2)
    with TestDriver(counting(f"kafka://{between.address}/heard.in", target), tasks=2) as driver:
        driver.run()
        assert between.left() == 0
    assert sent(topics, "heard.out") == running_totals(rows)


def test_a_slow_broker_makes_a_job_slow_and_no_more(between: KafkaProxy) -> None:
    """Each answer comes late. The driver dies behind a transaction: the next one asks for it."""
    topics = Topics(between.address)
    name, late_s = "slow", 0.05
    topics.create(f"{name}.in", 2)
    rows = clicks(0, 60)
    source = f"kafka://{between.address}/{name}.in"
    target = f"kafka://{between.address}/{name}.out?key=user&partitions=2"
    with TestDriver(counting(source, target), tasks=2) as driver:
        feed(topics, f"{name}.in", rows[:30])
        with between.slow(late_s):
            driver.advance()
        feed(topics, f"{name}.in", rows[30:])
        with between.slow(late_s):
            assert driver.advance_with_crash("sink.committed")
            driver.run()
    assert sent(topics, f"{name}.out") == running_totals(rows)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


def copying(source: str, target: str) -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema=COLUMNS, name="rows").send_to(target, name="out")

    return job


def now_ms() -> int:
    return SystemClock().now_ms()


def test_a_client_whose_clock_is_behind_loses_no_row_and_keeps_its_times(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    """Times that go back by an hour within a partition, before and after the job starts again."""
    topics.create(name)
    began = now_ms()
    times = [began, began - HOUR_MS, began + 1, began - HOUR_MS + 1]
    with TestDriver(copying(kafka.url(name), "copied")) as driver:
        for number, at in enumerate(times):
            topics.send(name, [{"id": number}], time=at)
            driver.run()
            driver.crash()
        found = [(row["id"], row["_timestamp"]) for row in rows_in(driver.bus, "copied")]
    assert sorted(found) == list(enumerate(times))


def test_where_brokers_give_times_the_clock_of_a_client_does_not_count(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    """In the topic that is read, and in the one that is written."""
    for topic in (name, f"{name}.out"):
        topics.create(topic, message_timestamp_type="LogAppendTime")
    began = now_ms()
    topics.send(name, [{"id": number} for number in range(3)], time=began - HOUR_MS)
    with TestDriver(copying(kafka.url(name), kafka.url(f"{name}.out"))) as driver:
        driver.run()
    for topic in (name, f"{name}.out"):
        found = topics.read(topic)
        assert len(found) == 3
        assert all(began <= one.time <= now_ms() for one in found if one.time is not None)
        assert all(one.time is not None for one in found)


def test_times_that_a_topic_refuses_are_an_error_and_sent_once_it_takes_them(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    """The epoch is committed by then, so it waits until somebody changes the topic."""
    topics.create(name)
    topics.create(f"{name}.out", message_timestamp_before_max_ms="60000")
    topics.send(name, [{"id": 1}], time=now_ms() - HOUR_MS)
    with TestDriver(copying(kafka.url(name), kafka.url(f"{name}.out"))) as driver:
        with pytest.raises(InvalidInputError, match=r"refuses what is sent: .*imestamp"):
            driver.run()
        driver.crash()
        topics.alter(f"{name}.out", message_timestamp_before_max_ms=str(2 * HOUR_MS))
        driver.run()
    assert topics.rows(f"{name}.out") == [{"id": 1}]
