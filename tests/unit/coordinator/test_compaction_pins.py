"""Jobs over compacted streams: what they are about to read stays as it is, whoever compacts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.changes import remove

import headrace as hr
from headrace.bus import Stream, StreamSpec
from headrace.testing import FAULT_POINTS, TestDriver, each_at

COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PRICES = StreamSpec("prices", 1, COLUMNS, None, ("k",), compact=True)


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    keyed = g.input("prices").partition_by("k")
    totals = keyed.aggregate(name="totals", n=hr.agg.count(), v=hr.agg.sum("v"))
    totals.send_to(g.output("out"))


def feed(driver: TestDriver, count: int = 12) -> None:
    """Append rows of four keys, a few at a time."""
    stream = driver.bus.stream("prices")
    for _ in range(count):
        end = stream.ends()[0]
        stream.append(0, pa.table({"k": [end % 4, (end + 1) % 4], "v": [end, end + 1]}, COLUMNS))


def results(driver: TestDriver) -> dict[int, tuple[int, int]]:
    return {row["k"]: (row["n"], row["v"]) for row in driver.output("out")}


def expected(rows: int) -> dict[int, tuple[int, int]]:
    """What a job has that reads every row."""
    return {k: (len(range(k, rows, 4)), sum(range(k, rows, 4))) for k in range(4)}


EPOCH = [name for name in FAULT_POINTS if name.startswith(("epoch.", "slot.", "commit."))]


@pytest.fixture(params=[True, False])
def driver(request: pytest.FixtureRequest) -> TestDriver:
    driver = TestDriver(sums, tasks=2, key_groups=8, max_rows=7, memory_bus=request.param)
    driver.bus.create(PRICES)
    return driver


def test_compactions_at_every_step_change_no_result(driver: TestDriver) -> None:
    """However often it is tried: nothing goes that the job has not read."""
    with driver:
        feed(driver)
        driver.start()
        with each_at(EPOCH, lambda: driver.bus.stream("prices").compact(0)):
            driver.run()
        assert results(driver) == expected(24)
        stream = driver.bus.stream("prices")
        driver.clock.advance(60_000)
        feed(driver)
        driver.advance()
        assert stream.compact(0).upto == 24
        assert stream.stored()[0].rows == 4 + 24
        driver.run()
        assert results(driver) == expected(48)


@pytest.mark.parametrize(
    "point", ["epoch.planned", "slot.ran", "epoch.before_commit", "commit.published"]
)
def test_an_epoch_that_died_reads_the_same_rows_again(driver: TestDriver, point: str) -> None:
    """Also when somebody compacts between."""
    with driver:
        feed(driver)
        driver.advance()
        assert driver.advance_with_crash(point)
        driver.clock.advance(3_600_000)
        driver.bus.stream("prices").compact(0)
        driver.run()
        assert results(driver) == expected(24)


def test_a_bounded_run_sees_the_stream_as_it_was_at_its_start(driver: TestDriver) -> None:
    """Rows that came later supersede none of it before it has ended; then it lets go."""
    with driver:
        feed(driver)
        driver.start()
        driver.coordinator.end_at_present()
        feed(driver)
        driver.advance()
        driver.bus.stream("prices").compact(0)
        while not driver.coordinator.has_ended:
            driver.advance()
        assert results(driver) == expected(24)
        assert driver.bus.stream("prices").holds() == {}


def test_a_new_job_reads_the_latest_of_each_key(driver: TestDriver) -> None:
    """And goes on behind what was compacted, at the right offsets; an empty rest is passed."""
    with driver:
        feed(driver)
        stream = driver.bus.stream("prices")
        stream.append(0, pa.table({"k": [9, 9], "v": [None, None]}, COLUMNS))
        stream.configure(keep_deletes_ms=1)
        for _ in range(2):
            stream.compact(0)
            driver.clock.advance(10)
        driver.run()
        assert results(driver) == {k: (1, 20 + k) for k in range(4)}
        assert driver.coordinator.state.inputs["prices"][0].next_offset == 26


def test_an_idle_job_says_now_and_then_that_it_is_there(driver: TestDriver) -> None:
    """And where it is; not with each epoch."""
    with driver:
        feed(driver)
        driver.run()
        stream = driver.bus.stream("prices")
        driver.advance()
        assert stream.holds() == {"sums": (0,)}
        driver.clock.advance(60_000)
        driver.advance()
        assert stream.holds() == {"sums": (24,)}
        driver.clock.advance(stream.settings.hold_ms - 1)
        driver.advance()
        feed(driver)
        driver.clock.advance(2)
        assert stream.compact(0).upto == 24


def test_a_stream_that_comes_again_is_held_again() -> None:
    """Though another one of its name was held at the same offsets before."""

    @hr.job("ids")
    def ids(g: hr.Graph) -> None:
        g.input("prices.*").filter(hr.col("v") >= 0).send_to(g.output("out"))

    with TestDriver(ids, memory_bus=False) as driver:
        for name in ("prices.a", "prices.b"):
            driver.bus.create(replace(PRICES, name=name))
        driver.run()
        assert driver.bus.stream("prices.b").holds() == {"ids": (0,)}
        shutil.rmtree(driver.settings.bus_dir / "streams/prices.b")
        driver.run()
        again = driver.bus.create(replace(PRICES, name="prices.b"))
        driver.advance()
        assert again.holds() == {"ids": (0,)}


def test_a_broadcast_store_over_a_compacted_stream() -> None:
    """Its rows are the same before and after, whichever process reads them and when."""
    rates = hr.broadcast("rates", stream="prices", key="k")

    @hr.job("rated")
    def rated(g: hr.Graph) -> None:
        joined = g.input("orders").join_table(rates, columns={"rate": "v"}, how="inner")
        joined.send_to(g.output("out"))

    with TestDriver(rated, slots=2) as driver:
        driver.create("prices", COLUMNS, key=["k"], compact=True)
        stream = driver.bus.stream("prices")
        driver.create("orders", COLUMNS, partitions=2)
        seen = []
        for round_ in range(6):
            feed(driver, 2)
            if round_ == 2:
                stream.append(0, pa.table({"k": [3], "v": [None]}, COLUMNS))
            driver.feed("orders", [{"k": k, "v": 0} for k in range(4)], partition=round_ % 2)
            driver.run()
            seen.append(len(driver.output("out")))
            driver.clock.advance(3 * 86_400_000)
            compacted(driver, stream)
        assert seen == [4, 8, 11, 15, 19, 23]


def compacted(driver: TestDriver, stream: Stream) -> None:
    driver.advance(force=True)
    for _ in range(2):
        stream.compact(0)
        driver.clock.advance(2 * 86_400_000)


def test_a_removed_job_holds_nothing(tmp_path: Path) -> None:
    with TestDriver(sums, memory_bus=False, home=tmp_path) as driver:
        stream = driver.bus.create(PRICES)
        feed(driver)
        driver.run()
        assert list(stream.holds()) == ["sums"]
        driver.coordinator.close()
        remove(driver)
        assert stream.holds() == {}
