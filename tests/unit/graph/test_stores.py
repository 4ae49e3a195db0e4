"""What a store may be declared as."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import InvalidInputError


def test_a_store_in_rocksdb_may_have_prefix_filters() -> None:
    assert hr.store("seen", str, prefix_bloom=True).prefix_bloom
    assert not hr.store("seen", str).prefix_bloom


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_no_other_kind_has_prefix_filters(kind: str) -> None:
    with pytest.raises(InvalidInputError, match=r"prefix_bloom=True and is of kind .*leave it out"):
        hr.store("seen", str, kind, prefix_bloom=True)
