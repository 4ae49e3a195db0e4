"""How far timers may go before a row, given the rows of its key group that come later."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.runtime.chunk import Chunk
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.process import passed_times


def chunk(times: list[int], groups: list[int]) -> Chunk:
    batch = pa.RecordBatch.from_arrays([pa.nulls(len(times))], ["row"])
    unknown = np.full(len(times), NO_WATERMARK, np.int64)
    return Chunk(batch, np.array(times), unknown, np.array(groups, np.uint16))


def test_a_key_group_may_be_in_several_places_of_a_chunk() -> None:
    marks = passed_times([chunk([50, 10, 20, 60], [0, 1, 0, 1])])
    assert marks is not None
    assert [one.tolist() for one in marks] == [[20, 10, 20, 60]]


def test_a_later_chunk_bounds_by_the_least_of_all_places_of_a_key_group() -> None:
    marks = passed_times([chunk([90], [0]), chunk([20, 10, 70], [0, 1, 0])])
    assert marks is not None
    assert [one.tolist() for one in marks] == [[20], [20, 10, 70]]
