"""Keys that must stay apart do, and values change only by ``put`` and ``delete``."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.keys import encode_key
from headrace.state.backend import Position
from headrace.state.memory import MemoryBackend
from headrace.state.object_store import ObjectStore
from headrace.state.store import KeyValueStore

DAY = datetime.date(2020, 1, 2)
MOMENT = datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC)
APART: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 0.0, math.nan, math.inf, "", "1", "a", b"", b"1", b"a",
    (), (1, 2), (1.0, 2), (True, 2), ("1", 2), (1, (2).to_bytes(1, "big")), (None, None),
    (1, 2, 3), DAY, MOMENT, ("a", DAY), encode_key((1,)), encode_key((1, 2)),
]  # fmt: skip
SAME: list[tuple[Any, Any]] = [
    (1, (1,)),
    (1, np.int64(1)),
    ((1, "a"), (np.int32(1), "a")),
    ("a", ("a",)),
    (None, (None,)),
    (0.0, -0.0),
    (math.nan, float("nan")),
    (b"a", bytearray(b"a")),
    (MOMENT, MOMENT.replace(tzinfo=None)),
]


class Table:
    """A store over memory, with an epoch's end in one step."""

    def __init__(self, value: Any = Any, **settings: Any) -> None:
        self.backend = MemoryBackend(None, ["s"])
        self.raw = KeyValueStore(self.backend, "s")
        self.objects = ObjectStore(self.raw, value, **settings)
        self.epoch = 0

    def commit(self) -> list[bytes]:
        self.objects.seal()
        changes = self.raw.take_changes()
        self.epoch += 1
        self.backend.apply({"s": changes}, Position("line", self.epoch, ""))
        return changes[0]


def test_keys_of_different_types_never_mix() -> None:
    table = Table()
    for at, key in enumerate(APART):
        table.objects.put(key, at)
    for _ in range(2):
        for at, key in enumerate(APART):
            assert table.objects.get(key) == at, key
        table.commit()
    assert len(list(table.backend.scan("s"))) == len(APART)


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
@pytest.mark.parametrize("prefetched", [False, True])
def test_spellings_of_one_key_are_one_entry(one: Any, other: Any, prefetched: bool) -> None:
    table = Table()
    if prefetched:
        key = one if isinstance(one, tuple) else (one,)
        table.objects.prefetch([0], [one], [encode_key(key)])
    table.objects.put(one, "first")
    assert table.objects.get(other) == "first"
    table.objects.put(other, "second")
    assert table.objects.get(one) == "second"
    assert len(table.commit()) == 1


@pytest.mark.parametrize("key", APART, ids=repr)
def test_every_kind_of_key_can_be_prefetched_scanned_and_deleted(key: Any) -> None:
    table = Table()
    table.objects.put(key, 1)
    table.commit()
    encoded = encode_key(key if isinstance(key, tuple) else (key,))
    table.objects.prefetch([0, 0], [key, key], [encoded, encoded])
    assert table.objects.get(key) == 1
    assert key in table.objects
    ((found, value),) = table.objects.scan()
    assert value == 1
    assert encode_key(found if isinstance(found, tuple) else (found,)) == encoded
    table.objects.delete(key)
    assert key not in table.objects
    assert list(table.objects.scan()) == []
    table.commit()
    assert list(table.backend.scan("s")) == []


@pytest.mark.parametrize(
    "key", [2**63, -(2**63) - 1, [1], {"a": 1}, (1, [2]), object()], ids=lambda key: str(key)[:9]
)
@pytest.mark.parametrize("use", ["get", "put", "delete"])
def test_what_cannot_be_a_key_is_refused_where_it_is_used(key: Any, use: str) -> None:
    objects = Table().objects
    with pytest.raises(InvalidInputError, match="key"):
        getattr(objects, use)(key, *(["v"] if use == "put" else []))
    assert objects.overlay_bytes == 0


def test_entries_live_under_the_group_entered() -> None:
    table = Table()
    for group in (3, 1, 2):
        table.objects.enter(group)
        table.objects.put("k", group)
    keys = table.commit()
    assert [key[:2] for key in keys] == [b"\0\1", b"\0\2", b"\0\3"]
    table.objects.prefetch(np.array([2, 1, 2]), ["k"] * 3, [encode_key(("k",))] * 3)
    for group in (1, 2, 3):
        table.objects.enter(group)
        assert table.objects.get("k") == group
        assert list(table.objects.scan()) == [("k", group)]


def test_reading_and_changing_in_place_persist_nothing() -> None:
    table = Table(list[int])
    table.objects.put("k", [1])
    table.commit()
    table.objects.get("k").append(2)
    table.objects.get("missing", [])
    assert table.commit() == []
    assert table.objects.get("k") == [1]


def test_a_value_of_none_is_a_value() -> None:
    table = Table()
    table.objects.put("k", None)
    assert "k" in table.objects
    assert table.objects.get("k", "default") is None
    table.commit()
    assert "k" in table.objects
    assert table.objects.get("other", "default") == "default"


def test_a_prefetch_keeps_what_the_epoch_changed() -> None:
    table = Table()
    table.objects.put("k", 1)
    table.commit()
    encoded = [encode_key(("k",)), encode_key(("new",))]
    table.objects.put("k", 2)
    table.objects.delete("new")
    table.objects.prefetch([0, 0], ["k", "new"], encoded)
    assert table.objects.get("k") == 2
    assert "new" not in table.objects


def test_unchanged_values_are_bounded_and_changed_ones_kept() -> None:
    table = Table(loaded_limit=2)
    keys = [f"k{n}" for n in range(9)]
    table.objects.put("k0", "changed")
    for key in keys:
        table.objects.prefetch([0], [key], [encode_key((key,))])
        assert len(table.objects._values) <= 5
    table.objects.put("k0", "changed again")
    assert len(table.commit()) == 1
    assert table.objects.get("k0") == "changed again"


def test_values_keep_their_declared_type() -> None:
    class Total(msgspec.Struct):
        count: int
        names: list[str]

    table = Table(Total)
    table.objects.put("k", Total(1, ["a"]))
    table.commit()
    assert table.objects.get("k") == Total(1, ["a"])
    match = "declare the type it was written with"
    with pytest.raises(InvalidInputError, match=match):
        ObjectStore(table.raw, int).get("k")
    with pytest.raises(InvalidInputError, match=match):
        ObjectStore(table.raw, int).prefetch([0], ["k"], [encode_key(("k",))])


def test_bytes_that_are_no_value_are_damage() -> None:
    table = Table()
    table.raw.put(b"\0\0" + encode_key(("k",)), b"\xc1")
    with pytest.raises(CorruptDataError, match="does not read as"):
        table.objects.get("k")


def test_a_value_that_cannot_be_kept_names_its_store_and_type() -> None:
    table = Table()
    table.objects.put("good", 1)
    table.objects.put("k", object())
    with pytest.raises(InvalidInputError, match="store 's' cannot keep a object"):
        table.objects.seal()


def test_the_overlay_is_measured() -> None:
    table = Table()
    assert table.objects.overlay_bytes == 0
    table.objects.put("k", "x" * 10_000)
    assert 10_000 < table.objects.overlay_bytes < 100_000
    table.objects.get("other")
    table.objects.discard()
    assert table.objects.overlay_bytes == 0
    assert table.commit() == []


def test_a_scan_takes_ranges_and_prefixes() -> None:
    table = Table()
    for key in (("a", 1), ("a", 2), ("b", 1), "a", "ab", 5, 7):
        table.objects.put(key, key)
        if key == ("b", 1):
            table.commit()
    scan = table.objects.scan
    assert [key for key, _ in scan()] == [5, 7, "a", ("a", 1), ("a", 2), "ab", ("b", 1)]
    assert [key for key, _ in scan(prefix="a")] == ["a", ("a", 1), ("a", 2)]
    assert [key for key, _ in scan(5, 7)] == [5]
    assert [key for key, _ in scan(6)] == [7, "a", ("a", 1), ("a", 2), "ab", ("b", 1)]
    assert [key for key, _ in scan(high="a")] == [5, 7]
    assert [key for key, _ in scan(("a", 2), prefix="a")] == [("a", 2)]
    for key, _ in scan():
        table.objects.delete(key)
    assert list(scan()) == []


PLAIN = st.integers(-3, 3) | st.sampled_from(["", "a", "b", b"a", None, True, False, 1.0, 0.5])
KEYS = PLAIN | st.tuples(PLAIN, PLAIN)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "get", "commit", "discard", "prefetch"]),
            st.integers(0, 2),
            KEYS,
            st.integers(-(2**63), 2**64 - 1),
        ),
        max_size=40,
    )
)
def test_objects_are_a_dict_by_group_and_canonical_key(steps) -> None:
    table = Table(int)
    committed: dict[bytes, int] = {}
    now: dict[bytes, int] = {}
    for action, group, key, value in steps:
        encoded = encode_key(key if isinstance(key, tuple) else (key,))
        full = group.to_bytes(2, "big") + encoded
        table.objects.enter(group)
        if action == "put":
            table.objects.put(key, value)
            now[full] = value
        elif action == "delete":
            table.objects.delete(key)
            now.pop(full, None)
        elif action == "prefetch":
            table.objects.prefetch([group], [key], [encoded])
        elif action == "commit":
            table.commit()
            committed = dict(now)
        elif action == "discard":
            table.objects.discard()
            now = dict(committed)
        assert table.objects.get(key, "none") == now.get(full, "none")
        here = [now[k] for k in sorted(now) if k[:2] == full[:2]]
        assert [v for _, v in table.objects.scan()] == here
