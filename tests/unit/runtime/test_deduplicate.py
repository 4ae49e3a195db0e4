"""Which rows of a batch are the first of their id, by vectors, against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.deduplicate import ROUNDS, _passed


@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    data=st.data(),
    within=st.integers(1, 20),
)
def test_rows_of_one_batch_are_decided_in_their_order(
    ids: list[int], data: st.DataObject, within: int
) -> None:
    """Also where one id is passed on more often than all move on together."""
    size = len(ids)
    times = data.draw(st.lists(st.integers(0, 40 * ROUNDS), min_size=size, max_size=size))
    until = dict.fromkeys(range(4), -(1 << 62))
    wanted = []
    for row, (key, at) in enumerate(zip(ids, times, strict=True)):
        if at >= until[key]:
            until[key] = at + within
            wanted.append(row)
    known = np.full(4, -(1 << 62))
    moments = np.array(times, np.int64)
    found = _passed(np.array(ids, np.int64), moments, moments, known, within)
    assert wanted == sorted(found.tolist())
    assert list(until.values()) == known.tolist()
