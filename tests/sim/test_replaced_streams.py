"""A stream that is removed and created again is never read from the offset in the old one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.changes import (
    StartOffsets,
    accept_streams,
    begin_from,
    forget_streams,
    record,
    reset,
    rewind,
    save,
)

import headrace as hr
from headrace.bus import FileBus, StreamReplacedError, StreamSpec
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver, call_at

K = {"k": pa.int64()}
EVENTS = StreamSpec("events", 1, pa.schema(K))
NAMES = StreamSpec("names", 1, pa.schema(K | {"name": pa.string()}), key=("k",))
PRICES = StreamSpec("events.b", 1, pa.schema(K), key=("k",), compact=True)


@hr.job("copier")
def copier(g: hr.Graph) -> None:
    g.input("events").filter(hr.col("k") >= 0).send_to(g.output("out"))


@hr.job("matching")
def matching(g: hr.Graph) -> None:
    g.input("events*").filter(hr.col("k") >= 0).send_to(g.output("out"))


@hr.job("named")
def named(g: hr.Graph) -> None:
    names = hr.broadcast("names", stream="names", key="k")
    g.input("events").join_table(names, columns=["name"]).send_to(g.output("out"))


def feed(driver: TestDriver, first: int, count: int, stream: str = "events") -> None:
    driver.feed(stream, [{"k": k} for k in range(first, first + count)])


def again(driver: TestDriver, first: int, count: int, spec: StreamSpec = EVENTS) -> None:
    """Do as another process that removes a stream and creates it again, with other rows."""
    with FileBus(driver.settings.bus_dir) as bus:
        bus.remove(spec.name)
        made = bus.create(spec)
        made.append(
            0,
            pa.Table.from_pylist(
                [{"k": k, "name": f"new {k}"} for k in range(first, first + count)], spec.schema
            ),
        )


def keys(driver: TestDriver) -> list[int]:
    return [row["k"] for row in driver.output("out")]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A job that has read ten rows."""
    with TestDriver(copier, home=tmp_path, memory_bus=False) as made:
        made.create("events", K)
        feed(made, 0, 10)
        made.run()
        yield made


@pytest.mark.parametrize("count", [3, 25])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_another_stream_ends_the_job_and_says_what_may_be_done(
    driver: TestDriver, count: int, *, is_stopped: bool
) -> None:
    expected = driver.bus.stream("events").identity
    if is_stopped:
        driver.crash()
    again(driver, 100, count)
    found = driver.bus.stream("events").identity
    for _ in range(2):
        with pytest.raises(StreamReplacedError) as refused:
            driver.run()
        moves = ("headrace jobs reset copier", "headrace jobs accept-streams copier")
        for told in (expected, found, *moves):
            assert told in str(refused.value)
        driver.crash()
    assert keys(driver) == list(range(10))


@pytest.mark.parametrize(
    "point", ["epoch.planned", "slot.caught_up", "slot.output_written", "epoch.level_done"]
)
def test_an_epoch_that_may_have_read_another_stream_is_not_committed(
    driver: TestDriver, point: str
) -> None:
    """It was planned over the old one; the new one has rows at the same offsets."""
    feed(driver, 10, 5)

    replaced = call_at(point, lambda: again(driver, 100, 25))
    with replaced, pytest.raises(StreamReplacedError):
        driver.advance()
    assert driver.coordinator.state.inputs["events"][0].next_offset == 10
    assert keys(driver) == list(range(10))


@pytest.mark.parametrize(
    ("start", "read"),
    [
        (lambda stream, held: stream.begins(), range(100, 125)),
        (lambda stream, held: [held[0].next_offset], range(110, 125)),
        (lambda stream, held: stream.ends(), range(0)),
    ],
)
def test_an_accepted_stream_is_read_and_the_state_stays(
    driver: TestDriver, start: StartOffsets, read: range
) -> None:
    driver.crash()
    again(driver, 100, 25)
    assert list(accept_streams(driver, start)) == ["events"]
    feed(driver, 200, 5)
    driver.run()
    assert keys(driver) == [*range(10), *read, *range(200, 205)]
    assert driver.coordinator.state.counts["in"] == 10 + len(read) + 5
    driver.crash()
    with pytest.raises(InvalidInputError, match="nothing is to be accepted"):
        accept_streams(driver, start)


@pytest.mark.parametrize("is_told", [True, False])
def test_offsets_of_a_reset_are_those_of_the_stream_of_then(
    driver: TestDriver, *, is_told: bool
) -> None:
    """It is created again before the job is started: all of its rows are read."""
    driver.crash()
    reset(driver, {"events": [10]})
    if not is_told:
        forget_streams(driver)
    again(driver, 100, 25)
    driver.run()
    assert keys(driver) == [*range(10), *range(100 if is_told else 110, 125)]


def test_a_state_that_knows_no_identities_takes_those_that_it_finds(driver: TestDriver) -> None:
    """As that of an older version does; from the next epoch on it is held to them."""
    driver.crash()
    forget_streams(driver)
    again(driver, 100, 25)
    driver.run()
    assert keys(driver) == [*range(10), *range(110, 125)]
    again(driver, 200, 50)
    with pytest.raises(StreamReplacedError):
        driver.run()


def test_an_epoch_of_before_is_neither_gone_back_to_nor_recorded(
    driver: TestDriver, tmp_path: Path
) -> None:
    driver.crash()
    record(driver, tmp_path / "before.zip", epoch=1)
    again(driver, 100, 25)
    with pytest.raises(StreamReplacedError, match="up to epoch 1"):
        rewind(driver, 1)
    with pytest.raises(InvalidInputError, match=r"epoch 1 .* cannot be recorded: stream 'events'"):
        record(driver, tmp_path / "after.zip", epoch=1)


def test_a_job_that_begins_from_a_savepoint_is_held_to_the_streams_of_it(
    driver: TestDriver,
) -> None:
    save(driver)
    again(driver, 100, 25)
    begin_from(driver, job="other")
    with pytest.raises(StreamReplacedError, match="headrace jobs accept-streams other"):
        driver.start()
    assert keys(driver) == list(range(10))


@pytest.mark.parametrize("is_stopped", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_stream_of_a_pattern_that_comes_again_is_one_that_comes(
    tmp_path: Path, partitions: int, *, is_stopped: bool
) -> None:
    """All of its rows are read; of the others none is read twice."""
    with TestDriver(matching, home=tmp_path, memory_bus=False) as driver:
        for name in ("events.a", "events.b"):
            driver.create(name, K)
        feed(driver, 0, 10, "events.a")
        feed(driver, 10, 10, "events.b")
        driver.run()
        if is_stopped:
            driver.crash()
        again(driver, 100, 25, StreamSpec("events.b", partitions, pa.schema(K)))
        feed(driver, 20, 5, "events.a")
        driver.run()
        assert sorted(keys(driver)) == [*range(25), *range(100, 125)]
        driver.crash()
        driver.run()
        assert len(keys(driver)) == 50


def test_a_broadcast_store_is_not_made_of_two_streams(tmp_path: Path) -> None:
    with TestDriver(named, home=tmp_path, memory_bus=False) as driver:
        for spec in (EVENTS, NAMES):
            driver.create(spec.name, dict(zip(spec.schema.names, spec.schema.types, strict=True)))
        driver.feed("names", [{"k": k, "name": f"old {k}"} for k in range(5)])
        feed(driver, 0, 5)
        driver.run()
        again(driver, 3, 9, NAMES)
        feed(driver, 0, 12)
        with pytest.raises(StreamReplacedError, match="stream 'names' is another one"):
            driver.run()
        driver.crash()
        never = pytest.fail
        taken = accept_streams(driver, lambda stream, held: never("it is read from its beginning"))
        assert taken == {"broadcast store names of names": []}
        driver.run()
        found = [row["name"] for row in driver.output("out")][5:]
        assert found == [None, None, None, *(f"new {k}" for k in range(3, 12))]


def test_a_compacted_stream_that_comes_again_is_held_again(tmp_path: Path) -> None:
    with TestDriver(matching, home=tmp_path, memory_bus=False) as driver:
        driver.create("events.a", K)
        driver.bus.create(PRICES)
        feed(driver, 0, 5, "events.b")
        driver.run()
        assert list(driver.bus.stream("events.b").holds()) == ["matching"]
        again(driver, 100, 5, PRICES)
        assert driver.bus.stream("events.b").holds() == {}
        driver.run()
        assert driver.bus.stream("events.b").holds() == {"matching": (0,)}
