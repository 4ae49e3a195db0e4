"""Parts of a job with topics between them: as with streams of the bus, whatever dies when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.sim.test_join_jobs import outcome
from tests.sim.world import World, make_job
from tests.support.changes import begin_from, record, remove, reset, save
from tests.support.cli import done
from tests.support.kafka import CLIENTS, KafkaServer, Topics
from tests.support.processes import MODULES, until
from tests.support.soak import more

import headrace as hr
from headrace import Job
from headrace.bus import FileBus, LogAwayError, Producer, Stream, StreamReplacedError, StreamSpec
from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError, PartsError
from headrace.testing import TestDriver

POINTS = [
    ("commit.published", 1),
    ("epoch.output_published", 2),
    ("feed.mark_published", 4),
    ("bus.frame_written", 3),
    ("bus.index_written", 5),
    ("epoch.published", 2),
    ("feed.trim_due", 2),
    ("feed.trimmed", 1),
]
COLUMNS = {"user": pa.string(), "n": pa.int64()}
KEPT: Any = {
    "retention_ms": "-1",
    "max_message_bytes": str(16 << 20),
    "message_timestamp_type": "LogAppendTime",
}
"""Settings of a topic in which nothing expires."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"b{abs(hash(request.node.nodeid))}"


@pytest.fixture
def address(kafka: KafkaServer, name: str) -> str:
    """The address of a topic that does not exist."""
    return kafka.url(name)


def ways(kafka: KafkaServer, name: str) -> dict[str, str]:
    """A topic for each ``partition_by`` of the job."""
    return {place: kafka.url(f"{name}.{place}") for place in ("id", "name", "window_start")}


def test_a_crash_at_any_step_changes_no_result(kafka: KafkaServer, name: str) -> None:
    job = make_job("memory", via=ways(kafka, name), small=True)
    with TestDriver(job, tasks=2, memory_bus=False) as driver:
        world = World(driver, random.Random(7))
        for point, nth in POINTS:
            world.feed(30)
            driver.advance_with_crash(point, nth, driver.run)
        driver.finish()
        world.check()


@pytest.mark.parametrize("seed", more([1], [1, 2]))
def test_parts_in_any_order_give_what_one_part_gives(
    kafka: KafkaServer, name: str, seed: int
) -> None:
    rng = random.Random(seed)
    job = make_job("rocksdb", "columnar", ways(kafka, name))
    with TestDriver(job, tasks=3, memory_bus=False, max_rows=rng.choice([20, 1000])) as driver:
        world = World(driver, rng)
        for _ in range(12):
            action = rng.random()
            if action < 0.4:
                world.feed(rng.randrange(1, 40))
            elif action < 0.8:
                driver.advance(part=rng.randrange(len(driver.parts)))
            else:
                driver.advance_with_crash(rng.choice(POINTS)[0])
        driver.finish()
        world.check()


def test_joins_of_inputs_that_pass_by_topics_find_their_partners(
    kafka: KafkaServer, name: str
) -> None:
    """Both sides are placed alike, as the tasks of the join are."""
    assert outcome(kafka.url(f"{name}.{{}}"), 50, 2) == outcome("exchange", 1000)


class Counting:
    def process(self, message: Any, context: Any) -> None:
        counts = context.store("counts")
        total = counts.get(message.user, 0) + message.n
        counts.put(message.user, total)
        context.emit({"user": message.user, "total": total})


def counting(address: str, columns: tuple[str, ...] = ("user", "n")) -> Job:
    @hr.job("counting")
    def job(g: hr.Graph) -> None:
        clicks = g.input("clicks").map(*columns)
        keyed = clicks.partition_by("user", via=address, name="by-user")
        store = hr.store("counts", int, kind="rocksdb")
        totals = keyed.process(Counting, [store], returns={"user": str, "total": int})
        totals.send_to(g.output("totals"))

    return job


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [{"user": f"u{n % 7}", "n": n} for n in range(first, first + count)]


def totals_of(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """What the job sends for rows that are read in this order."""
    seen: Counter[str] = Counter()
    made = []
    for row in rows:
        seen[row["user"]] += row["n"]
        made.append((row["user"], seen[row["user"]]))
    return sorted(made)


def sent(driver: TestDriver) -> list[tuple[str, int]]:
    return sorted((row["user"], row["total"]) for row in driver.output("totals"))


@pytest.fixture
def driver(address: str, tmp_path: Path) -> Iterator[TestDriver]:
    """A driver of the job, whose input has its stream."""
    with TestDriver(counting(address), tasks=2, home=tmp_path, memory_bus=False) as made:
        made.create("clicks", COLUMNS)
        yield made


_DRIVER = """
import os, signal, sys
from pathlib import Path
from tests.servers.test_kafka_between import counting
from headrace.faults import injected
from headrace.testing import TestDriver

address, home, point = sys.argv[1:]

def hook(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

with injected(hook):
    TestDriver(counting(address), tasks=2, home=Path(home), memory_bus=False).run()
"""


def test_a_killed_driver_is_followed_by_one_that_sends_the_rest_once(
    driver: TestDriver, address: str
) -> None:
    """kill -9 with the manifest there, in an open transaction, and with the transaction over."""
    rows: list[dict[str, Any]] = []
    for point in ("commit.published", "bus.frame_written", "bus.index_written"):
        rows += clicks(len(rows), 40)
        driver.feed("clicks", rows[-40:])
        words = [sys.executable, "-c", _DRIVER, address, str(driver.home), point]
        environment = {**os.environ, "PYTHONPATH": MODULES}
        ended = subprocess.run(words, env=environment, timeout=120, check=False)
        assert ended.returncode == -signal.SIGKILL
    driver.run()
    assert sent(driver) == totals_of(rows)


def test_columns_come_back_as_they_were(address: str) -> None:
    at = datetime(2026, 11, 28, 12, 0, 0, 123456, UTC)
    kinds = {
        "key": pa.string(),
        "small": pa.int8(),
        "large": pa.uint64(),
        "single": pa.float32(),
        "price": pa.decimal128(20, 4),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "raw": pa.binary(),
        "flag": pa.bool_(),
        "items": pa.list_(pa.struct([("id", pa.int32()), ("name", pa.string())])),
    }
    full = {
        "key": "a",
        "small": -128,
        "large": 2**64 - 1,
        "single": 0.5,
        "price": Decimal("12345678901234.5678"),
        "at": at,
        "day": date(1969, 7, 20),
        "raw": b"\x00\xff",
        "flag": True,
        "items": [{"id": 1, "name": None}, {"id": None, "name": "\N{SNOWMAN}"}],
    }
    rows = [full, {**dict.fromkeys(kinds), "key": "b"}, {**full, "key": "c", "items": []}]

    @hr.job("typed")
    def typed(g: hr.Graph) -> None:
        g.input("rows").partition_by("key", via=address).send_to(g.output("same"))

    with TestDriver(typed, memory_bus=False) as driver:
        driver.create("rows", kinds)
        driver.feed("rows", rows)
        driver.run()
        assert sorted(driver.output("same"), key=lambda row: row["key"]) == rows
        assert driver.bus.stream("same").spec.schema == driver.bus.stream("rows").spec.schema


def test_rows_that_are_read_go_and_the_last_message_stays(
    driver: TestDriver, topics: Topics, name: str
) -> None:
    """By it the next driver knows what is sent; where it is gone, rows may be: an error."""
    rows: list[dict[str, Any]] = []
    for _ in range(20):
        rows += clicks(len(rows), 14)
        driver.feed("clicks", rows[-14:])
        driver.run()
    held = Counter(message.partition for message in topics.read(name))
    assert set(held) == {0, 1}
    assert max(held.values()) < 10
    driver.advance_with_crash("commit.published")
    driver.run()
    assert sent(driver) == totals_of(rows)
    driver.crash()
    for partition, end in enumerate(topics.ends(name)):
        topics.drop_before(name, partition, end)
    driver.feed("clicks", clicks(len(rows), 14))
    with pytest.raises(CorruptDataError, match=r"has lost the rows of stream .* jobs reset"):
        driver.run()


def test_a_reset_and_the_end_of_the_job_delete_the_topic(
    driver: TestDriver, topics: Topics, name: str
) -> None:
    driver.feed("clicks", clicks(0, 50))
    driver.run()
    driver.crash()
    reset(driver)
    assert not topics.exists(name)
    driver.run()
    assert sent(driver) == sorted(totals_of(clicks(0, 50)) * 2)
    driver.crash()
    remove(driver)
    assert not topics.exists(name)


def test_a_savepoint_has_the_rows_that_wait_and_another_topic_gets_them(
    driver: TestDriver, address: str, topics: Topics, name: str
) -> None:
    rows = clicks(0, 120)
    driver.feed("clicks", rows[:80])
    driver.advance(part=0)  # sent, and not read
    save(driver)
    driver.job = counting(f"{address}.2")
    begin_from(driver)
    driver.feed("clicks", rows[80:])
    driver.run()
    assert sent(driver) == totals_of(rows)
    assert topics.exists(f"{name}.2")


def test_settings_put_a_topic_in_the_place_of_the_bus(
    tmp_path: Path, address: str, topics: Topics, name: str
) -> None:
    """Also for what a savepoint brings, which was made on the bus."""
    rows = clicks(0, 120)
    with TestDriver(counting("bus"), tasks=2, home=tmp_path, memory_bus=False) as made:
        made.create("clicks", COLUMNS)
        made.feed("clicks", rows[:80])
        made.advance(part=0)  # sent, and not read
        save(made)
    placed: Any = {"by-user": {"address": address}}
    with TestDriver(
        counting("bus"), tasks=2, home=tmp_path, memory_bus=False, outputs=placed
    ) as made:
        begin_from(made)
        assert topics.exists(name)
        made.feed("clicks", rows[80:])
        made.run()
        assert sent(made) == totals_of(rows)
        remove(made)
        assert not topics.exists(name)


def test_of_a_part_that_reads_a_topic_there_is_no_recording(
    driver: TestDriver, tmp_path: Path
) -> None:
    """Of the part before it there is one."""
    for first in (0, 50):
        driver.feed("clicks", clicks(first, 50))
        driver.run()
    with pytest.raises(InvalidInputError, match=r"'counting@by-user' reads .* cannot be"):
        record(driver, tmp_path / "second", 2, job="counting@by-user")
    record(driver, tmp_path / "first", 2)
    with TestDriver.replay(driver.job, tmp_path / "first") as replay:
        replay.advance()
        assert sum(map(len, replay.partitions("counting.by-user.exchange"))) > 0


def test_tasks_become_fewer_and_rows_that_wait_are_read_by_their_new_ones(
    driver: TestDriver,
) -> None:
    rows = clicks(0, 120)
    driver.feed("clicks", rows[:60])
    driver.run()
    driver.feed("clicks", rows[60:])
    driver.advance(part=0)
    driver.parts[-1].rescale(1)
    driver.run()
    assert sent(driver) == totals_of(rows)


def test_a_topic_that_may_lose_rows_or_has_some_is_refused(
    driver: TestDriver, address: str, topics: Topics, name: str
) -> None:
    topics.create(name, 2)
    with pytest.raises(InvalidInputError, match=r"retention.ms is 604800000, expected -1") as found:
        driver.run()
    assert found.value.code == "HR222"
    topics.create(f"{name}.2", 2, **KEPT)
    driver.job = counting(f"{address}.2")
    topics.send(f"{name}.2", [b"mine"])
    with pytest.raises(InvalidInputError, match=r"exists and has messages.* end at \[1, 0\]"):
        driver.run()
    topics.create(f"{name}.3", 3, **KEPT)
    driver.job = counting(f"{address}.3")
    with pytest.raises(InvalidInputError, match=r"it has 3 partitions, expected 2"):
        driver.run()


def test_messages_of_others_are_found_before_they_reach_the_state(
    driver: TestDriver, topics: Topics, name: str
) -> None:
    driver.feed("clicks", clicks(0, 50))
    driver.run()
    topics.send(name, [b"mine"])
    driver.crash()
    driver.feed("clicks", clicks(50, 50))
    with pytest.raises(InvalidInputError, match="is not of the job whose rows it carries"):
        driver.run()
    assert sent(driver) == totals_of(clicks(0, 50))


def test_a_topic_that_was_deleted_and_created_is_another_one(
    driver: TestDriver, topics: Topics, name: str
) -> None:
    driver.feed("clicks", clicks(0, 50))
    driver.run()
    driver.crash()
    topics.delete(name)
    topics.create(name, 2, **KEPT)
    driver.feed("clicks", clicks(50, 50))
    with pytest.raises(StreamReplacedError, match="headrace jobs reset"):
        driver.run()


def test_the_place_of_rows_that_wait_does_not_change(driver: TestDriver, address: str) -> None:
    """What it is reached by may: another host, or a login."""
    driver.feed("clicks", clicks(0, 50))
    driver.run()
    driver.crash()
    driver.job = counting(f"{address}.2")
    with pytest.raises(InvalidInputError, match=r"exists in another place.*rows do not move"):
        driver.run()
    driver.crash()
    driver.job = counting(f"{address.replace('127.0.0.1', 'localhost')}?client.id=other")
    driver.feed("clicks", clicks(50, 50))
    driver.run()
    assert sent(driver) == totals_of(clicks(0, 100))
    assert "localhost" in driver.bus.stream("counting.by-user.exchange").address


def test_other_columns_wait_until_the_job_is_reset(driver: TestDriver, address: str) -> None:
    driver.feed("clicks", clicks(0, 50))
    driver.run()
    driver.crash()
    driver.job = counting(address, ("n", "user"))
    with pytest.raises(PartsError, match="what partition_by 'by-user' sends has changed"):
        driver.run()


def test_large_rows_pass_and_one_that_is_too_large_leaves_the_epoch_without_effect(
    address: str, topics: Topics, name: str
) -> None:
    @hr.job("large")
    def large(g: hr.Graph) -> None:
        texts = g.input("texts").union(g.input("more").map_batches(twice, returns=TEXTS))
        texts.partition_by("key", via=address).send_to(g.output("same"))

    with TestDriver(large, tasks=1, memory_bus=False) as driver:
        driver.create("texts", TEXTS)
        driver.create("more", TEXTS)
        texts = ["x" * size for size in (3_000_000, 1, 0, *[40_000] * 50)]
        driver.feed("texts", [{"key": key, "text": text} for key, text in enumerate(texts)])
        driver.run()
        found = {row["key"]: len(row["text"]) for row in driver.output("same")}
        assert found == {key: len(text) for key, text in enumerate(texts)}
        assert len(topics.read(name)) > 5
        driver.feed("more", [{"key": 0, "text": "x" * 8_000_000}])
        before = topics.ends(name)
        with pytest.raises(InvalidInputError, match=r"has 16\d+ bytes, more than the 15728640"):
            driver.run()
        assert topics.ends(name) == before


def twice(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(text=pl.col("text") + pl.col("text"))


TEXTS = pa.schema({"key": pa.int64(), "text": pa.string()})


@pytest.fixture
def streams(address: str, tmp_path: Path) -> Iterator[list[Stream]]:
    """The same stream in two processes, as it were, of which one is an older driver's."""
    spec = StreamSpec("job.by.exchange", 2, pa.schema({"n": pa.int64()}), address=address)
    buses = [FileBus(tmp_path), FileBus(tmp_path)]
    yield [bus.create(spec, exist_ok=True) for bus in buses]
    for bus in buses:
        bus.close()


def held(stream: Stream, partition: int = 0) -> list[int]:
    read = stream.read(partition, stream.begins()[partition])
    return [n for part in read for n in part.batch.column("n").to_pylist()]


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def test_an_append_is_there_once_whoever_repeats_it(streams: list[Stream]) -> None:
    """Who comes later fences the other, and each reads how far the topic is when it connects."""
    first, second = streams
    me = Producer("job/job", "lineage")
    assert not first.append(0, numbers(1, 2), producer=me, sequence=1).duplicate
    assert second.append(0, numbers(1, 2), producer=me, sequence=1).duplicate
    assert not second.append(0, numbers(3), producer=me, sequence=4).duplicate
    with pytest.raises(LogAwayError):  # it is fenced, and finds out
        first.append(0, numbers(3), producer=me, sequence=4)
    assert first.append(0, numbers(3), producer=me, sequence=4).duplicate
    assert held(second) == held(first) == [1, 2, 3]
    assert [end.sequence for end in first.as_of(me, 3)] == [3, -1]


def test_an_older_driver_that_comes_last_sends_nothing(
    streams: list[Stream],
) -> None:
    first, second = streams
    me = Producer("job/job", "lineage")
    old, new = hr.bus.Fence("job", 1), hr.bus.Fence("job", 2)
    first.append(0, numbers(1), producer=me, sequence=1, fence=old)
    second.append(0, numbers(2), producer=me, sequence=2, fence=new)
    with pytest.raises(NotOwnerError):
        first.append(0, numbers(3), producer=me, sequence=3, fence=old)
    assert held(second) == [1, 2]


def test_a_range_that_brokers_do_not_show_yet_is_waited_for(streams: list[Stream]) -> None:
    """Who sends knows the end first, and a part reads up to it."""
    first, second = streams
    with ThreadPoolExecutor(1) as pool:
        with first.together():
            first.append(0, numbers(1))
            found = pool.submit(lambda: list(second.read(0, 0, 1)))
            assert not wait([found], 1.0).done
        assert [part.batch.column("n").to_pylist() for part in found.result(60)] == [[1]]


def test_what_is_sent_together_is_visible_together(streams: list[Stream]) -> None:
    """Brokers write the marks of a transaction after they have answered, so others look again."""
    first, second = streams
    with first.together():
        first.append(0, numbers(1))
        first.append(1, numbers(2))
        assert second.ends() == [0, 0]
    until(lambda: [held(second, 0), held(second, 1)] == [[1], [2]], "what was sent")
    with pytest.raises(ZeroDivisionError), first.together():
        first.append(0, numbers(3 // 0))
    first.append(0, numbers(4))
    until(lambda: held(second) != [1], "what was sent next")
    assert held(second) == [1, 4]


@pytest.mark.soak
def test_a_broker_that_is_away_holds_the_job_up_and_no_more(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "broker") as broker:
        job = counting(broker.url("between", socket__timeout__ms="1000"))
        rows = clicks(0, 100)
        with TestDriver(job, tasks=2, home=tmp_path, memory_bus=False) as driver:
            driver.create("clicks", COLUMNS)

            def goes_on(count: int) -> bool:
                with suppress(LogAwayError):  # a coordinator loads
                    driver.run()
                    return len(sent(driver)) == count
                return False

            driver.feed("clicks", rows[:50])
            until(partial(goes_on, 50), "rows")
            driver.feed("clicks", rows[50:])
            driver.advance_with_crash("commit.published")
            broker.kill()
            with pytest.raises(LogAwayError, match="Kafka topic between"):
                driver.run()
            home = ["--home", str(tmp_path)]
            assert "counting.by-user.exchange" in done("bus", "ls", *home)
            assert "by-user" in done("jobs", "describe", "counting", *home)
            broker.start()
            until(partial(goes_on, 100), "all rows")
            assert sent(driver) == totals_of(rows)
        CLIENTS.close()
