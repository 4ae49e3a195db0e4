"""The read cache of remote stores: bounded in bytes and in age."""

from __future__ import annotations

from headrace.state.remote_store import ENTRY_BYTES, ReadCache
from headrace.testing import ManualClock


def test_the_least_recently_used_goes_first() -> None:
    cache = ReadCache(3 * (ENTRY_BYTES + 2), 1_000, ManualClock())
    cache.keep([b"a", b"b", b"c"], [b"1", b"2", b"3"])
    assert cache.find([b"a"]) == {b"a": b"1"}
    cache.keep([b"d"], [b"4"])
    assert cache.find([b"a", b"b", b"c", b"d"]) == {b"a": b"1", b"c": b"3", b"d": b"4"}


def test_bytes_are_bounded_whatever_is_kept() -> None:
    limit = 10_000
    cache = ReadCache(limit, 1_000, ManualClock())
    for number in range(1_000):
        cache.keep([b"%d" % (number % 70)], [b"x" * (number * 37 % 900)])
        assert cache.held_bytes <= limit
    assert len(cache) > 0
    cache.keep([b"huge"], [b"x" * limit])
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_no_value_is_known_too_and_replaced() -> None:
    cache = ReadCache(10_000, 1_000, ManualClock())
    cache.keep([b"a"], [None])
    assert cache.find([b"a", b"b"]) == {b"a": None}
    cache.keep([b"a"], [b"1"])
    assert (cache.find([b"a"]), len(cache)) == ({b"a": b"1"}, 1)


def test_an_entry_that_is_used_ages_all_the_same() -> None:
    clock = ManualClock()
    cache = ReadCache(10_000, 1_000, clock)
    cache.keep([b"a"], [b"1"])
    clock.advance(999)
    assert cache.find([b"a"]) == {b"a": b"1"}
    clock.advance(1)
    assert cache.find([b"a"]) == {}
    assert cache.held_bytes == 0


def test_without_bytes_or_age_nothing_is_kept() -> None:
    for cache in (ReadCache(0, 1_000, ManualClock()), ReadCache(1_000, 0, ManualClock())):
        cache.keep([b"a"], [b"1"])
        assert (len(cache), cache.find([b"a"])) == (0, {})


def test_forget_leaves_nothing() -> None:
    cache = ReadCache(10_000, 1_000, ManualClock())
    cache.keep([b"a"], [b"1"])
    cache.forget()
    assert (len(cache), cache.held_bytes) == (0, 0)
