"""A stream that is kept: each row once, whatever ends when; sampled, merged, and let go in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.exploring import (
    Explored,
    ManualClock,
    SegmentFolder,
    kept_rows,
    sampled_rows,
)
from tests.support.homes import Home

BASE = 1_700_000_000_000
DAY = 86_400_000
COLUMNS = {"at": pa.int64(), "n": pa.int64()}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path) as made:
        made.create("web", COLUMNS, partitions=2, time="at")
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BASE + DAY)


def send(home: Home, first: int, count: int, partition: int = 0, at: int = BASE + DAY) -> None:
    rows = [{"at": at + number, "n": number} for number in range(first, first + count)]
    home.send("web", rows, partition)


def every(count: int, partition: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(count)]


def test_a_row_is_seen_as_soon_as_it_was_read_and_once_when_it_is_in_a_file(
    home: Home, clock: ManualClock
) -> None:
    with Explored(home, clock) as explored:
        send(home, 0, 10)
        explored.step()
        assert explored.places("web") == every(10)
        assert explored.files("web") == []
        clock.advance(10_000)
        explored.step()
        assert len(explored.files("web")) == 1
        assert explored.places("web") == every(10)


@pytest.mark.parametrize("flushed", [0, 5, 10])
def test_after_a_kill_it_continues_and_no_row_is_there_twice(
    home: Home, clock: ManualClock, flushed: int
) -> None:
    first = Explored(home, clock)
    send(home, 0, flushed)
    first.step()
    clock.advance(10_000)
    first.step()
    send(home, flushed, 10 - flushed)
    send(home, 0, 3, partition=1)
    first.step()
    first.drop()
    with Explored(home, clock) as second:
        send(home, 10, 2)
        second.step()
        assert second.places("web") == [*every(12), *every(3, 1)]
    assert kept_rows(home, "web") == 15


def test_a_kill_while_files_are_merged_leaves_each_row_once(
    home: Home, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged file is there, and so are those that it was made of."""
    monkeypatch.setattr(SegmentFolder, "remove", lambda *_: None)
    explored = Explored(home, clock, "explore.flush_rows=5")
    for part in range(8):
        send(home, part * 5, 5)
        explored.step()
    assert len(explored.files("web")) == 1
    assert kept_rows(home, "web") == 80
    explored.drop()
    monkeypatch.undo()
    with Explored(home, clock) as second:
        second.step()
        assert second.places("web") == every(40)
    assert kept_rows(home, "web") == 40


def test_the_second_process_reads_and_takes_over_when_the_first_ends(
    home: Home, clock: ManualClock
) -> None:
    with Explored(home, clock, "explore.flush_rows=7") as first:
        send(home, 0, 5)
        first.step()
        with Explored(home, clock, "explore.flush_rows=7") as second:
            second.step()
            assert (first.service.tailer.is_writer, second.service.tailer.is_writer) == (
                True,
                False,
            )
            assert second.places("web") == every(5)
            send(home, 5, 4)
            second.step()
            assert second.places("web") == every(9), "it has rows that the first has not read"
            first.step()
            send(home, 9, 1)
            second.step()
            assert len(second.files("web")) == 1
            assert second.places("web") == every(10)
            first.service.close()
            second.step()
            assert second.service.tailer.is_writer
            send(home, 10, 7)
            second.step()
            assert second.places("web") == every(17)
    assert kept_rows(home, "web") == 17


def test_of_two_writers_of_a_commit_one_wins_and_the_other_shows_why_it_stops(
    home: Home, clock: ManualClock
) -> None:
    one, other = Explored(home, clock), Explored(home, clock)
    send(home, 0, 5)
    one.step()
    one.drop()
    other.step()
    one_tail = one.service.tailer.tail("web")
    one_tail.flush()
    clock.advance(10_000)
    other.step()
    [status] = other.service.tailer.statuses()
    assert "was written by another process" in str(status.problem)
    assert kept_rows(home, "web") == 5
    other.drop()


def test_sampled_rows_are_the_same_ones_again_and_count_for_all(
    home: Home, clock: ManualClock
) -> None:
    rule = json.dumps([{"streams": "w*", "sample": 10}])
    send(home, 0, 5000)
    with Explored(home, clock, f"explore.rules={rule}") as explored:
        explored.step()
        rows = [{"n": number} for number in range(5000)]
        expected = [row["n"] for row in sampled_rows(rows, "web", 0, 0, 10)]
        places = [offset for _, offset in explored.places("web")]
        assert places == expected
        assert 400 < len(places) < 600
        result = explored.ask("web", metrics=[{"fn": "count"}, {"fn": "sum", "column": "n"}])
        assert result.sampled
        assert result.rows == [[len(places) * 10, sum(places) * 10]]


def test_rows_go_when_they_are_old_and_so_they_do_when_there_are_too_many(
    home: Home, clock: ManualClock
) -> None:
    with Explored(home, clock, "explore.keep=2d", "explore.flush_rows=5") as explored:
        for day in range(5):
            send(home, day * 5, 5, at=clock.now_ms())
            explored.step()
            clock.advance(DAY)
        explored.step()
        assert explored.places("web") == [(0, offset) for offset in range(15, 25)]
        clock.advance(3 * DAY)
        explored.step()
        assert explored.places("web") == []
    with Explored(home, clock) as again:
        again.step()
        assert again.places("web") == [], "its offsets outlive its rows"
        send(home, 25, 1, at=clock.now_ms())
        again.step()
        assert again.places("web") == [(0, 25)]


def test_the_oldest_files_go_when_a_stream_has_too_many_bytes(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Home(tmp_path) as home:
        home.create("texts", {"at": pa.int64(), "text": pa.binary()}, time="at")
        with Explored(home, clock, "explore.keep_bytes=1048576", "explore.flush_rows=1") as kept:
            for number in range(6):
                data = b"".join(sha256(b"%d %d" % (number, n)).digest() for n in range(10_000))
                home.send("texts", [{"at": clock.now_ms(), "text": data}], 0)
                kept.step()
            offsets = [offset for _, offset in kept.places("texts")]
            assert offsets == [3, 4, 5]


def test_history_that_is_older_than_what_is_kept_is_shown(home: Home, clock: ManualClock) -> None:
    send(home, 0, 5, at=BASE - 400 * DAY)
    with Explored(home, clock, "explore.keep=2d", "explore.flush_rows=1") as explored:
        explored.step()
        explored.step()
        assert explored.places("web") == every(5)


def test_a_live_stream_begins_with_the_rows_that_will_be_kept(
    home: Home, clock: ManualClock
) -> None:
    send(home, 0, 5, at=BASE - 400 * DAY)
    send(home, 5, 5, at=clock.now_ms())
    with Explored(home, clock, "explore.keep=2d") as explored:
        explored.step()
        assert explored.places("web") == [(0, offset) for offset in range(5, 10)]


def test_columns_come_as_they_are_added_and_wider_ones_hold_older_rows(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Home(tmp_path) as home:
        stream = home.create("web", {"at": pa.int64(), "n": pa.int32()}, time="at")
        with Explored(home, clock, "explore.flush_rows=2") as explored:
            home.send("web", [{"at": BASE + DAY, "n": 1}, {"at": BASE + DAY, "n": 2}], 0)
            explored.step()
            wider = pa.schema([("at", pa.int64()), ("n", pa.int64()), ("who", pa.string())])
            stream.evolve(wider)
            home.send("web", [{"at": BASE + DAY, "n": 2**40, "who": "ann"}], 0)
            explored.step()
            ask: Any = {"metrics": [{"fn": "sum", "column": "n"}]}
            for _ in range(2):
                found = explored.ask("web", group_by=["who"], **ask)
                assert sorted(found.rows, key=str) == [["ann", 2**40], [None, 3]]
                home.send("web", [{"at": BASE + DAY, "n": 0, "who": "ann"}], 0)
                explored.step()
            assert explored.sql("select sum(n) s, count(who) c from web").rows == [[2**40 + 3, 3]]


def test_a_column_that_is_added_is_there_before_the_first_row_has_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Home(tmp_path) as home:
        stream = home.create("web", {"at": pa.int64()}, time="at")
        with Explored(home, clock) as explored:
            home.send("web", [{"at": BASE + DAY}], 0)
            explored.step()
            stream.evolve(pa.schema([("at", pa.int64()), ("who", pa.string())]))
            assert explored.ask("web", group_by=["who"]).rows == [[None, 1]]


OTHERS: dict[str, tuple[pa.DataType, object, object]] = {
    "text": (pa.string(), "x", "1"),
    "flag": (pa.bool_(), True, True),
    "real": (pa.float64(), 0.5, 1.0),
    "both": (pa.struct([("x", pa.int64())]), {"x": 7}, None),
    "time": (pa.timestamp("ms", "UTC"), 86_400_000, None),
}
"""Columns that were integers: what they are then, a value of that, and what 1 has become."""


def test_a_column_of_another_type_keeps_what_can_be_cast(
    tmp_path: Path, clock: ManualClock
) -> None:
    """A stream was made again with types that the old ones do not widen to."""
    later = {"at": BASE + DAY + 1, **{name: value for name, (_, value, _) in OTHERS.items()}}
    with Home(tmp_path) as home:
        home.create("web", {"at": pa.int64(), **dict.fromkeys(OTHERS, pa.int64())}, time="at")
        with Explored(home, clock, "explore.flush_rows=1") as explored:
            for _ in range(5):
                home.send("web", [{"at": BASE + DAY, **dict.fromkeys(OTHERS, 1)}], 0)
                explored.step()
            home.bus.remove("web")
            kinds = {name: kind for name, (kind, _, _) in OTHERS.items()}
            home.create("web", {"at": pa.int64(), **kinds}, time="at")
            home.send("web", [later], 0)
            clock.advance(3_000)
            explored.step()
            for again in range(2):
                found = explored.ask("web", view="samples", limit=50)
                names = [one.name for one in found.columns]
                assert explored.count("web") == 6 + 7 * again
                counts = ", ".join(f"count({name}) {name}" for name in OTHERS)
                [known] = explored.sql(f"select {counts} from web").rows
                for (name, (_, _, old)), count in zip(OTHERS.items(), known, strict=True):
                    assert [row[names.index(name)] for row in found.rows][-5:] == [old] * 5
                    assert count == 5 * (old is not None) + 1 + 7 * again
                    assert explored.ask("web", view="table", group_by=[name]).rows
                for _ in range(7):  # so that files are merged, which those of two types are not
                    home.send("web", [later], 0)
                    explored.step()
            [status] = explored.service.tailer.statuses()
            assert status.problem is None
            assert len(explored.files("web")) < 20


def test_the_folder_of_a_stream_that_is_gone_goes_when_its_rows_are_old(
    home: Home, clock: ManualClock
) -> None:
    home.create("other", COLUMNS, time="at")
    home.send("other", [{"at": BASE + DAY, "n": 1}], 0)
    send(home, 0, 3)
    folder = home.home / "explore"
    with Explored(home, clock, "explore.keep=2d") as explored:
        explored.step()
        home.bus.remove("web")
        clock.advance(DAY)
        explored.step()
        assert kept_rows(home, "web") == 3, "what was in memory is written"
        clock.advance(3_000)
        explored.step()
        assert (folder / "web").is_dir()
        clock.advance(2 * DAY)
        explored.step()
        assert not (folder / "web").exists()
        assert (folder / "other").is_dir(), "its retention is that of its own"


def test_a_stream_that_is_made_again_before_that_keeps_its_old_rows(
    home: Home, clock: ManualClock
) -> None:
    send(home, 0, 3)
    with Explored(home, clock) as explored:
        explored.step()
        home.bus.remove("web")
        clock.advance(3_000)
        explored.step()
        home.create("web", COLUMNS, partitions=2, time="at")
        clock.advance(3_000)
        explored.step()
        assert explored.count("web") == 3


def test_a_stream_that_was_made_again_is_read_from_its_begin(
    home: Home, clock: ManualClock
) -> None:
    with Explored(home, clock, "explore.flush_rows=1") as explored:
        send(home, 0, 3)
        explored.step()
        home.bus.remove("web")
        home.create("web", COLUMNS, partitions=2, time="at")
        send(home, 0, 2)
        clock.advance(3_000)
        explored.step()
        assert explored.places("web") == sorted([*every(3), *every(2)])


def test_rows_that_cannot_be_read_are_counted_and_the_others_shown(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Home(tmp_path) as home:
        home.create("web", COLUMNS, time="at")
        for part in range(3):
            send(home, part * 10, 10)
        [segment] = (tmp_path / "bus" / "streams" / "web").rglob("*.seg")
        data = bytearray(segment.read_bytes())
        middle = data.find((15).to_bytes(8, "little"))
        assert middle > 0
        data[middle] ^= 0xFF
        home.close()
        segment.write_bytes(data)
        with Home(tmp_path) as again, Explored(again, clock) as explored:
            explored.step()
            explored.step()
            assert explored.places("web") == [(0, n) for n in [*range(10), *range(20, 30)]]
            [status] = explored.service.tailer.statuses()
            assert (status.skipped, status.lag_rows) == (10, 0)


def test_a_file_that_is_damaged_is_left_out_and_said(home: Home, clock: ManualClock) -> None:
    with Explored(home, clock, "explore.flush_rows=1") as first:
        send(home, 0, 3)
        first.step()
        send(home, 3, 3)
        first.step()
    path = next((home.home / "explore" / "web").glob("000000000000-*.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with Explored(home, clock) as explored:
        explored.step()
        assert explored.places("web") == [(0, n) for n in range(3, 6)]
        [status] = explored.service.tailer.statuses()
        assert "1 damaged files are left out" in str(status.problem)


def test_what_a_killed_writer_left_half_written_is_no_file_and_goes(
    home: Home, clock: ManualClock
) -> None:
    first = Explored(home, clock, "explore.flush_rows=5")
    send(home, 0, 5)
    first.step()
    first.drop()
    folder = home.home / "explore" / "web"
    [whole] = folder.glob("*.parquet")
    half = folder / f".{whole.name}.0123456789abcdef.tmp"
    half.write_bytes(whole.read_bytes()[:100])
    with Explored(home, clock) as again:
        again.step()
        assert again.places("web") == every(5)
    assert not half.exists()


def test_streams_that_are_not_chosen_are_not_kept(home: Home, clock: ManualClock) -> None:
    home.create("other", COLUMNS)
    with Explored(home, clock, "explore.streams=w*") as explored:
        explored.step()
        kept = {one["name"]: one["kept"] for one in explored.service.streams(lambda _: True)}
        assert kept == {"other": False, "web": True}
