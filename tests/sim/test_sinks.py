"""A crash at every named step while epochs go to file sinks: each row is there once."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.sim.processors import Numbered
from tests.support.homes import rows_in

import headrace as hr
from headrace import Job
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.testing import TestDriver


def job(sink: Any) -> Job:
    @hr.job("numbered")
    def numbered(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("user")
        keyed.process(Numbered, {"n": int}, returns={"user": str, "number": int}).send_to(sink)

    return numbered


def feed(driver: TestDriver, fed: Counter[str], count: int) -> None:
    users = [f"user {number % 7}" for number in range(count)]
    fed.update(users)
    driver.feed("in", [{"user": user} for user in users])


def check(folder: Path, fed: Counter[str]) -> None:
    """Every message made one row, whose number tells that none before it was lost or doubled."""
    found = pl.concat([pl.read_parquet(path) for path in hr.sinks.committed_files(folder)])
    wanted = sorted((user, n) for user, count in fed.items() for n in range(1, count + 1))
    assert sorted(found.rows()) == wanted


@pytest.mark.parametrize("point", ["commit.published", "sink.sent", "sink.committed"])
def test_plain_readers_see_whole_epochs_after_every_crash(point: str, tmp_path: Path) -> None:
    """Without merging the folder itself holds committed epochs and nothing else."""
    folder = tmp_path / "out"
    fed: Counter[str] = Counter()
    with TestDriver(job(hr.sinks.parquet(folder)), tasks=3) as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        for _ in range(4):
            feed(driver, fed, 25)
            assert driver.advance_with_crash(point)
            rows = sum(pl.read_parquet(path).height for path in folder.glob("*/*.parquet"))
            assert rows % 25 == 0
            assert rows <= sum(fed.values())
        driver.run()
        rows = sum(pl.read_parquet(path).height for path in folder.glob("*/*.parquet"))
        assert rows == sum(fed.values())
        check(folder, fed)


def test_a_file_that_was_damaged_after_its_commit_reaches_no_sink(tmp_path: Path) -> None:
    """Of one byte that changed, and not of the size: who restarts says which file, each time."""
    folder, fed = tmp_path / "out", Counter[str]()
    with TestDriver(job(hr.sinks.parquet(folder))) as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        feed(driver, fed, 25)
        assert driver.advance_with_crash("commit.published")
        waiting = [path for path in driver.home.rglob("*.parquet") if folder not in path.parents]
        assert waiting
        whole = waiting[0].read_bytes()
        waiting[0].write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        for _ in range(2):
            with pytest.raises(CorruptDataError, match="sends to its sink, is damaged") as found:
                driver.run()
            assert waiting[0].name in str(found.value)
            driver.crash()
        assert list(folder.glob("*/*.parquet")) == []
        waiting[0].write_bytes(whole)
        driver.run()
        check(folder, fed)


def test_a_sink_is_taken_out_of_a_job_only_when_it_has_confirmed_its_rows(tmp_path: Path) -> None:
    folder, fed = tmp_path / "out", Counter[str]()

    @hr.job("numbered")
    def without(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("user")
        keyed.process(Numbered, {"n": int}, returns={"user": str, "number": int}).send_to("out")

    with TestDriver(job(hr.sinks.parquet(folder))) as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        feed(driver, fed, 25)
        with_sink = driver.job
        assert driver.advance_with_crash("commit.published")
        driver.job = without
        with pytest.raises(InvalidInputError, match="which the graph no longer has"):
            driver.run()
        driver.crash()
        driver.job = with_sink
        driver.run()
        check(folder, fed)
        driver.crash()
        driver.job = without
        feed(driver, Counter(), 25)
        driver.run()
        check(folder, fed)
        assert len(rows_in(driver.bus, "out")) == 25


@pytest.mark.parametrize("merge_epochs", [None, 3])
def test_readers_beside_the_job_see_whole_epochs_and_no_row_twice(
    merge_epochs: int | None, tmp_path: Path
) -> None:
    """A reader that never pauses sees what it has seen, and more; never a part of an epoch."""
    folder, each = tmp_path / "out", 21
    merging: dict[str, Any] = (
        {} if merge_epochs is None else {"merge_bytes": 1 << 30, "merge_epochs": merge_epochs}
    )
    fed: Counter[str] = Counter()
    seen: list[int] = []
    over = threading.Event()

    def read() -> None:
        last = False
        while not last:
            last = over.is_set()
            files = hr.sinks.committed_files(folder)
            rows = [row for path in files for row in pl.read_parquet(path).rows()]
            assert len(set(rows)) == len(rows)
            seen.append(len(rows))
            if merge_epochs is None:
                plain = [pl.read_parquet(path).height for path in folder.glob("*/*.parquet")]
                seen.append(sum(plain))

    with TestDriver(job(hr.sinks.parquet(folder, **merging)), tasks=3) as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        driver.start()
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read)
            for _ in range(20):
                feed(driver, fed, each)
                driver.run()
            over.set()
            reader.result()
    assert seen == sorted(seen)
    assert all(rows % each == 0 for rows in seen)
    check(folder, fed)


def test_a_host_lost_behind_its_copy_sends_what_came_after_it_again(tmp_path: Path) -> None:
    """What the copy has is there once; a later epoch at least once, under another lineage."""
    folder = tmp_path / "out"
    with TestDriver(job(hr.sinks.parquet(folder)), durability="backup(30s)") as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        fed: Counter[str] = Counter()
        feed(driver, fed, 14)
        driver.run()
        driver.copy()
        feed(driver, fed, 7)
        driver.run()
        driver.crash(lose_hosts=[0])
        [lease] = driver.home.glob("**/lease.json")
        os.utime(lease, (0, 0))  # its driver has been silent for long
        driver.run()
    found = pl.concat([pl.read_parquet(path) for path in hr.sinks.committed_files(folder)])
    times = Counter(found.rows())
    assert {n for (_, number), n in times.items() if number <= 2} == {1}
    assert {n for (_, number), n in times.items() if number == 3} == {2}
    assert len(times) == 21
