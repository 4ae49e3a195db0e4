"""A crash at every step while epochs go to a table of the warehouse: each row is there once."""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.changes import with_settings
from tests.support.limits import limit
from tests.support.soak import more

import headrace as hr
from headrace import Job
from headrace.testing import FAULT_POINTS, TestDriver

STEPS = ("epoch.", "commit.", "slot.", "sink.committed", "warehouse.")
NOT_PASSED = ("epoch.output_published", "slot.merge")
POINTS = [p for p in FAULT_POINTS if p.startswith(STEPS) and not p.startswith(NOT_PASSED)]
BEGIN = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
MOON = dt.datetime(1969, 7, 20, tzinfo=dt.UTC)
COLUMNS = {"at": pa.timestamp("us", "UTC"), "number": pa.int64(), "user": pa.string()}


@pytest.fixture(autouse=True)
def few_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as those of large tables, which are not replaced by each commit."""
    limit(monkeypatch, table_small_bytes=0, table_changes=3)


def job(**options: Any) -> Job:
    @hr.job("history")
    def history(g: hr.Graph) -> None:
        events = g.input("in", time="at", out_of_orderness="2h").partition_by("user")
        events.send_to(g.output_table("events", **options))

    return history


def settle(driver: TestDriver, **aims: Any) -> None:
    with_settings(driver, "warehouse", **{"merge_files": 3, "keep_s": 1.0, **aims})


class Feed:
    """Numbers rows, so that a lost or doubled one shows; hours count from a day on."""

    def __init__(self, driver: TestDriver, begin: dt.datetime = BEGIN) -> None:
        self._driver, self.days = driver, Counter[str]()
        self._begin = begin
        self.rows = 0

    def add(self, hours: list[int]) -> None:
        times = [self._begin + dt.timedelta(hours=hour) for hour in hours]
        self.days.update(time.date().isoformat() for time in times)
        self._driver.feed(
            "in",
            [
                {"at": time, "number": self.rows + n, "user": f"u{(self.rows + n) % 5}"}
                for n, time in enumerate(times)
            ],
        )
        self.rows += len(hours)


def plain(folder: Path) -> pl.DataFrame:
    """What a reader sees that knows nothing but a pattern."""
    if not list(folder.glob("*/*.parquet")):
        return pl.DataFrame({"number": [], "ds": []}, schema={"number": pl.Int64, "ds": pl.Date})
    return pl.read_parquet(folder / "*/*.parquet", hive_partitioning=True)


def check(folder: Path, feed: Feed) -> None:
    for found in (plain(folder), pl.from_arrow(hr.warehouse.Table(folder).to_arrow())):
        assert isinstance(found, pl.DataFrame)
        assert list(range(feed.rows)) == found["number"].sort().to_list()
        days = Counter(str(day) for day in found["ds"])
        assert feed.days == days
        assert (found["at"].dt.date() == found["ds"]).all()


def test_a_day_is_complete_when_the_watermark_of_all_partitions_has_passed_it() -> None:
    """Behind by the lateness of the input and the grace of the table."""
    with TestDriver(job(allowed_lateness="1h"), tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=2, key=["user"])
        folder, feed = driver.settings.warehouse_dir / "events", Feed(driver)
        mark = folder / "ds=2013-01-01" / "_SUCCESS"
        for hour, is_complete in ((1, False), (24, False), (26, False), (27, True)):
            feed.add([hour] * 5)  # five users, so that both partitions have some
            driver.run()
            assert is_complete == mark.exists()


WAYS = [("add", "parquet"), ("drop", "parquet"), ("dead_letter", "parquet"), ("add", "delta")]


@pytest.mark.parametrize(
    ("late", "form", "epoch_rows"),
    more(
        [(*way, rows) for way, rows in zip([*WAYS, WAYS[0]], [1, 3, 1, 3, 1000], strict=True)],
        [(*way, rows) for way in WAYS for rows in (1, 3, 1000)],
    ),
)
def test_which_rows_are_late_does_not_depend_on_epochs(
    late: str, form: str, epoch_rows: int
) -> None:
    """Each row by the watermark of its own partition, as it was before the row."""
    hours = [1, 30, 5, 24, 23, 60, 20, 47, 21, 62, 61, 2]
    high, wanted, late_by_day = -1, [], Counter[str]()
    for hour in hours:
        day_ends = (hour // 24 + 1) * 24
        is_late = day_ends <= high - 2
        if is_late:
            late_by_day[f"2013-01-{1 + hour // 24:02d}"] += 1
        if late == "add" or not is_late:
            wanted.append(hour)
        high = max(high, hour)
    with TestDriver(job(late=late, format=form), tasks=3, max_rows=epoch_rows) as driver:
        settle(driver)
        driver.create("in", COLUMNS, partitions=1, key=["user"])
        folder, feed = driver.settings.warehouse_dir / "events", Feed(driver)
        feed.add(hours)
        driver.finish()
        found = plain(folder)["at"].sort().to_list()
        assert [BEGIN + dt.timedelta(hours=hour) for hour in sorted(wanted)] == found
        told = {day.day: day.late_rows for day in hr.warehouse.Table(folder).days if day.late_rows}
        assert told == (late_by_day if late == "add" else {})
        refused = len(hours) - len(wanted)
        assert refused == (0 if late == "add" else 6)
        if late == "dead_letter":
            assert refused == len(driver.output("history.dead"))


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_jobs_streams_and_tables_in_folders_by_address(tmp_path: Path, form: str) -> None:
    """As in the folders of the home, which has none of them then."""
    own = {name: tmp_path / name for name in ("jobs", "bus", "tables")}
    at = {name: f"file://{folder}" for name, folder in own.items()}
    with TestDriver(job(format=form), tasks=2, storage=at["jobs"], bus=at["bus"]) as driver:
        settle(driver, address=at["tables"])
        driver.create("in", COLUMNS, partitions=1, key=["user"])
        feed = Feed(driver)
        feed.add([1, 2, 30])
        driver.advance_with_crash("commit.published")
        feed.add([31, 3])
        driver.finish()
        assert sorted(plain(own["tables"] / "events")["number"].to_list()) == list(range(5))
        assert (own["jobs"] / "history" / "manifests").is_dir()
        assert (own["bus"] / "streams" / "in").is_dir()
        assert not set(own) & {path.name for path in driver.home.iterdir()}


@given(
    hours=st.lists(st.integers(0, 100), max_size=60),
    cuts=st.lists(st.integers(1, 20), max_size=12),
    crashes=st.lists(st.sampled_from(POINTS), max_size=3),
    begin=st.sampled_from([BEGIN, MOON, dt.datetime(1969, 12, 30, tzinfo=dt.UTC)]),
)
def test_the_table_is_the_rows_by_day_however_epochs_are_cut(
    hours: list[int], cuts: list[int], crashes: list[str], begin: dt.datetime
) -> None:
    """Against a count by day, with crashes anywhere."""
    with TestDriver(job(), tasks=2, max_rows=7) as driver:
        settle(driver)
        driver.create("in", COLUMNS, partitions=2, key=["user"])
        folder, feed = driver.settings.warehouse_dir / "events", Feed(driver, begin)
        for cut in cuts:
            part, hours = hours[:cut], hours[cut:]
            feed.add(part)
            if crashes:
                driver.advance_with_crash(crashes.pop())
        driver.finish()
        if feed.rows:
            check(folder, feed)


def test_readers_beside_the_job_see_no_row_twice_and_lose_none() -> None:
    """By a pattern and by the snapshot, while days grow and are compacted."""
    over, seen, patterns = threading.Event(), [0], [0]
    with TestDriver(job(), tasks=3) as driver:
        settle(driver)
        driver.create("in", COLUMNS, partitions=2, key=["user"])
        folder, feed = driver.settings.warehouse_dir / "events", Feed(driver)
        driver.start()

        def read() -> None:
            last = False
            while not last:
                last = over.is_set()
                numbers = hr.warehouse.Table(folder).to_arrow()
                found = numbers["number"].to_pylist() if numbers.num_rows else []
                assert len(set(found)) == len(found)
                seen.append(len(found))
                try:
                    rows = plain(folder)["number"].to_list()
                except (FileNotFoundError, pl.exceptions.ComputeError):
                    continue  # a day was replaced since it was listed
                assert len(set(rows)) == len(rows)
                patterns.append(len(rows))

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read)
            for epoch in range(25):
                feed.add([epoch * 2 + n for n in range(10)])
                driver.run()
            over.set()
            reader.result()
        check(folder, feed)
    assert seen == sorted(seen)
    assert patterns == sorted(patterns)
    assert all(rows % 10 == 0 for rows in seen)
