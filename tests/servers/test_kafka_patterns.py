"""Patterns of topics as one input, and the columns that every message has, on a real broker."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.homes import rows_in
from tests.support.kafka import KafkaServer, Topics

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"p{abs(hash(request.node.nodeid))}"


def copying(source: str, target: Any = "copied") -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema={"id": int}, name="rows").send_to(target, name="out")

    return job


def copied(driver: TestDriver) -> list[int]:
    return sorted(row["id"] for row in rows_in(driver.bus, "copied"))


def make(topics: Topics, name: str, *ids: int, partitions: int = 1) -> None:
    topics.create(name, partitions)
    topics.send(name, [{"id": one} for one in ids], partition=partitions - 1)


def later(driver: TestDriver) -> None:
    """Let the time pass after which a job looks again which topics there are."""
    driver.clock.advance(60_000)


def test_topics_that_match_are_one_input_also_those_that_come(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    """While the job runs, and between its runs; with partitions that are added to any."""
    make(topics, f"{name}-a", 1)
    make(topics, f"{name}-b", 2, partitions=2)
    make(topics, f"other-{name}", 100)
    with TestDriver(copying(kafka.url(f"{name}-*")), tasks=2) as driver:
        driver.run()
        assert copied(driver) == [1, 2]
        make(topics, f"{name}-c", 3, 4, partitions=3)
        topics.widen(f"{name}-a", 2)
        topics.send(f"{name}-a", [{"id": 5}], partition=1)
        later(driver)
        driver.run()
        assert copied(driver) == [1, 2, 3, 4, 5]
        driver.crash()
        make(topics, f"{name}-d", 6)
        topics.send(f"{name}-c", [{"id": 7}])
        driver.run()
        assert copied(driver) == [1, 2, 3, 4, 5, 6, 7]
        read = driver.coordinator.input_streams()
        assert sorted(set(read.values())) == [f"{name}-{one}" for one in "abcd"]


@pytest.mark.parametrize("point", ["streams.followed", "epoch.planned", "commit.published"])
def test_a_topic_that_came_is_read_once_however_the_driver_dies(
    kafka: KafkaServer, topics: Topics, name: str, point: str
) -> None:
    make(topics, f"{name}-a", 1)
    with TestDriver(copying(kafka.url(f"{name}-*")), memory_bus=False) as driver:
        driver.run()
        make(topics, f"{name}-b", 2, 3)
        later(driver)
        assert driver.advance_with_crash(point)
        driver.run()
        assert copied(driver) == [1, 2, 3]


def test_a_topic_that_is_gone_is_no_longer_read(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    make(topics, f"{name}-a", 1)
    make(topics, f"{name}-b", 2)
    with TestDriver(copying(kafka.url(f"{name}-*"))) as driver:
        driver.run()
        topics.delete(f"{name}-b")
        topics.send(f"{name}-a", [{"id": 3}])
        driver.crash()
        driver.run()
        assert copied(driver) == [1, 2, 3]


def test_settings_put_topics_in_the_place_of_a_pattern_of_streams(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    make(topics, f"{name}-a", 1)
    inputs = {"sales-*": {"address": kafka.url(f"{name}-*")}}
    with TestDriver(copying("sales-*"), inputs=inputs) as driver:
        driver.create("sales-local", {"id": pa.int64()})
        driver.feed("sales-local", [{"id": 9}])
        driver.run()
        assert copied(driver) == [1]


def test_a_pattern_that_nothing_matches_is_refused(kafka: KafkaServer, name: str) -> None:
    with (
        TestDriver(copying(kafka.url(f"{name}-*"))) as driver,
        pytest.raises(InvalidInputError, match=rf"nothing matches kafka://.*{name}-\*"),
    ):
        driver.run()


def test_a_job_does_not_read_what_it_sends(kafka: KafkaServer, topics: Topics, name: str) -> None:
    make(topics, f"{name}-a", 1)
    job = copying(kafka.url(f"{name}-*"), kafka.url(f"{name}-out"))
    with (
        TestDriver(job) as driver,
        pytest.raises(InvalidInputError, match="it would read what it sends without end"),
    ):
        driver.run()


def test_timestamps_are_event_times_and_every_message_has_its_columns(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    for minute in (0, 0, 1, 2):
        headers = [("minute", b"%d" % minute)]
        topics.send(name, [{"id": minute}], key=b"k", time=60_000 * minute + 7, headers=headers)
    common = pa.schema(
        [
            ("id", pa.int64()),
            ("_key", pa.binary()),
            ("_timestamp", pa.int64()),
            ("_headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
        ]
    )

    @hr.job("counting")
    def counting(g: hr.Graph) -> None:
        rows = g.input(kafka.url(name), schema=common)
        rows.send_to("seen")
        by_key = rows.partition_by("_key")
        by_key.window(hr.tumbling("1m"), n=hr.agg.count()).send_to("counts")

    with TestDriver(counting) as driver:
        driver.run()
        seen = rows_in(driver.bus, "seen")
        driver.finish()
        assert [row["n"] for row in rows_in(driver.bus, "counts")] == [2, 1, 1]
    assert [
        (row["_key"], row["_timestamp"], row["_headers"][0]["value"], row["_offset"])
        for row in seen
    ] == [
        (b"k", 60_000 * minute + 7, b"%d" % minute, offset)
        for offset, minute in enumerate((0, 0, 1, 2))
    ]
