"""Functions with state take the rows of a key together; what they made them of stays known."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.graph.processors import KeyedBatchProcessor
from headrace.testing import TestDriver

OUT = pa.schema([("v", pa.int64())])


class LastOfKey(KeyedBatchProcessor):
    def prepare(self, rows: pa.RecordBatch, context: Any) -> list[int]:
        return [row["v"] for row in rows.to_pylist()]

    def process_rows(self, prepared: list[int], rows: slice, context: Any) -> None:
        context.emit({"v": prepared[rows][-1]})


def divide(message: Any) -> dict[str, Any]:
    return {"v": 12 // message.v}


@hr.job("last")
def last_of_keys(g: hr.Graph) -> None:
    last = g.input("in").partition_by("k").process(partial(LastOfKey), returns=OUT)
    last.map(divide, returns=OUT, on_error="dead_letter").send_to(g.output("out"))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_dead_letter_names_the_last_record_of_its_key(tmp_path: Path, partitions: int) -> None:
    with TestDriver(last_of_keys, home=tmp_path, tasks=2, key_groups=8) as driver:
        driver.create("in", {"k": pa.int64(), "v": pa.int64()}, partitions=partitions)
        for partition in range(partitions):
            rows = [(1, 1), (1, 0), (2, 0), (3, 2)]
            driver.feed("in", [{"k": k, "v": v} for k, v in rows], partition=partition)
        driver.advance()
        letters = driver.output("last.dead")

    assert [one["stream"] for one in letters] == ["in"] * 2
    assert sorted(one["offset"] for one in letters) == [1, 2]
