"""Results over old data in those of a live job: of any size, and where the rows of a key lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.changes import MergeResult, choose_rows, compare_streams, part_count
from tests.support.limits import limit, limited

from headrace.bus import Bus, FileBus, MemoryBus, Stream, StreamSpec
from headrace.errors import InvalidInputError
from headrace.testing import crash_at

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("s", pa.string())])
NAMES = ("out", "out.old")


def make(bus: Bus, key: tuple[str, ...] = ("k",), partitions: int = 3) -> list[Stream]:
    return [bus.create(StreamSpec(name, partitions, SCHEMA, key=key)) for name in NAMES]


def rows(*pairs: tuple[int, int], text: str = "") -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "n": n, "s": text} for k, n in pairs], SCHEMA)


def last(stream: Stream) -> dict[int, int]:
    """What a reader has of each key, by the partition that holds its last row."""
    found: dict[int, int] = {}
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin):
            found |= {row["k"]: row["n"] for row in part.batch.to_pylist()}
    return found


def where(stream: Stream) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for partition, begin in enumerate(stream.begins()):
        for part in stream.read(partition, begin):
            for row in part.batch.to_pylist():
                found.setdefault(row["k"], set()).add(partition)
    return found


def merge(bus: Bus, by: Any, **more: Any) -> MergeResult:
    with choose_rows(bus, "out", NAMES, "run", by, **more) as chosen:
        return chosen.append()


def add(live: dict[str, Any] | None, old: dict[str, Any]) -> dict[str, Any]:
    return old if live is None else {**old, "n": old["n"] + live["n"]}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, merge_part_rows=7, merge_pending_bytes=64)


PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 99)), max_size=80)


@given(live=PAIRS, old=PAIRS, stops=st.lists(st.integers(1, 12), max_size=3), later=PAIRS)
def test_parts_merge_as_the_whole_and_once(
    live: list[tuple[int, int]],
    old: list[tuple[int, int]],
    stops: list[int],
    later: list[tuple[int, int]],
) -> None:
    """Cut anywhere, and gone on after the live job has: each key is added to once."""
    with limited(merge_part_rows=7, merge_pending_bytes=64), MemoryBus() as bus:
        first, second = make(bus)
        first.append_rows(rows(*live))
        second.append_rows(rows(*old))
        parts = part_count(second)
        assert parts == max(1, -(-len(old) // 7))
        expected = dict(live) | {k: n + dict(live).get(k, 0) for k, n in dict(old).items()}
        for stop in stops:
            died = True
            with crash_at("merge.appended", stop, required=False):
                merge(bus, add, parts=parts)
                died = False
            if died:
                first.append_rows(rows(*((k + 100, n) for k, n in later)))
                expected |= {k + 100: n for k, n in later}
        merge(bus, add, parts=parts)
        assert last(first) == expected


def test_more_than_the_bus_takes_at_once_is_merged(tmp_path: Path) -> None:
    with FileBus(tmp_path) as bus:
        first, second = make(bus, partitions=1)
        text = "x" * 900_000
        for key in range(75):
            second.append_rows(rows((key, key), text=f"{key}{text}"))
        assert part_count(second) > 10
        done = merge(bus, add)
        assert (done.appended, done.there) == (75, 0)
        assert last(first) == {key: key for key in range(75)}


@pytest.fixture
def bus() -> Iterator[Bus]:
    with MemoryBus() as made:
        yield made


def test_rows_without_a_key_go_where_those_of_theirs_lie(bus: Bus, small: None) -> None:
    first, second = make(bus, key=())
    for key in range(40):
        first.append(key % 3, rows((key, 1)))
        second.append(0, rows((key, 5)))
    assert merge(bus, add, key=("k",)).appended == 40
    assert last(first) == dict.fromkeys(range(40), 6)
    assert where(first) == {key: {key % 3} for key in range(40)}
    assert merge(bus, add, key=("k",)).there == 40


def test_a_new_key_goes_where_a_job_that_is_alike_has_sent_it(bus: Bus) -> None:
    first, second = make(bus, key=())
    first.append(0, rows((1, 1)))
    second.append(2, rows((7, 5)))
    with pytest.raises(InvalidInputError, match=r"no row of key \[7\] yet, and nothing says to"):
        merge(bus, add, key=("k",))
    assert merge(bus, add, key=("k",), is_alike=True).appended == 1
    assert where(first) == {1: {0}, 7: {2}}


def test_rows_of_a_key_in_several_partitions_are_refused_where_one_would_follow(bus: Bus) -> None:
    first, second = make(bus, key=())
    first.append(0, rows((1, 1)))
    first.append(2, rows((1, 2)))
    second.append(1, rows((1, 5)))
    assert merge(bus, lambda live, old: None if live else old, key=("k",)).kept == 1
    with pytest.raises(InvalidInputError, match=r"lie in its partitions \[0, 2\], so none is the"):
        merge(bus, add, key=("k",))
    assert len(where(first)[1]) == 2


def test_streams_are_compared_part_by_part(bus: Bus, small: None) -> None:
    first, second = make(bus)
    first.append_rows(rows(*((key, 1) for key in range(40))))
    second.append_rows(rows(*((key, 1 + (key == 9)) for key in range(5, 50))))
    found = compare_streams(bus, "out", NAMES, examples=7)
    assert (found.rows, found.keys, found.only) == ((40, 45), (40, 45), (5, 10))
    assert (found.different, found.same) == (1, 34)
    assert found.examples[0]["key"] == {"k": 9}
    assert [one["first"] is None for one in found.examples] == [False] * 6 + [True]
    whole = compare_streams(bus, "out", NAMES, ("k", "n", "s"))
    assert (whole.only, whole.same) == ((6, 11), 34)
