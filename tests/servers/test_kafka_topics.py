"""What only topics have: keys, headers, tombstones, bad bytes; and what happens to brokers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.servers.test_kafka_jobs import clicks, counting, feed, running_totals, sent
from tests.support.homes import rows_in
from tests.support.kafka import KafkaServer, Topics, connector
from tests.support.processes import SOON_S, SystemClock, until
from tests.support.runs import JobControl, RetryPolicy, drive_part

import headrace as hr
from headrace import Job
from headrace.bus import LogAwayError, OffsetGoneError, StreamReplacedError, open_bus
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

RAW = "raw"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.nodeid))}"


def copying(source: str, target: Any, columns: dict[str, Any] | None = None, **more: Any) -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input(source, schema=columns, name="rows", **more).send_to(target, name="out")

    return job


def test_bytes_keys_times_and_headers_pass_through(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    headers = [("trace", b"\x00\x01"), ("trace", b"2")]
    topics.send(name, [b"\xff\x00", None], key=b"k", time=1_700_000_000_123, headers=headers)
    target = kafka.url(f"{name}.out", format=RAW)
    with TestDriver(copying(kafka.url(name), target)) as driver:
        driver.run()
    found = topics.read(f"{name}.out")
    assert [(one.key, one.value, one.time, one.headers) for one in found] == [
        (b"k", value, 1_700_000_000_123, headers) for value in (b"\xff\x00", None)
    ]


def test_keys_go_where_the_java_client_puts_them(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    """Partitions of the Java client's own hash, murmur2, of these keys."""
    topics.create(name)
    topics.send(name, [{"user": f"user-{n}"} for n in range(8)])
    target = kafka.url(f"{name}.out", key="user", partitions="10")
    with TestDriver(copying(kafka.url(name), target, {"user": str})) as driver:
        driver.run()
    found = {one.key: one.partition for one in topics.read(f"{name}.out") if one.key}
    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 10 for key in found}
    assert len(found) == 8


def murmur2(data: bytes) -> int:
    """As ``org.apache.kafka.common.utils.Utils.murmur2``."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m ^ ((k ^ k >> 24) * m)) & mask
    for at in reversed(range(whole, len(data))):
        h ^= data[at] << 8 * (at - whole)
    h = h * m & mask if len(data) > whole else h
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_tombstones_are_rows_without_values_and_become_tombstones(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.send(name, [{"id": 7, "name": "seven"}], key=b"7")
    topics.send(name, [None], key=b"7")
    source, target = kafka.url(name, key="id"), kafka.url(f"{name}.out", key="id")
    with TestDriver(copying(source, target, {"id": int, "name": str})) as driver:
        driver.run()
    found = [(one.key, one.value) for one in topics.read(f"{name}.out")]
    assert found == [(b"7", b'{"id":7,"name":"seven"}'), (b"7", None)]


def test_messages_that_are_not_json_become_dead_letters_with_their_place(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    lines = [b'{"id": 1}', b"\xffnope", b'{"id": "x"}', b'{\n "id": 2,\n "other": [{}]}']
    topics.send(name, lines)
    job = copying(kafka.url(name), "copied", {"id": int}, on_error="dead_letter")
    with TestDriver(job) as driver:
        driver.run()
        assert [row["id"] for row in rows_in(driver.bus, "copied")] == [1, 2]
        letters = rows_in(driver.bus, "copying.dead")
    assert len(letters) == 2
    assert all(f"Kafka topic {name} partition 0 offset" in str(one) for one in letters)
    with (
        TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver,
        pytest.raises(InvalidInputError, match=r"offset 1: found .*expected a JSON object"),
    ):
        driver.run()


def test_open_transactions_are_waited_for_and_aborted_ones_left_out(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    with TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver:
        topics.abort(name, b'{"id": -1}', 0)
        producer = topics.begun("other")
        producer.produce(name, b'{"id": 1}', None, 0)
        producer.flush()
        topics.send(name, [{"id": 2}])
        driver.run()
        assert rows_in(driver.bus, "copied") == []
        producer.commit_transaction(60)
        topics.settle(name)
        driver.run()
        assert [row["id"] for row in rows_in(driver.bus, "copied")] == [1, 2]
        assert driver.run() == 0


def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.send(name, [{"id": 1}])
    with TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver:
        driver.run()
        topics.widen(name, 3)
        topics.send(name, [{"id": 2}], partition=2)
        driver.run()
        driver.crash()
        topics.send(name, [{"id": 3}], partition=1)
        driver.run()
        assert sorted(row["id"] for row in rows_in(driver.bus, "copied")) == [1, 2, 3]


def test_another_topic_of_the_name_is_refused(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.send(name, [{"id": 1}])
    with TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver:
        driver.run()
        topics.delete(name)
        topics.create(name)
        topics.send(name, [{"id": n} for n in range(5)])
        with pytest.raises(StreamReplacedError, match="is another one"):
            driver.run()


def test_offsets_that_are_gone_are_named(kafka: KafkaServer, topics: Topics, name: str) -> None:
    topics.create(name)
    topics.send(name, [{"id": 1}])
    with TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver:
        driver.run()
        topics.send(name, [{"id": n} for n in range(5)])
        topics.drop_before(name, 0, 4)
        with pytest.raises(OffsetGoneError, match="offset 1 is gone, the oldest kept is 4"):
            driver.run()


def test_a_topic_that_is_not_there_is_named(kafka: KafkaServer, name: str) -> None:
    with (
        TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver,
        pytest.raises(InvalidInputError, match=f"topic {name} at .* does not exist"),
    ):
        driver.run()


def test_messages_that_are_too_large_are_refused_before_the_epoch_counts(
    kafka: KafkaServer, topics: Topics, name: str
) -> None:
    topics.create(name)
    topics.create(f"{name}.small", max_message_bytes="2000")
    topics.send(name, [{"text": "x" * 3000}])
    with (
        TestDriver(copying(kafka.url(name), kafka.url(f"{name}.small"), {"text": str})) as driver,
        pytest.raises(InvalidInputError, match="takes messages of 2000 bytes"),
    ):
        driver.run()
    small = kafka.url(f"{name}.small", message__max__bytes="1400")
    with (
        TestDriver(copying(kafka.url(name), small, {"text": str})) as driver,
        pytest.raises(InvalidInputError, match=r"has 3011 bytes, more than message\.max"),
    ):
        driver.run()
    assert topics.read(f"{name}.small") == []


def test_a_group_shows_how_far_a_job_is(kafka: KafkaServer, topics: Topics, name: str) -> None:
    topics.create(name, 2)
    topics.send(name, [{"id": n} for n in range(5)], partition=1)
    with TestDriver(copying(kafka.url(name), "copied", {"id": int})) as driver:
        driver.run()
    assert topics.committed("copying", name, 2) == [0, 5]


def test_secrets_are_named_and_never_shown(
    kafka: KafkaServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = "security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN&sasl.username=me&sasl.password="
    plain = copying(f"{kafka.url(name)}?{login}hunter22", "copied", {"id": int})
    with pytest.raises(InvalidInputError, match="expected env:NAME or file:PATH") as caught:
        plain.build()
    assert "hunter22" not in str(caught.value)
    job = copying(f"{kafka.url(name)}?{login}env:HEADRACE_PW", "copied", {"id": int})
    with (
        TestDriver(job) as driver,
        pytest.raises(InvalidInputError, match="variable HEADRACE_PW, which is not set"),
    ):
        driver.run()


@pytest.mark.soak
def test_a_broker_that_is_killed_and_started_again_holds_up_a_job_and_no_more(
    topics: Topics, tmp_path: Path
) -> None:
    """While it is away, before an epoch is sent, and again while the next one is read."""
    told: list[str] = []
    rows = clicks(0, 60)
    with KafkaServer(tmp_path / "own") as own:
        theirs = Topics(own.address)
        theirs.create("in", 2)
        feed(theirs, "in", rows[:30])
        job = counting(own.url("in"), own.url("out", key="user", partitions="2"))
        home = tmp_path / "home"

        def notify(line: str) -> None:
            told.append(line)
            if len(told) == 1:
                own.start()

        with TestDriver(job, tasks=2, home=home, memory_bus=False) as driver:
            driver.run()
            feed(theirs, "in", rows[30:])
            driver.coordinator.end_at_present()
            own.kill()
            retry = RetryPolicy(SystemClock(), JobControl().stop, None, notify)
            with open_bus(str(driver.settings.bus_dir)) as bus:
                drive_part(driver.coordinator, bus, JobControl(), print, retry=retry)
            assert driver.coordinator.has_ended
        assert sent(theirs, "out") == running_totals(rows)
    assert "does not answer" in told[0]
    assert "waits for an answer" in told[0]


@pytest.mark.soak
def test_a_coordinator_that_is_away_ends_nobody_who_shows_how_far_a_job_is(tmp_path: Path) -> None:
    """Calls of the library's admin client that ask it may then abort the process, or not return."""
    groups, over = [f"group-{number}" for number in range(4)], threading.Event()
    there, away = set[str](), set[str]()
    with KafkaServer(tmp_path / "own") as own:
        topics = Topics(own.address)
        topics.create("shown")
        address = own.url("shown", socket__timeout__ms="2000")
        log = connector.open(connector.spec("shown", address, None), address)

        def show(group: str) -> int:
            number = 0
            while not over.is_set():
                try:
                    log.note(group, [number + 1])
                    number += 1
                    there.add(group)
                except LogAwayError:
                    away.add(group)
            return number

        with ThreadPoolExecutor(len(groups)) as pool:
            shown = [pool.submit(show, group) for group in groups]
            try:
                until(lambda: "group-0" in there, "a commit")
                own.kill()
                until(lambda: len(away) == len(groups), "errors of all")
                own.start()
            finally:
                over.set()
            last = [one.result(SOON_S) for one in shown]
        for group, number in zip(groups, last, strict=True):
            assert topics.committed(group, "shown")[0] - number in {0, 1}  # the last may be unsure
