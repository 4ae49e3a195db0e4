"""Numbers under which windows with triggers keep rows: each says what it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.durations import MAX_EVENT_TIME_MS, MIN_EVENT_TIME_MS
from headrace.runtime.orders import END_WATERMARK
from headrace.runtime.windows.layouts import NEVER, clusters_of

WINDOWS = {
    "many steps": hr.tumbling("1d", early_idle="10s"),
    "a millisecond": hr.tumbling("2ms", early_idle="1ms"),
    "overlapping": hr.hopping("1h", "5m", "1d", early="7s"),
    "session": hr.session("30m", "26h", early="10s"),
    "by number": hr.session("30m", early_rows=5),
}


@pytest.mark.parametrize("name", WINDOWS)
@given(data=st.data())
def test_place_and_step_can_be_told(name: str, data: Any) -> None:
    window = WINDOWS[name]
    assert not window.mistakes
    kept = clusters_of(window)
    step_ms = kept.step_ms or 1
    seen = data.draw(st.integers(MIN_EVENT_TIME_MS, MAX_EVENT_TIME_MS - 1))
    step = (seen // step_ms + 1) * step_ms
    low, high = step - kept.behind_ms, step + kept.ahead_ms
    place = data.draw(st.integers(low, high))
    places, steps = np.array([place, place]), np.array([step if kept.step_ms else NEVER, NEVER])
    clusters = np.append(kept.waiting(steps, places), 2 * place)
    assert [int(one) for one in kept.read(clusters)[0]] == [place] * 3
    wanted = step if kept.step_ms else NEVER
    assert [int(one) for one in kept.read(clusters)[1]] == [wanted, NEVER, NEVER]
    assert kept.is_sent(clusters).tolist() == [False, False, True]
    for last in (END_WATERMARK, max(place, step)):
        ranges = kept.ranges(last, last)
        assert all(-(1 << 62) < first <= until < (1 << 63) - 1 for first, until in ranges)
        assert all(any(a <= one <= b for a, b in ranges) for one in clusters.tolist())
