"""Which row is the last of its key, batch by batch from the newest on."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bus.compaction import SeenKeys


def expected(batches: list[list[object]]) -> list[list[bool]]:
    """Return what a set says."""
    seen: set[object] = set()
    answers = []
    for batch in batches:
        mask = []
        for key in reversed(batch):
            mask.append(key not in seen)
            seen.add(key)
        answers.append(mask[::-1])
    return answers


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12), max_size=9))
def test_keys_with_the_same_hash_are_told_apart(batches):
    """Both hashes count, however many keys share the first one."""
    seen = SeenKeys()
    found = []
    for batch in batches:
        hashes = np.array([h for h, _ in batch], np.uint64)
        checks = np.array([c for _, c in batch], np.uint64)
        found.append(seen.take_hashes(hashes, checks).tolist())
    assert expected(batches) == found
    assert len(seen) == len({key for batch in batches for key in batch})


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_keys_of_columns_are_met_once(kind):
    dice = np.random.default_rng(4)
    batches = [dice.integers(0, 5000, 3000).tolist() for _ in range(12)]
    seen = SeenKeys()
    columns = [
        [pa.array(batch).cast(kind), pa.array([key % 3 for key in batch])] for batch in batches
    ]
    assert expected(batches) == [seen.take(pair).tolist() for pair in columns]
