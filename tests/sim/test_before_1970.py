"""Event times before 1970: every kind of state, joins and files equal a plain computation."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sim.world import World, make_job
from tests.support.soak import crossed

import headrace as hr
from headrace.testing import TestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


def ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


APOLLO = ms(datetime(1969, 7, 16, 13, 32, tzinfo=UTC))
FIRST_YEAR = ms(datetime(1, 1, 1, 0, 1, tzinfo=UTC))
BEGINS = {"1969": APOLLO, "into 1970": -60_000, "the year 1": FIRST_YEAR}


@pytest.mark.parametrize(("begin", "store"), crossed(list(BEGINS), ["rocksdb", "memory"]))
def test_every_kind_of_state_equals_the_model(begin: str, store: str) -> None:
    """Across killed slots and drivers, a lost disk, and other numbers of tasks."""
    tables = "columnar" if store == "rocksdb" else None
    job = make_job(store, tables, via=["name"])
    with TestDriver(job, tasks=2, memory_bus=False) as driver:
        world = World(driver, random.Random(5), BEGINS[begin])
        world.feed(80)
        driver.run()
        world.feed(60)
        assert driver.advance_with_crash("slot.segment_written")
        world.feed(60)
        assert driver.advance_with_crash("commit.written")
        driver.run()
        driver.crash(lose_hosts=[0])
        world.feed(60)
        driver.run()
        driver.crash()
        world.feed(60)
        driver.finish()
        world.check()


@hr.job("pairs")
def pairs(g: hr.Graph) -> None:
    left, right = (
        g.input(name, time="at", out_of_orderness="5s").partition_by("k")
        for name in ("left", "right")
    )
    left.join(right, before="20s", after="10s", how="full", suffix="_r").send_to(g.output("out"))


def test_a_join_equals_all_pairs_across_kills() -> None:
    rng = random.Random(3)
    log: list[tuple[str, dict[str, Any]]] = [
        (rng.choice(["left", "right"]), {"k": rng.choice("abc"), "at": -40_000 + 400 * n, "n": n})
        for n in range(200)
    ]
    with TestDriver(pairs, tasks=2, memory_bus=False) as driver:
        for stream in ("left", "right"):
            driver.create(stream, {"k": pa.string(), "at": pa.int64(), "n": pa.int64()}, time="at")
        for begin in range(0, 200, 25):
            for stream, row in log[begin : begin + 25]:
                driver.feed(stream, [row])
            driver.advance_with_crash(rng.choice(["slot.ran", "commit.published"]))
            if begin == 100:
                driver.crash(lose_hosts=[0])
        driver.finish()
        found = Counter((row["n"], row["n_r"]) for row in driver.output("out"))
    left, right = ([row for name, row in log if name == side] for side in ("left", "right"))
    wanted = Counter(
        (a["n"], b["n"])
        for a in left
        for b in right
        if a["k"] == b["k"] and -20_000 <= b["at"] - a["at"] <= 10_000
    )
    assert len(wanted) > 200
    alone = [row["n"] for row in left if row["n"] not in {n for n, _ in wanted}]
    alone_r = [row["n"] for row in right if row["n"] not in {n for _, n in wanted}]
    wanted.update((n, None) for n in alone)
    wanted.update((None, n) for n in alone_r)
    assert found == wanted


@hr.job("days")
def days(g: hr.Graph) -> None:
    events = g.input("events", schema={"id": int, "at": datetime}, time="at", out_of_orderness="1h")
    events.send_to(g.output_table("events"))
    events.window(hr.tumbling("1d"), n=hr.agg.count()).send_to(g.output("counts"))


def write(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "csv":
        path.write_text("id,at\n" + "".join(f"{r['id']},{r['at'].isoformat()}\n" for r in rows))
    else:
        path.write_text("".join(json.dumps({**r, "at": ms(r["at"])}) + "\n" for r in rows))
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_files_of_old_rows_go_to_folders_by_day(form: str, tmp_path: Path) -> None:
    times = [EPOCH + timedelta(milliseconds=APOLLO + 7 * HOUR_MS * n + 1) for n in range(40)]
    rows = [{"id": n, "at": at} for n, at in enumerate(times)]
    inputs = {"events": {"files": [str(write(tmp_path, form, rows))]}}
    with TestDriver(days, inputs=inputs, max_rows=9, memory_bus=False) as driver:
        driver.advance()
        assert driver.advance_with_crash("commit.published")
        driver.finish()
        wanted = Counter(at.date() for at in times)
        assert wanted == {row["window_start"].date(): row["n"] for row in driver.output("counts")}
        folder = driver.settings.warehouse_dir / "events"
        found = pl.read_parquet(folder / "*/*.parquet", hive_partitioning=True).sort("id")
        assert found["at"].to_list() == times
        assert wanted == Counter(found["ds"].to_list())
        table = hr.warehouse.Table(folder)
        assert [day.day for day in table.days] == sorted(map(str, wanted))
