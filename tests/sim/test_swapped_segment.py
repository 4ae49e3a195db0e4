"""The manifest pins its segments: a valid file with other content is refused."""

from __future__ import annotations

import os
import random

import pytest
from tests.sim.world import World, make_job

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.state.segment_reader import SegmentReader
from headrace.state.segment_writer import SegmentWriter
from headrace.testing.driver import TestDriver


def test_a_swapped_segment_is_found_when_a_store_is_rebuilt() -> None:
    """Same job, lineage, epoch, stores and size, one value changed: not the file committed."""
    with TestDriver(make_job("memory"), tasks=1, slots=1) as driver:
        world = World(driver, random.Random(2))
        world.feed(50)
        driver.run()
        (path,) = (driver.storage / "segment").iterdir()
        files = Files(sync=False)
        held = SegmentReader(files, path)
        forged = path.with_name("forged")
        writer = SegmentWriter(files, forged, held.header)
        for section in held.sections:
            for keys, values in held.task_batches(section.stage, section.task, section.store):
                last = values[-1]
                changed = [*values[:-1], last and last[:-1] + bytes([last[-1] ^ 1])]
                writer.add(section.stage, section.task, section.store, keys, changed)
        writer.close()
        os.replace(forged, path)
        driver.crash(lose_hosts=[0])
        world.feed(50)
        with pytest.raises(CorruptDataError, match=path.name):
            driver.advance()
