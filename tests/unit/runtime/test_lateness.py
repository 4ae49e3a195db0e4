"""A watermark at a confidence: the same for any cut of the log, and true to recorded delays."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.flights import timed_flights
from headrace.graph.operators import Confidence
from headrace.runtime.chunk import Ints
from headrace.runtime.orders import NO_WATERMARK, InputRange
from headrace.runtime.source import ConfidenceWatermarks, bucket_end, buckets_of

HALF = Confidence(0.5, 1_000)


def begin(
    confidence: Confidence, after: ConfidenceWatermarks | None = None
) -> ConfidenceWatermarks:
    """Return what follows a partition, from its begin or from where an epoch ended."""
    if after is None:
        return ConfidenceWatermarks(confidence, InputRange("i", 0, 0, 0))
    wanted = InputRange(
        "i", 0, 0, 0, after.max_time, watermark=after.watermark, delays=after.delays
    )
    return ConfidenceWatermarks(confidence, wanted)


@given(st.lists(st.integers(0, 1 << 50), min_size=1))
def test_a_bucket_is_a_sixteenth_of_its_delays_wide(delays: list[int]) -> None:
    buckets = buckets_of(np.array(delays, np.int64))
    for delay, bucket in zip(delays, buckets.tolist(), strict=True):
        end = bucket_end(bucket)
        assert delay <= end <= delay + delay // 16
        assert buckets_of(np.array([end, end + 1], np.int64)).tolist() == [bucket, bucket + 1]


@given(data=st.data())
def test_watermarks_do_not_depend_on_where_the_log_is_cut(data: st.DataObject) -> None:
    """Neither on ranges of epochs nor on chunks, with counts that travel through manifests."""
    seed = data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    times = np.arange(3_000) * 50 + 90_000 - rng.exponential(3_000, 3_000).astype(np.int64)
    whole = begin(HALF)
    expected = whole.before(times)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=6)))
    follows, found = begin(HALF), []
    for first, last in zip([0, *cuts], [*cuts, len(times)], strict=True):
        found += follows.before(times[first:last]).tolist()
        if data.draw(st.booleans()):
            follows = begin(HALF, follows)
    assert expected.tolist() == found
    assert whole.delays == follows.delays
    assert (expected[1:] >= expected[:-1]).all()
    assert expected[0] == NO_WATERMARK


def test_the_lateness_is_the_delay_of_the_wanted_part() -> None:
    """By brute force, at the steps at which it is found anew."""
    rng = np.random.default_rng(5)
    times = np.arange(2_048) * 100 + 90_000 - rng.exponential(5_000, 2_048).astype(np.int64)
    follows = begin(Confidence(0.9, 7_000))
    assert follows.lateness_ms == 7_000
    delays = _delays(times)
    for first, last in [(0, 64), (64, 128), (128, 256), (256, 512), (512, 1_024), (1_024, 2_048)]:
        follows.before(times[first:last])
        wanted = np.sort(delays[:last])[int(np.ceil(0.9 * last)) - 1]
        assert wanted <= follows.lateness_ms <= wanted + wanted // 16


def _delays(times: Ints) -> Ints:
    highest = np.maximum.accumulate(times)
    return np.concatenate([[0], np.maximum(highest[:-1] - times[1:], 0)])


@cache
def recorded() -> dict[str, Ints]:
    """Flights of a year by airport, as they really left, by when they should have."""
    flights = timed_flights()
    flights = flights.filter(pc.is_valid(flights["dep_delay"]))
    planned = flights["departed_at"].cast("int64").to_numpy() // 1000
    left = planned + flights["dep_delay"].to_numpy() * 60_000
    order = np.argsort(left, kind="stable")
    origins, times = flights["origin"].take(order), planned[order]
    names = pc.unique(origins).to_pylist()
    return {name: times[pc.equal(origins, name).to_numpy(zero_copy_only=False)] for name in names}


@pytest.mark.parametrize("part", [0.9, 0.99, 0.999])
def test_it_holds_for_recorded_delays(part: float) -> None:
    behind = total = 0
    for own in recorded().values():
        marks = begin(Confidence(part, 3_600_000)).before(own)
        behind, total = behind + int((own < marks).sum()), total + len(own)
    assert total == 328_521
    assert behind / total == pytest.approx(1 - part, rel=0.1)
