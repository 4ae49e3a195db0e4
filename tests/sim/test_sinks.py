"""A crash at every named step while epochs go to file sinks: each row is there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.faults import FAULT_POINTS
from headrace.graph.jobs import Job
from headrace.testing import TestDriver

ONCE_OFF = ("bus.", "copy.", "rescale.", "set_back.", "slot.merge", "epoch.output_published")
POINTS = [point for point in FAULT_POINTS if not point.startswith(ONCE_OFF)]
READ: dict[str, Any] = {"parquet": pl.read_parquet, "jsonl": pl.read_ndjson, "csv": pl.read_csv}
MAKE = {"parquet": hr.sinks.parquet, "jsonl": hr.sinks.json_lines, "csv": hr.sinks.csv}


class Numbered:
    """Counts the messages of each user: the n-th of a user is another row than any other."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        number = store.get(message.user, 0) + 1
        store.put(message.user, number)
        context.emit({"user": message.user, "number": number})


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


def check(folder: Path, form: str, fed: Counter[str]) -> None:
    """Every message made one row, whose number tells that none before it was lost or doubled."""
    found = pl.concat([READ[form](path) for path in hr.sinks.committed_files(folder)])
    wanted = sorted((user, n) for user, count in fed.items() for n in range(1, count + 1))
    assert sorted(found.rows()) == wanted


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("point", POINTS)
def test_crash_at_every_step_loses_and_doubles_nothing(
    point: str, form: str, tmp_path: Path
) -> None:
    """Whoever passes a point dies there, twice: the next attempt or driver ends the epoch."""
    folder = tmp_path / "out"
    sink = MAKE[form](folder, merge_bytes=1 << 30, merge_epochs=2, keep="1s")
    fed: Counter[str] = Counter()
    with TestDriver(job(sink), tasks=3) as driver:
        driver.create("in", {"user": pa.string()}, partitions=2, key=["user"])
        for count in (20, 1, 20):
            feed(driver, fed, count)
            driver.advance()
            driver.clock.advance(1_500)
        for nth in (1, 2):
            feed(driver, fed, 30)
            assert driver.advance_with_crash(point, nth) or nth == 2
            driver.run()
            check(folder, form, fed)
        driver.finish()
        check(folder, form, fed)


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
        check(folder, "parquet", fed)
