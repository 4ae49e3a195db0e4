"""The manifest pins its segments: a valid file with other content is refused."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.sim.world import World, make_job
from tests.support.faults import forge_segment

import headrace as hr
from headrace.errors import CorruptDataError
from headrace.testing import TestDriver


class Count:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


def test_a_swapped_segment_is_found_when_a_store_is_rebuilt() -> None:
    """Same job, lineage, epoch, stores and size, one value changed: not the file committed."""
    with TestDriver(make_job("memory"), tasks=1, slots=1) as driver:
        world = World(driver, random.Random(2))
        world.feed(50)
        driver.run()
        (path,) = (driver.storage / "segment").iterdir()
        forge_segment(path)
        driver.crash(lose_hosts=[0])
        world.feed(50)
        with pytest.raises(CorruptDataError, match=path.name):
            driver.advance()


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_it_is_found_where_a_store_of_values_is_all_there_is(kind: str) -> None:
    @hr.job("counts")
    def counts(g: hr.Graph) -> None:
        stream = g.input("events", schema={"id": int}).partition_by("id")
        stream.process(Count, [hr.store("n", int, kind)], name="count")

    with TestDriver(counts, tasks=1, slots=1) as driver:
        driver.create("events", {"id": pa.int64()})
        driver.feed("events", [{"id": n} for n in range(50)])
        driver.run()
        (path,) = (driver.storage / "segment").iterdir()
        forge_segment(path)
        driver.crash(lose_hosts=[0])
        driver.feed("events", [{"id": 1}])
        with pytest.raises(CorruptDataError, match=path.name):
            driver.advance()
