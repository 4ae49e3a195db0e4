"""Pairs of rows found by ranges of codes, against all pairs looked at one by one."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.graph.stream_joins import BoundedInterval
from headrace.records.schema import TableLayout
from headrace.runtime import stream_join
from headrace.runtime.stream_join import JoinCodes, PairMatcher
from headrace.state.sorted_run import Block

LAYOUT = TableLayout(
    pa.schema([("k", pa.int64())]),
    pa.schema([("n", pa.int64())]),
    ttl_ms=1,
    by_event=True,
    repeats=True,
)


class Row(NamedTuple):
    """A row: its key, and its event time in steps."""

    key: int
    at: int


def piece(rows: list[Row], codes: JoinCodes, step: int, base: int = 0) -> Block:
    """Sort rows as a side does; two keys each have the same half of a hash."""
    keys = np.array([row.key for row in rows], np.int64)
    times = np.array([base + row.at * step for row in rows], np.int64)
    hashes = (keys // 2 + 1).astype(np.uint64) << np.uint64(32)
    found = codes.of(hashes, times)
    order = np.argsort(found)
    columns = [found[order], times[order], keys[order], np.arange(len(rows))[order]]
    arrays = [pa.array(column) for column in columns]
    return Block.of(LAYOUT, pa.RecordBatch.from_arrays(arrays, schema=LAYOUT.schema))


ROWS = st.lists(st.builds(Row, st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=25)
STEPS = st.sampled_from([1, 7, 1 << 20, (1 << 32) - 1, 1 << 32, 3 << 33])
"""From one moment to the next, ms: with the longest, moments differ by less than a unit."""


@given(
    left=ROWS,
    right=ROWS,
    before=st.integers(0, 12),
    after=st.integers(0, 12),
    step=STEPS,
    round_=st.sampled_from(["no", "up", "from before 1970"]),
    bounds=st.sampled_from([(1, 1 << 27), (3, 1 << 27), (1 << 19, 200), (1 << 19, 1 << 27)]),
)
def test_pairs_are_those_of_one_key_that_are_near(
    left: list[Row],
    right: list[Row],
    before: int,
    after: int,
    step: int,
    round_: str,
    bounds: tuple[int, int],
) -> None:
    span = (before + after) * step
    codes = JoinCodes(span)
    a_round = 1 << 32 + max(0, span.bit_length() - 31)
    base = {"no": 0, "up": a_round - 20 * step % a_round, "from before 1970": -20 * step}[round_]
    matcher = PairMatcher(codes, BoundedInterval(before * step, after * step))
    one, other = (piece(rows, codes, step, base) for rows in (left, right))
    wanted = [
        (mine, theirs)
        for (mine, a), (theirs, b) in itertools.product(enumerate(left), enumerate(right))
        if a.key == b.key and -before <= b.at - a.at <= after
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_join, "BLOCK", bounds[0])
        patch.setattr(stream_join, "BLOCK_BYTES", bounds[1])
        blocks = list(matcher.pairs(one, other))
        assert all(0 < len(rows) <= bounds[0] for rows, _ in blocks)
        found = [
            pair
            for rows, others in blocks
            for pair in zip(numbers(one, rows), numbers(other, others), strict=True)
        ]
        assert sorted(found) == wanted
        for side, (own, against) in enumerate([(one, other), (other, one)]):
            rows = np.arange(own.info.rows)
            has = matcher.has_partner(own, rows, against, side)
            assert sorted(numbers(own, rows[has])) == sorted({pair[side] for pair in wanted})


def numbers(held: Block, rows: np.ndarray) -> list[int]:
    return np.asarray(held.batch.column("n").to_numpy())[rows].tolist()


def test_many_rows_of_one_key_are_not_looked_at_one_by_one() -> None:
    count = 1 << 18
    codes = JoinCodes(0)
    rows = [Row(0, at) for at in range(count)]
    one, other = piece(rows, codes, 1), piece(rows, codes, 1)
    found = list(PairMatcher(codes, BoundedInterval(0, 0)).pairs(one, other))
    assert sum(len(mine) for mine, _ in found) == count
