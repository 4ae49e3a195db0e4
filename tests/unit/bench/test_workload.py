"""The benchmark's messages are the same everywhere, and its check of the counts is a check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headrace.bench.readwrite import (
    PARTITIONS,
    counted,
    counting_job,
    create_stream,
    feed,
    random_ids,
    write_parquet,
)
from headrace.testing import TestDriver


def test_ids_are_uniform_in_range_and_the_same_each_time() -> None:
    ids = random_ids(10_000, 100)
    assert (ids.min(), ids.max()) == (1, 100)
    assert (ids == random_ids(10_000, 100)).all()


@pytest.mark.parametrize("path", ["message", "batch"])
@pytest.mark.parametrize("store", ["rocksdb", "memory"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("key", ["int", "string"])
def test_all_messages_are_counted(path: str, store: str, whole: bool, key: str) -> None:
    """The check reads what was committed, whatever path, store and messages made it."""
    job = counting_job(path, store, whole=whole, key=key)
    with TestDriver(job, key_groups=512) as driver:
        stream = create_stream(driver.bus, key)
        for seed in (1, 2):
            feed(stream, random_ids(1_001, 300, seed))
            driver.run()
        assert min(stream.ends()) > 0
        state = driver.coordinator.state
        assert counted(job, driver.bus, driver.settings, state) == 2_002


def test_every_partition_gets_messages_even_when_there_are_few() -> None:
    with TestDriver(counting_job("message", "memory")) as driver:
        stream = create_stream(driver.bus)
        feed(stream, random_ids(PARTITIONS, 10))
        assert stream.ends() == [1] * PARTITIONS


def test_parquet_files_hold_the_messages_in_order(tmp_path: Path) -> None:
    ids = random_ids(100, 1_000)
    write_parquet(tmp_path / "in", ids, [0, 10, 50])
    found = [pq.read_table(file)["id"].to_numpy() for file in sorted(tmp_path.glob("in/*"))]
    assert [len(part) for part in found] == [10, 40]
    assert (np.concatenate(found) == ids[:50]).all()
