"""Tables of the warehouse on a real S3 server: each row once, whatever dies."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.sim.test_warehouse import COLUMNS, NOT_PASSED, Feed, job
from tests.support.changes import with_settings
from tests.support.cli import done
from tests.support.limits import limit
from tests.support.s3_proxy import Fault, FaultyProxy
from tests.support.servers import S3Server
from tests.support.storages import (
    caching,
    forget_storages,
    get_object,
    names_below,
    put_object,
    remove_object,
)

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.testing import FAULT_POINTS, TestDriver

STEPS = ("epoch.", "commit.", "slot.", "sink.committed", "warehouse.")
POINTS = [p for p in FAULT_POINTS if p.startswith(STEPS) and not p.startswith(NOT_PASSED)]


@pytest.fixture
def place(address: str) -> str:
    return address.replace("/jobs", "/warehouse")


def settle(driver: TestDriver, place: str, **more: Any) -> None:
    aims = {"address": place, "merge_files": 3, "keep_s": 1.0, **more}
    with_settings(driver, "warehouse", **aims)
    driver.create("in", COLUMNS, partitions=2, time="at")


def table(place: str) -> hr.warehouse.Table:
    return hr.warehouse.Table(f"{place}/events")


def numbers(place: str) -> Counter[int]:
    return Counter(table(place).to_arrow().column("number").to_pylist())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "reader"))


@pytest.mark.parametrize("small", [0, 16 << 10], ids=["changes", "wholes"])
def test_each_row_is_there_once_whatever_dies(
    place: str, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """Each step of an epoch is the last of a process once, and readers see whole epochs."""
    limit(monkeypatch, table_small_bytes=small, table_changes=3)
    with TestDriver(job(), tasks=2) as driver:
        settle(driver, place)
        feed, rng, died = Feed(driver), random.Random(4), 0
        for number, point in enumerate(POINTS):
            feed.add([number * 4 + rng.randrange(8) for _ in range(5)])
            died += driver.advance_with_crash(point)
            driver.advance()
            driver.clock.advance(700)
            found = numbers(place)
            assert set(found.values()) == {1}
        assert died > len(POINTS) // 2
        driver.finish()
        assert numbers(place) == Counter(range(feed.rows))
        assert Counter({day.day: day.rows for day in table(place).days}) == feed.days
        days = table(place).days
        assert all(day.is_complete for day in days)
        held = names_below(f"{place}/events")
        marks = {f"ds={day.day}/_SUCCESS" for day in days}
        assert {name for name in held if name.endswith("_SUCCESS")} == marks
        assert len([name for name in held if "/versions/" in name]) <= (100 if small else 10)


def test_compaction_and_retention_remove_what_nobody_reads(place: str) -> None:
    with TestDriver(job(retention="2d"), tasks=2) as driver:
        settle(driver, place)
        feed = Feed(driver)
        feed.add([1, 2, 3])
        driver.advance()
        before = table(place)
        for hour in range(4, 20):
            feed.add([hour, hour + 1])
            driver.advance()
        (day,) = table(place).days
        assert (day.rows, day.files) < (36, 16)
        assert before.to_arrow().num_rows == 3  # its files stay for a while
        driver.clock.advance(5_000)
        for hour in (200, 201):
            feed.add([hour])
            driver.advance()
        assert {day.day for day in table(place).days} == {"2013-01-09"}
        for hour in (202, 203):
            driver.clock.advance(5_000)
            feed.add([hour])
            driver.advance()
        data = [name for name in names_below(place) if "/data/" in name]
        assert len(data) == sum(day.files for day in table(place).days)
        driver.finish()
        assert sum(day.rows for day in table(place).days) == 4


def test_a_compaction_by_hand_beside_the_job_loses_nothing(place: str, tmp_path: Path) -> None:
    with TestDriver(job(), tasks=2) as driver:
        settle(driver, place, merge_files=1000)
        feed = Feed(driver)
        sets = ("--set", f"warehouse.address={place}", "--set", f"state.dir={tmp_path / 'hand'}")
        for hour in range(6):
            feed.add([hour, hour + 24])
            driver.advance()
            if hour % 2:
                done("warehouse", "compact", "events", *sets)
        assert len([name for name in names_below(place) if "/fence/" in name]) == 1
        driver.finish()
        assert numbers(place) == Counter(range(feed.rows))


def test_a_table_that_is_gone_is_waited_for(place: str) -> None:
    """As long as somebody may put it back: the epoch is committed."""
    with TestDriver(job(), tasks=2) as driver:
        settle(driver, place)
        feed = Feed(driver)
        feed.add([1, 2])
        driver.advance()
        held = {name: get_object(f"{place}/{name}") for name in names_below(place)}
        for name in held:
            remove_object(f"{place}/{name}")
        feed.add([3])
        with pytest.raises(UnavailableError, match=r"/events is gone; put it back"):
            driver.advance()
        for name, data in held.items():
            put_object(f"{place}/{name}", data)
        driver.finish()
        assert numbers(place) == Counter(range(3))


def test_a_bad_line_loses_and_doubles_nothing(
    place: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in ten requests gets lost, or its answer, or is answered 503."""
    proxy, rng = FaultyProxy(s3.port), random.Random(6)

    def choose(method: str, path: str) -> Fault | None:
        faults: list[Fault | None] = ["lose request", "lose answer", "unavailable"]
        return rng.choice(faults) if rng.random() < 0.1 else None

    proxy.choose = choose
    with monkeypatch.context() as through:
        through.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        forget_storages()
        with TestDriver(job(), tasks=2) as driver:
            settle(driver, place)
            feed = Feed(driver)
            for hour in range(0, 48, 6):
                feed.add([hour, hour + 1])
                driver.advance()
            driver.finish()
        proxy.close()
    forget_storages()
    assert numbers(place) == Counter(range(feed.rows))


def test_commands_and_readers(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They know it by its address; DuckDB reads copies, no more than the host keeps."""
    with TestDriver(job(), tasks=2) as driver:
        settle(driver, place)
        feed = Feed(driver)
        feed.add([1, 2, 30])
        driver.finish()
    sets = ("--set", f"warehouse.address={place}", "--set", f"state.dir={tmp_path / 'hand'}")
    assert "events" in done("warehouse", "ls", *sets)
    assert f"hr.warehouse.Table('{place}/events')" in done("warehouse", "describe", "events", *sets)
    query = "select ds, count(*) as n from events group by ds order by ds"
    said = done("warehouse", "sql", query, *sets)
    assert [line.split() for line in said.splitlines()[-2:]] == [
        ["2013-01-01", "2"],
        ["2013-01-02", "1"],
    ]
    with caching(100), pytest.raises(InvalidInputError, match=r"raise storage\.cache_bytes"):
        table(place).files()
    with caching(100):
        assert numbers(place) == Counter(range(3))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_STATE_DIR", ".")
    assert numbers(place) == Counter(range(3))
    later = f"{place}/events/_table/versions/{table(place).version + 1:012d}.json"
    put_object(later, b'{"later": {}}')
    with pytest.raises(CorruptDataError, match="nothing that this release knows"):
        table(place)
    remove_object(later)
    named = hr.warehouse.named_table(place, "events")
    assert (named.name, named.job, named.is_remote) == ("events", "history", True)
    with pytest.raises(InvalidInputError, match="no table 'event' in warehouse s3://"):
        hr.warehouse.named_table(place, "event")


def test_what_cannot_be_there_is_refused(place: str) -> None:
    with TestDriver(job(format="delta"), tasks=2) as driver:
        settle(driver, place)
        with pytest.raises(InvalidInputError, match=r"format='parquet' there, or a folder"):
            driver.start()
    with TestDriver(job(), tasks=2) as driver:
        settle(driver, place)
        put_object(f"{place}/events/other.txt", b"x")
        with pytest.raises(InvalidInputError, match="files that are of no table; found"):
            driver.advance(force=True)
