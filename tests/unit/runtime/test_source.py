"""Reading a range: each record has the watermark just before it, whatever chunks it comes in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.limits import limit

from headrace.bus.address import open_bus
from headrace.bus.bus import Stream
from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.plan.stages import InputBinding
from headrace.runtime.orders import NO_WATERMARK, InputRange, Reached
from headrace.runtime.source import SourceReader
from headrace.testing import ManualClock

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.int64())])


def stream_of(times: list[int], appends: int = 3) -> Stream:
    stream = open_bus("memory:", clock=ManualClock()).create(StreamSpec("in", 1, SCHEMA, "at"))
    for begin in range(0, len(times), appends):
        part = times[begin : begin + appends]
        stream.append(0, pa.table({"n": range(begin, begin + len(part)), "at": part}, SCHEMA))
    return stream


def reader(
    stream: Stream, start: int, stop: int, max_time: int = NO_WATERMARK, **more: Any
) -> SourceReader:
    columns = more.pop("columns", ("n",))
    time = more.pop("time", "at")
    binding = InputBinding("i", "in", 1, SCHEMA, columns, time, 5)
    wanted = InputRange("i", 0, start, stop, max_time)
    return SourceReader(stream, binding, wanted, timed=more.pop("timed", True), **more)


def never() -> bool:
    return False


TIMES = st.lists(st.integers(-25, 25), min_size=1, max_size=20)


@given(times=TIMES, data=st.data())
def test_watermarks_depend_on_the_log_alone(times: list[int], data: Any) -> None:
    """Cut into any ranges and chunks, each record carries what was seen before it, no more."""
    cut = data.draw(st.integers(0, len(times)))
    size = data.draw(st.sampled_from([1, 4, 100]))
    stream = stream_of(times)
    found: list[tuple[int, int, int]] = []
    seen = NO_WATERMARK
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, chunk_rows=size)
        for start, stop in [(0, cut), (cut, len(times))]:
            own = reader(stream, start, stop, seen)
            for chunk in own.chunks(never):
                assert chunk.batch.schema.names == ["n"]
                assert chunk.times is not None
                assert chunk.watermarks is not None
                numbers = chunk.batch.column(0).to_pylist()
                marks = chunk.watermarks.tolist()
                found += zip(numbers, chunk.times.tolist(), marks, strict=True)
            reached = own.reached()
            seen = reached.max_time
            assert reached == Reached("i", 0, stop, max(times[:stop], default=NO_WATERMARK))
    expected = [(n, at, max(times[:n]) - 5 if n else NO_WATERMARK) for n, at in enumerate(times)]
    assert found == expected


def test_a_stop_is_heard_between_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk is always read, so that an epoch moves on."""
    limit(monkeypatch, chunk_rows=3)
    own = reader(stream_of(list(range(12))), 0, 12)
    assert [chunk.rows for chunk in own.chunks(lambda: True)] == [3]
    assert own.reached() == Reached("i", 0, 3, 2)


def test_bytes_bound_a_range() -> None:
    own = reader(stream_of(list(range(90)), appends=1), 0, 90, max_bytes=160)
    rows = sum(chunk.rows for chunk in own.chunks(never))
    assert 1 <= rows < 90
    assert own.reached().next_offset == rows


def test_without_time_nothing_hidden_is_read() -> None:
    untimed = reader(stream_of([3, 1]), 0, 2, columns=("n", "at"), time=None)
    (chunk,) = untimed.chunks(never)
    assert (chunk.times, chunk.watermarks, chunk.groups) == (None, None, None)
    assert untimed.reached() == Reached("i", 0, 2, NO_WATERMARK)
    unused = reader(stream_of([3, 1]), 0, 2, timed=False)
    (chunk,) = unused.chunks(never)
    assert chunk.times is None
    assert unused.reached().max_time == 3


def test_a_column_that_is_no_event_time_is_told() -> None:
    """A job may take another column than the stream's own; the bus has not checked that one."""
    stream = open_bus("memory:", clock=ManualClock()).create(StreamSpec("in", 1, SCHEMA))
    stream.append(0, pa.table({"n": [-1 << 47], "at": [1]}, SCHEMA))
    own = reader(stream, 0, 1, time="n")
    with pytest.raises(
        InvalidInputError, match="stream 'in' partition 0 offset 0 is -140737488355328 ms"
    ):
        list(own.chunks(never))
