"""Nexmark's queries as SQL apps: what they come to, killed and cut anywhere, equals DuckDB."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.soak import more
from tests.support.sql import POINTS, Row, assert_same, duckdb_session

from headrace.bench.nexmark import (
    CHANGING,
    QUERIES,
    SIDE_INPUT,
    STREAMS,
    make_events,
    query_names,
)
from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

EVENTS, RATE = 3_000, 100
"""Thirty seconds of event time: several windows of each kind."""

LONG = dict.fromkeys(("q4", "q9"), (6_000, 250))
"""Events and rate of those that see auctions end."""


@cache
def tables_of(events: int, rate: int) -> Mapping[str, pa.Table]:
    return {**make_events(0, events, rate=rate)._asdict(), "side_input": SIDE_INPUT}


def in_duckdb(name: str, tables: Mapping[str, pa.Table]) -> list[Row]:
    with duckdb_session() as connection:
        connection.execute("set timezone = 'UTC'")
        for stream, table in tables.items():
            connection.register("rows", table)
            connection.execute(f"create temp table {stream} as select * from rows")
        found = connection.execute((QUERIES / "duckdb" / f"{name}.sql").read_text())
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def played(name: str, seed: int, tables: Mapping[str, pa.Table]) -> list[Row]:
    """Run a query over events in epochs of any size, with crashes; return what counts of it."""
    dice = random.Random(seed)
    app = load_app(SqlText((QUERIES / f"{name}.sql").read_text(), f"{name}.sql"))
    read = {table.stream.text for table in app.statements.inputs}
    with TestDriver(app.job, tasks=2, slots=2) as driver:
        for stream in read:
            columns = dict(
                zip(tables[stream].column_names, tables[stream].schema.types, strict=True)
            )
            time = "dateTime" if "dateTime" in columns else None
            driver.create(stream, columns, partitions=2, time=time)
        if "side_input" in read:
            driver.feed("side_input", SIDE_INPUT)
        cuts = dict.fromkeys(read & set(STREAMS), 0)
        while any(cuts[stream] < len(tables[stream]) for stream in cuts):
            share = dice.uniform(0.1, 0.4)
            for stream, at in cuts.items():
                count = 1 + int(len(tables[stream]) * share)
                driver.feed(stream, tables[stream].slice(at, count))
                cuts[stream] = at + count
            if dice.random() < 0.3:
                driver.advance_with_crash(dice.choice(POINTS))
            else:
                driver.advance()
            driver.clock.advance(12_000)
        driver.finish()
        rows = [row for stream in app.tables.values() for row in driver.output(stream)]
        if not app.tables:
            files = driver.home.glob("warehouse/bid_log/*/*.parquet")
            rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    if name == "q12":
        return _summed(rows)
    by = CHANGING.get(name)
    return rows if by is None else list({tuple(row[c] for c in by): row for row in rows}.values())


def _summed(rows: list[Row]) -> list[Row]:
    """Add up windows of the clock, as no other clock has the same."""
    totals: dict[object, int] = {}
    for row in rows:
        assert row["window_end"] - row["window_start"] == datetime.timedelta(seconds=10)
        totals[row["bidder"]] = totals.get(row["bidder"], 0) + row["bid_count"]
    assert len({row["window_start"] for row in rows}) > 2
    return [{"bidder": bidder, "bid_count": count} for bidder, count in totals.items()]


@pytest.mark.parametrize("name", query_names())
@pytest.mark.parametrize("seed", more(range(1), range(10), share=20))
def test_a_query_comes_to_what_duckdb_does(name: str, seed: int) -> None:
    events, rate = LONG.get(name, (EVENTS, RATE))
    tables = tables_of(events, rate)
    expected = in_duckdb(name, tables)
    assert expected
    assert_same(played(name, seed, tables), expected, name)


def test_all_queries_are_there_but_one() -> None:
    assert query_names() == [f"q{number}" for number in range(23) if number != 6]


def test_events_do_not_depend_on_how_they_are_cut() -> None:
    events = make_events(0, EVENTS, rate=RATE)
    parts = [make_events(at, 200, rate=RATE) for at in range(0, EVENTS, 200)]
    for stream, schema in STREAMS.items():
        whole = getattr(events, stream)
        assert whole.equals(pa.concat_tables([getattr(part, stream) for part in parts]))
        assert whole.schema == schema
    assert [len(table) for table in events] == [EVENTS // 50, EVENTS * 3 // 50, EVENTS * 46 // 50]
    assert make_events(0, 100, seed=1).bid["price"] != make_events(0, 100).bid["price"]
    with pytest.raises(ValueError, match="multiples of 50"):
        make_events(10, 100)
