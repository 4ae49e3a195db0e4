"""A process holds one copy of each table, at the offsets of the epoch that it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.errors import InternalError
from headrace.files import Files
from headrace.plan import StreamInfo, plan
from headrace.plan.stages import JobPlan
from headrace.runtime.slot_host import BroadcastTables
from headrace.testing import ManualClock

RATES = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])


def planned(*columns: str) -> JobPlan:
    def build(g: hr.Graph) -> None:
        table = hr.broadcast("rates", stream="rates", key="k")
        joined = g.input("in").join_table(table, on="id", columns=columns)
        joined.send_to(g.output("out"))

    streams = {
        "in": StreamInfo(pa.schema([("id", pa.int64())]), 1),
        "rates": StreamInfo(RATES, 1),
    }
    return plan(hr.job("job")(build).build(), streams)


@pytest.fixture
def bus() -> Bus:
    bus = open_bus("memory:")
    bus.create(StreamSpec("rates", 1, RATES))
    return bus


def append(bus: Bus, *rows: tuple[Any, ...]) -> None:
    named = [dict(zip(RATES.names, row, strict=True)) for row in rows]
    bus.stream("rates").append(0, pa.RecordBatch.from_pylist(named, schema=RATES))


def seen(tables: BroadcastTables, made: JobPlan, upto: int) -> list[dict[str, Any]]:
    return tables.at(made, ["rates"], {"rates": [upto]})["rates"].batch.to_pylist()


def test_each_epoch_sees_its_offsets_also_an_older_one(bus: Bus, tmp_path: Path) -> None:
    tables, made = BroadcastTables(bus, Files(sync=False), tmp_path), planned("v")
    append(bus, (1, 10, 0), (1, 11, 0))
    append(bus, (1, 12, 0), (1, None, None))
    table = tables.at(made, ["rates"], {"rates": [0]})["rates"]
    for upto, value in ((0, None), (1, 10), (2, 11), (3, 12), (4, None), (2, 11), (3, 12)):
        expected = [] if value is None else [{"k": 1, "v": value}]
        assert seen(tables, made, upto) == expected
        assert tables.at(made, ["rates"], {"rates": [upto]})["rates"] is table
    assert tables.at(made, [], {}) == {}


def test_a_plan_with_other_columns_reads_the_table_again(bus: Bus, tmp_path: Path) -> None:
    tables = BroadcastTables(bus, Files(sync=False), tmp_path)
    append(bus, (1, None, 5))
    assert seen(tables, planned("v"), 1) == [{"k": 1, "v": None}]  # w says that it lives
    assert seen(tables, planned("v", "w"), 1) == [{"k": 1, "v": None, "w": 5}]


def test_an_order_without_offsets_is_a_broken_promise(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="has 1 partitions, found 0 offsets"):
        BroadcastTables(bus, Files(sync=False), tmp_path).at(planned("v"), ["rates"], {})


def test_a_delete_that_was_compacted_away_is_not_missed(tmp_path: Path) -> None:
    """By a process that was away for so long that it has still the row it deletes."""
    clock = ManualClock()
    with open_bus("memory:", clock=clock) as bus:
        stream = bus.create(StreamSpec("rates", 1, RATES, key=("k",), compact=True))
        stream.configure(keep_deletes_ms=1)
        tables, made = BroadcastTables(bus, Files(sync=False), tmp_path), planned("v")
        append(bus, (1, 10, 0), (2, 20, 0))
        assert len(seen(tables, made, 2)) == 2
        append(bus, (1, None, None), (3, 30, 0))
        for _ in range(2):
            stream.compact(0)
            clock.advance(10)
        append(bus, (4, 40, 0))
        assert sorted(row["k"] for row in seen(tables, made, 5)) == [2, 3, 4]
