"""Entries in dicts by key group are one sorted map, whatever the order and length of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.memory import GroupedEntries

keys = st.binary(max_size=4) | st.sampled_from([b"\xff\xff", b"\xff\xff\xff", b"\0", b"\0\0", b""])
steps = st.lists(st.dictionaries(keys, st.none() | st.binary(max_size=3), max_size=12), max_size=5)


@given(steps, st.lists(keys, max_size=8), keys, st.none() | keys, st.booleans())
def test_what_was_applied_is_found_and_scanned(
    changes: list[dict[bytes, bytes | None]],
    asked: list[bytes],
    low: bytes,
    high: bytes | None,
    in_order: bool,
) -> None:
    entries, model = GroupedEntries(), dict[bytes, bytes]()
    for change in changes:
        given_keys = sorted(change) if in_order else list(change)
        entries.apply(given_keys, [change[key] for key in given_keys])
        model |= {key: value for key, value in change.items() if value is not None}
        model = {key: value for key, value in model.items() if change.get(key, b"") is not None}
        assert entries.bytes == sum(len(key) + len(value) for key, value in model.items())
        wanted = [
            (k, v) for k, v in sorted(model.items()) if low <= k and (high is None or k < high)
        ]
        assert list(entries.scan(low, high)) == wanted
        for question in (asked, sorted(asked)):
            assert entries.get_many(question) == [model.get(key) for key in question]
    entries.clear()
    assert list(entries.scan(b"", None)) == []


def test_a_scan_shows_the_entries_as_they_were() -> None:
    entries = GroupedEntries()
    entries.apply([b"aa1", b"bb1"], [b"1", b"1"])
    scan = entries.scan(b"", None)
    entries.apply([b"aa1", b"bb0"], [None, b"2"])
    assert list(scan) == [(b"aa1", b"1"), (b"bb1", b"1")]
