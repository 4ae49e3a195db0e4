"""Two brokers, one of which is lost; leaders and coordinators move; all brokers stand still."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.servers.test_kafka_jobs import clicks, counting, feed, running_totals, sent
from tests.support.kafka import CLIENTS, KafkaServer, Topics
from tests.support.processes import SystemClock, until
from tests.support.runs import JobControl, RetryPolicy, drive_part
from tests.support.soak import more

from headrace.bus import open_bus
from headrace.testing import TestDriver

ALL = 3
"""Brokers of the soak suite, which loses two of them in turn."""


def settings_of(count: int) -> dict[str, str]:
    """Return the settings of brokers of which each has all rows, and one can be away."""
    return {
        "offsets.topic.replication.factor": f"{count}",
        "transaction.state.log.replication.factor": f"{count}",
        "transaction.state.log.min.isr": f"{count - 1}",
        "default.replication.factor": f"{count}",
        "min.insync.replicas": f"{count - 1}",
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
    }


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[list[KafkaServer]]:
    """The first is the controller, and is never lost."""
    folder = tmp_path_factory.mktemp("brokers")
    mine = (item for item in request.session.items if item.path == request.path)
    count = ALL if any(item.get_closest_marker("soak") for item in mine) else ALL - 1
    given = settings_of(count)
    with KafkaServer(folder / "1", given) as first:
        others: list[KafkaServer] = []
        try:
            for number in range(2, count + 1):
                own = {**given, "node.id": f"{number}"}
                others.append(KafkaServer(folder / f"{number}", own, joins=first))
            yield [first, *others]
        finally:
            CLIENTS.close()
            for one in others:
                one.close()


def url(brokers: list[KafkaServer], topic: str, **options: str) -> str:
    hosts = ",".join(one.address for one in brokers)
    return brokers[0].url(topic, **options).replace(brokers[0].address, hosts, 1)


@pytest.mark.parametrize("lost", more([[1]], [[1], [2, 1]]), ids=len)
def test_a_lost_broker_and_leaders_that_move_lose_and_double_nothing(
    brokers: list[KafkaServer], tmp_path: Path, lost: list[int]
) -> None:
    """One after the other is lost and comes back; whoever leads or coordinates moves.

    There is a topic between the parts of the job, too.
    """
    topics = Topics(brokers[0].address)
    until(lambda: topics.brokers() == len(brokers), "all brokers")
    source, between, target = (f"{what}-{len(lost)}" for what in ("in", "between", "out"))
    topics.create(source, 2, copies=len(brokers))
    rows = clicks(0, 30 * len(lost) + 30)
    feed(topics, source, rows[:30])
    options = {"key": "user", "partitions": "3", "socket__timeout__ms": "8000"}
    inputs = url(brokers, source, socket__timeout__ms="8000")
    via = url(brokers, between, socket__timeout__ms="8000")
    job = counting(inputs, url(brokers, target, **options), via=via)
    leaders = []

    def led() -> set[tuple[str, int, int]]:
        return topics.leaders(source) | topics.leaders(between) | topics.leaders(target)

    with TestDriver(job, tasks=2, home=tmp_path / "home", memory_bus=False) as driver:
        driver.run()
        for part, number in enumerate(lost, 1):
            leaders.append(led())
            brokers[number].kill()
            feed(topics, source, rows[30 * part : 30 * part + 30])
            retry = RetryPolicy(SystemClock(), JobControl().stop, 120.0, print)
            for _ in driver.parts:  # one that failed is passed over once
                retry.retry_while_blocked(driver.run)
            leaders.append(led())
            brokers[number].start()
            for topic in (source, between, target):
                until(partial(topics.in_sync, topic, len(brokers)), "the broker that came back")
    assert sent(topics, target) == running_totals(rows)
    assert any(before != after for before, after in zip(leaders[::2], leaders[1::2], strict=True))


def test_brokers_that_stand_still_hold_a_job_up_and_no_more(
    brokers: list[KafkaServer], tmp_path: Path
) -> None:
    topics = Topics(brokers[0].address)
    topics.create("slow.in", 2, copies=len(brokers))
    rows = clicks(0, 60)
    feed(topics, "slow.in", rows[:30])
    target = url(brokers, "slow.out", key="user", socket__timeout__ms="2000")
    job = counting(url(brokers, "slow.in", socket__timeout__ms="2000"), target)
    told: list[str] = []

    def notify(line: str) -> None:
        told.append(line)
        for one in brokers:
            one.resume()

    with TestDriver(job, tasks=2, home=tmp_path / "home", memory_bus=False) as driver:
        retry = RetryPolicy(SystemClock(), JobControl().stop, 120.0, notify)
        retry.retry_while_blocked(driver.run)
        told.clear()
        feed(topics, "slow.in", rows[30:])
        driver.coordinator.end_at_present()
        for one in brokers:
            one.pause()
        with open_bus(str(driver.settings.bus_dir)) as bus:
            drive_part(driver.coordinator, bus, JobControl(), print, retry=retry)
        assert driver.coordinator.has_ended
    assert sent(topics, "slow.out") == running_totals(rows)
    assert any("does not answer" in line for line in told)
