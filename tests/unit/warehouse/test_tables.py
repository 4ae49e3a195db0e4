"""A table of the warehouse: sorted days, marks, added columns, retention, who may write."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import CorruptDataError, GraphError, InvalidInputError, NotOwnerError
from headrace.files import Files
from headrace.graph.sinks import Prepared, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.testing import ManualClock, TestDriver, call_at
from headrace.warehouse import Table, receiver
from headrace.warehouse.day_files import FileSizeTargets
from headrace.warehouse.sink import WAIT_S, TableSink, compact_table
from headrace.warehouse.snapshot import SnapshotChange, TableLocation

DAY = 86_400_000
BEGIN = 15_706 * DAY
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("user", pa.string()), ("n", pa.int64())])
END = 1 << 62


class Writer:
    """Sends epochs to a table as a driver would."""

    def __init__(self, home: Path, clock: ManualClock, schema: pa.Schema, **options: Any) -> None:
        aims = options.pop("aims", FileSizeTargets(merge_files=16, keep_ms=1000))
        self.sink = TableSink(
            "events", **{"time": "at", **options}, folder=str(home / "events"), aims=aims
        )
        self._home, self.clock, self._schema = home, clock, schema
        self.files = Files(sync=False)
        self.receiver = self.open()

    def open(self, job: str = "history", generation: int = 0) -> Any:
        site = SinkSite(job, "to_events", self._schema, self.clock, self.files, generation)
        return self.sink.open(site)

    def epoch(self, number: int, *slots: list[dict[str, Any]], watermark: int = -END) -> SinkEpoch:
        """Prepare an epoch, a file for each slot."""
        prepared = []
        for slot, rows in enumerate(slots):
            batch = pa.RecordBatch.from_pylist(rows, self._schema)
            if late := [row.get("late", False) for row in rows if "late" in row]:
                batch = batch.append_column("__late", pa.array(late))
            path = self._home / f"{number}-{slot}.days"
            path.unlink(missing_ok=True)
            self.files.write_new(path, self.sink.prepare([batch], self._schema))
            prepared.append(Prepared(path, len(rows)))
        return SinkEpoch("lineage", number, tuple(prepared), watermark)

    def send(self, number: int, *slots: list[dict[str, Any]], watermark: int = -END) -> None:
        self.receiver.commit(self.epoch(number, *slots, watermark=watermark))


def row(day: float, user: str = "ann", n: int = 0) -> dict[str, Any]:
    return {"at": int((BEGIN + day * DAY) * 1000), "user": user, "n": n}


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(BEGIN + 400 * DAY - clock.now_ms())
    return clock


@pytest.fixture
def writer(tmp_path: Path, clock: ManualClock) -> Writer:
    return Writer(tmp_path, clock, SCHEMA)


def plain(home: Path) -> list[int]:
    return sorted(
        n for path in (home / "events").glob("*/*.parquet") for n in pl.read_parquet(path)["n"]
    )


def test_rows_of_a_day_are_sorted_in_its_folder(tmp_path: Path, clock: ManualClock) -> None:
    writer = Writer(tmp_path, clock, SCHEMA, sort_by=("user", "at"))
    writer.send(1, [row(0.5, "bob", 1), row(1.5, "ann", 2), row(0.7, "ann", 3), row(0.2, "bob", 4)])
    [first] = (tmp_path / "events" / "ds=2013-01-01").glob("*.parquet")
    [second] = (tmp_path / "events" / "ds=2013-01-02").glob("*.parquet")
    assert pq.ParquetFile(first).read()["n"].to_pylist() == [3, 4, 1]
    assert pq.ParquetFile(second).read()["n"].to_pylist() == [2]
    assert pq.ParquetFile(first).schema_arrow.remove_metadata() == SCHEMA


def test_an_epoch_of_several_slots_is_shown_at_once_and_counted_once(
    tmp_path: Path, writer: Writer
) -> None:
    for _ in range(3):
        writer.send(1, [row(0, n=1)], [row(0, n=2), row(3, n=3)])
    assert plain(tmp_path) == [1, 2, 3]
    assert [day.rows for day in hr.warehouse.Table(tmp_path / "events").days] == [2, 1]


def test_a_driver_that_is_late_with_an_old_epoch_changes_nothing(
    tmp_path: Path, writer: Writer
) -> None:
    old, late = writer.open(), writer.epoch(1, [row(0, n=1)])
    writer.receiver.commit(late)
    writer.send(2, [row(0, n=2)], watermark=BEGIN + 2 * DAY)
    version = hr.warehouse.Table(tmp_path / "events").version
    old.commit(late)
    assert version == hr.warehouse.Table(tmp_path / "events").version
    assert plain(tmp_path) == [1, 2]


def test_folders_that_do_not_show_the_snapshot_are_mended_at_the_next_start(
    tmp_path: Path, writer: Writer
) -> None:
    writer.send(1, [row(0, n=1), row(1, n=2)], watermark=BEGIN + DAY)
    place = TableLocation(tmp_path / "events")
    for path in (place.root / "ds=2013-01-01").iterdir():
        path.unlink()
    (place.root / "ds=2013-01-02").rename(place.root / "ds=2013-01-09")
    (place.data / "ds=2013-01-02" / "of-a-dead-commit.parquet").write_bytes(b"half")
    writer.open()
    assert plain(tmp_path) == [1, 2]
    assert (place.root / "ds=2013-01-01" / "_SUCCESS").exists()
    assert sorted(p.name for p in place.root.iterdir()) == ["ds=2013-01-01", "ds=2013-01-02"]
    assert len(list((place.data / "ds=2013-01-02").iterdir())) == 1


def test_the_mark_of_a_complete_day_tells_of_rows_that_came_later(
    tmp_path: Path, writer: Writer
) -> None:
    mark = tmp_path / "events" / "ds=2013-01-01" / "_SUCCESS"
    writer.send(1, [row(0.5), row(0.6)], watermark=BEGIN + DAY - 1)
    assert not mark.exists()
    writer.send(2, watermark=BEGIN + DAY)
    told = json.loads(mark.read_text())
    assert (told["rows"], told["late_rows"]) == (2, 0)
    rows = [row(0.9) | {"late": True}, row(1.9) | {"late": False}]
    writer.send(3, rows, watermark=BEGIN + DAY)
    told = json.loads(mark.read_text())
    assert (told["rows"], told["late_rows"]) == (3, 1)
    day, next_day = hr.warehouse.Table(tmp_path / "events").days
    assert (day.is_complete, day.late_rows) == (True, 1)
    assert (next_day.is_complete, next_day.late_rows) == (False, 0)


def test_small_files_are_merged_when_there_are_many_and_when_the_day_is_complete(
    tmp_path: Path, clock: ManualClock
) -> None:
    writer = Writer(tmp_path, clock, SCHEMA, aims=FileSizeTargets(merge_files=4, keep_ms=1000))
    counts = []
    for number in range(1, 8):
        writer.send(number, [row(0.1, n=10 - number)])
        counts.append(len(list((tmp_path / "events").glob("*/*.parquet"))))
    assert counts == [1, 2, 3, 1, 2, 3, 1]
    writer.send(8, [row(0.1, n=99)], watermark=BEGIN + DAY)
    [path] = (tmp_path / "events").glob("*/*.parquet")
    assert sorted(pq.ParquetFile(path).read()["n"].to_pylist()) == [3, 4, 5, 6, 7, 8, 9, 99]
    writer.send(9, [row(0.1, n=100)], watermark=BEGIN + DAY)
    assert len(list((tmp_path / "events").glob("*/*.parquet"))) == 2  # not for each late row


def test_files_of_about_the_aim_are_left_as_they_are(tmp_path: Path, clock: ManualClock) -> None:
    writer = Writer(tmp_path, clock, SCHEMA, aims=FileSizeTargets(file_bytes=4000, merge_files=2))
    for number in (1, 2):
        writer.send(number, [row(0.1, n=7919 * n * n) for n in range(400)])
    for number in (3, 4, 5):
        writer.send(number, [row(0.1, n=number)])
    writer.send(6, watermark=END)
    [day] = hr.warehouse.Table(tmp_path / "events").days
    assert (day.rows, day.files) == (803, 3)


def test_merged_files_stay_for_readers_that_have_begun(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    writer.send(1, [row(0, n=1)], [row(0, n=2)])
    table = hr.warehouse.Table(tmp_path / "events")
    writer.send(2, [row(0, n=3)], watermark=BEGIN + DAY)
    assert sorted(table.to_arrow()["n"].to_pylist()) == [1, 2]
    clock.advance(1001)
    writer.send(3, [row(5, n=4)])
    with pytest.raises(FileNotFoundError):
        table.to_arrow()
    table.refresh()
    assert sorted(table.to_arrow()["n"].to_pylist()) == [1, 2, 3, 4]


def test_files_stay_until_no_snapshot_names_them(tmp_path: Path, clock: ManualClock) -> None:
    """Though they need not stay for readers: who merges may die, or the disk be full."""
    writer = Writer(tmp_path, clock, SCHEMA, aims=FileSizeTargets(merge_files=4, keep_ms=0))
    place, events = TableLocation(tmp_path / "events"), tmp_path / "events"
    for number in range(1, 4):
        writer.send(number, [row(0, n=number)])
    files, writes = writer.receiver._files, list[int]()
    usual = files.replace

    def full(*given: Any) -> None:
        writes.append(1)
        if len(writes) == 2:  # the first one is of the epoch, the second of the merged file
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "replace", full)
        with pytest.raises(OSError, match="No space"):
            writer.send(4, [row(0, n=4)])
    assert sorted(hr.warehouse.Table(events).to_arrow()["n"].to_pylist()) == [1, 2, 3, 4]
    writer.receiver = writer.open()
    writer.send(4, [row(0, n=4)])
    assert plain(tmp_path) == [1, 2, 3, 4]
    assert sorted(hr.warehouse.Table(events).to_arrow()["n"].to_pylist()) == [1, 2, 3, 4]
    assert len([path for path in place.data.rglob("*") if path.is_file()]) == 1


def test_who_has_opened_the_folder_of_a_day_lists_all_of_it(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    """As it was when it was opened, though another one has taken its place since."""
    writer.send(1, [row(0, n=1)], [row(0, n=2)])
    folder = os.open(tmp_path / "events" / "ds=2013-01-01", os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        names = os.listdir(folder)
        writer.send(2, [row(0, n=3)], [row(0, n=4)], watermark=BEGIN + DAY)
        assert sorted(os.listdir(folder)) == sorted(names)
        clock.advance(1001)
        writer.send(3, [row(1, n=5)])
        assert os.listdir(folder) == []
    assert plain(tmp_path) == [1, 2, 3, 4, 5]
    stage = TableLocation(tmp_path / "events").stage
    assert [path for path in stage.rglob("*") if path.is_file()] == []


def test_columns_are_added_at_a_new_start_and_others_refused(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    writer.send(1, [row(0, n=1)])
    wider = pa.schema([*SCHEMA, ("shop", pa.string())])
    second = Writer(tmp_path, clock, wider)
    second.send(2, [{**row(0, n=2), "shop": "x"}])
    table = hr.warehouse.Table(tmp_path / "events")
    assert [r["shop"] for r in sorted(table.to_arrow().to_pylist(), key=lambda r: r["n"])] == [
        None,
        "x",
    ]
    assert table.schema.names == ["at", "user", "n", "shop"]
    second.send(3, watermark=BEGIN + DAY)
    [path] = (tmp_path / "events").glob("*/*.parquet")
    assert sorted(pq.ParquetFile(path).read()["shop"].to_pylist(), key=str) == [None, "x"]
    with pytest.raises(InvalidInputError, match=r"has columns \['shop'\], which the job does not"):
        writer.open()
    other = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("user", pa.string()), ("n", pa.string())]
    )
    Writer(tmp_path / "x", clock, SCHEMA)
    with pytest.raises(InvalidInputError, match="column 'n' of table 'events' is int64, the job"):
        Writer(tmp_path / "x", clock, other)


def test_retention_counts_from_the_newest_day_but_not_from_one_to_come(
    tmp_path: Path, clock: ManualClock
) -> None:
    writer = Writer(tmp_path, clock, SCHEMA, retention="2d")
    writer.send(1, [row(day, n=day) for day in range(4)])
    assert plain(tmp_path) == [2, 3]
    writer.send(2, [row(2_000, n=7)])  # far ahead of the clock, which is at day 400
    assert plain(tmp_path) == [2, 3, 7]
    writer.send(3, [row(399, n=8), row(400, n=9), row(398, n=10)])
    assert plain(tmp_path) == [7, 8, 9]


def test_retention_that_reaches_back_before_the_first_year_keeps_all(
    tmp_path: Path, clock: ManualClock
) -> None:
    writer = Writer(tmp_path, clock, SCHEMA, retention="999999d")
    writer.send(1, [row(0, n=1)])
    assert plain(tmp_path) == [1]


def test_columns_to_sort_by_that_are_named_twice_count_once() -> None:
    @hr.job("twice")
    def twice(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("t", sort_by=["user", "user"]))

    with TestDriver(twice) as driver:
        driver.create("in", {field.name: field.type for field in SCHEMA})
        driver.feed("in", [row(0, "bob"), row(0, "ann")])
        driver.run()
        table = Table(driver.settings.warehouse_dir / "t")
        assert table.to_arrow()["user"].to_pylist() == ["ann", "bob"]


def test_a_column_that_sql_takes_for_the_partition_is_refused() -> None:
    @hr.job("taken")
    def taken(g: hr.Graph) -> None:
        g.input("in", time="at").send_to(g.output_table("t"))

    with TestDriver(taken) as driver:
        driver.create("in", {"at": pa.timestamp("us", "UTC"), "DS": pa.string()})
        with pytest.raises(GraphError, match="column 'DS' has the name of the partition by day"):
            driver.start()


def test_a_table_is_of_one_job_and_of_one_column(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    with pytest.raises(InvalidInputError, match="is of job 'history', operator 'to_events'; expec"):
        writer.open(job="other")
    with pytest.raises(InvalidInputError, match="is by the day of column 'at', the job asks for"):
        Writer(tmp_path, clock, SCHEMA, time="n")
    (tmp_path / "y" / "events").mkdir(parents=True)
    (tmp_path / "y" / "events" / "mine.txt").touch()
    with pytest.raises(InvalidInputError, match=r"holds files that are of no table; found \['min"):
        Writer(tmp_path / "y", clock, SCHEMA)


def test_two_that_write_at_once_wait_for_each_other(tmp_path: Path, writer: Writer) -> None:
    with (
        writer.receiver._alone(),
        pytest.raises(ReceiverAwayError, match="is writing to table 'events'"),
    ):
        writer.send(1, [row(0)])


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(
    "point", ["warehouse.written", "warehouse.listed", "warehouse.shown", "warehouse.merged"]
)
def test_a_driver_that_freezes_in_its_commit_neither_holds_up_the_next_nor_changes_anything(
    tmp_path: Path, clock: ManualClock, point: str, nth: int
) -> None:
    """It has the lock of the table, and wakes when more was sent, marked and merged."""
    writer = Writer(tmp_path, clock, SCHEMA, aims=FileSizeTargets(merge_files=3, keep_ms=0))
    writer.receiver = writer.open(generation=1)
    writer.send(1, [row(0, n=1)])
    old, found = writer.receiver, []

    def take_over() -> None:
        writer.receiver = writer.open(generation=2)
        for epoch in range(2, 9):
            writer.send(epoch, [row(0, n=epoch)], watermark=BEGIN)
        writer.send(9, [row(1, n=9)], watermark=BEGIN + 2 * DAY)
        found.append((plain(tmp_path), TableLocation(tmp_path / "events").read()))

    def go_on() -> None:
        for epoch in range(2, 9):
            old.commit(writer.epoch(epoch, [row(0, n=epoch)], watermark=BEGIN))

    with call_at(point, take_over, nth), pytest.raises(NotOwnerError):
        go_on()
    [(rows, snapshot)] = found
    assert rows == list(range(1, 10))
    assert (plain(tmp_path), TableLocation(tmp_path / "events").read()) == (rows, snapshot)
    day = tmp_path / "events" / "ds=2013-01-01"
    assert (day / "_SUCCESS").exists()
    before = sorted(os.listdir(day))
    with pytest.raises(NotOwnerError):
        go_on()
    writer.receiver = writer.open(generation=3)
    assert sorted(os.listdir(day)) == before


def test_a_compaction_by_hand_that_freezes_holds_the_job_up_for_half_a_minute_only(
    tmp_path: Path, clock: ManualClock
) -> None:
    writer = Writer(tmp_path, clock, SCHEMA)
    writer.receiver = writer.open(generation=1)
    for epoch in range(1, 4):
        writer.send(epoch, [row(0, n=epoch)])
    by_hand = writer.open()

    def go_on() -> None:
        refused = 0
        while True:
            try:
                return writer.send(4, [row(0, n=4)])
            except ReceiverAwayError:
                refused += 1
                assert refused < 20

    with call_at("warehouse.merged", go_on), pytest.raises(NotOwnerError):
        by_hand.compact()
    assert plain(tmp_path) == [1, 2, 3, 4]


def test_a_snapshot_that_is_gone_or_damaged_is_told(tmp_path: Path, writer: Writer) -> None:
    place = TableLocation(tmp_path / "events")
    place.snapshot.write_text("{")
    with pytest.raises(CorruptDataError, match="cannot be read"):
        writer.send(1, [row(0)])
    place.snapshot.unlink()
    with pytest.raises(ReceiverAwayError, match="is gone; put it back"):
        writer.send(1, [row(0)])
    with pytest.raises(InvalidInputError, match="there is no table in"):
        hr.warehouse.Table(tmp_path / "events")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let snapshots be as those of large tables, which are not replaced by each commit."""
    monkeypatch.setattr("headrace.warehouse.snapshot.SMALL_BYTES", 0)


def test_a_commit_costs_what_it_changes_however_many_days_there_are(
    tmp_path: Path, clock: ManualClock
) -> None:
    """In bytes written beside the data, and in calls."""

    def cost(days: int) -> tuple[int, int]:
        home = tmp_path / str(days)
        writer = Writer(home, clock, SCHEMA)
        writer.send(1, [row(day - days, n=day) for day in range(days)])
        writer.send(2, [row(0)])
        control, calls = TableLocation(home / "events").control, 0

        def known() -> dict[tuple[str, int], int]:
            found = [(p.name, p.stat()) for p in control.glob("**/*.json")]
            return {(name, file.st_mtime_ns): file.st_size for name, file in found}

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        before, epochs = known(), [writer.epoch(number, [row(0)]) for number in range(3, 9)]
        sys.setprofile(counted)
        try:
            for epoch in epochs:
                writer.receiver.commit(epoch)
        finally:
            sys.setprofile(None)
        written = sum(size for file, size in known().items() if file not in before)
        assert sum(day.rows for day in hr.warehouse.Table(home / "events").days) == days + 7
        return written, calls

    few, many = cost(200), cost(800)
    assert many[0] <= 1.2 * few[0]
    assert many[1] <= 1.2 * few[1]


@pytest.mark.usefixtures("large")
def test_readers_and_the_next_driver_see_a_snapshot_with_all_changes_since(
    tmp_path: Path, writer: Writer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.warehouse.snapshot.MOST_CHANGES", 7)
    place, versions = TableLocation(tmp_path / "events"), []
    for number in range(1, 30):
        writer.send(number, [row(number % 5, n=number)], watermark=BEGIN + number // 10 * DAY)
        table = hr.warehouse.Table(tmp_path / "events")
        assert sorted(table.to_arrow()["n"].to_pylist()) == list(range(1, number + 1))
        versions.append(table.version)
        clock.advance(500)
        if number % 4 == 0:
            writer.receiver = writer.open()
    assert versions == sorted(set(versions))
    assert [day.is_complete for day in table.days] == [True, True, False, False, False]
    assert len(list(place.changes.iterdir())) < 7
    assert plain(tmp_path) == list(range(1, 30))


@pytest.mark.usefixtures("large")
def test_an_epoch_of_the_lineage_before_is_known_whatever_came_since(
    tmp_path: Path, writer: Writer
) -> None:
    """Also when its files are merged, by the changes, each of which tells of one lineage."""
    sent = writer.epoch(1, [row(0, n=1)])
    writer.receiver.commit(sent)
    later = writer.epoch(2, [row(0, n=2)], watermark=BEGIN + 2 * DAY)
    writer.receiver.commit(dataclasses.replace(later, lineage="other"))
    writer.receiver = writer.open()
    writer.receiver.commit(sent)
    assert plain(tmp_path) == [1, 2]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("last", range(5, 10))
def test_a_reader_that_meets_a_new_snapshot_reads_again(
    tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Between the snapshot and the changes since, of which some or all go with it."""
    monkeypatch.setattr("headrace.warehouse.snapshot.MOST_CHANGES", 4)
    for number in range(1, 5):
        writer.send(number, [row(0, n=number)])
    usual, is_read = os.listdir, [False]

    def meanwhile(folder: Any) -> list[str]:
        if not is_read[0]:
            is_read[0] = True
            for number in range(5, last + 1):
                writer.send(number, [row(0, n=number)])
        return usual(folder)

    monkeypatch.setattr("headrace.warehouse.snapshot.os.listdir", meanwhile)
    table = hr.warehouse.Table(tmp_path / "events")
    assert sorted(table.to_arrow()["n"].to_pylist()) == list(range(1, last + 1))


@pytest.mark.usefixtures("large")
def test_a_change_that_is_gone_or_damaged_is_told(tmp_path: Path, writer: Writer) -> None:
    for number in range(1, 4):
        writer.send(number, [row(0, n=number)])
    place = TableLocation(tmp_path / "events")
    first, second, *_ = sorted(place.changes.iterdir())
    whole = second.read_bytes()
    second.write_text("{")
    with pytest.raises(CorruptDataError, match=f"{second.name} cannot be read"):
        hr.warehouse.Table(tmp_path / "events")
    second.write_bytes(whole)
    first.unlink()
    with pytest.raises(CorruptDataError, match=r"are missing: found .* expected all from"):
        hr.warehouse.Table(tmp_path / "events")


@pytest.mark.usefixtures("large")
def test_of_two_commits_of_one_number_one_counts(tmp_path: Path, writer: Writer) -> None:
    """A driver that read before the other one wrote, and froze."""
    writer.send(1, [row(0, n=1)])
    late = writer.epoch(2, [row(0, n=2)])
    place = TableLocation(tmp_path / "events")
    change = place.change(hr.warehouse.Table(tmp_path / "events").version + 1)

    def overtaken() -> None:
        change.write_bytes(msgspec.json.encode(SnapshotChange(int(change.stem), -END)))

    with call_at("warehouse.written", overtaken), pytest.raises(ReceiverAwayError):
        writer.receiver.commit(late)
    writer.receiver.commit(late)
    assert plain(tmp_path) == [1, 2]
    assert hr.warehouse.Table(tmp_path / "events").to_arrow()["n"].to_pylist() == [1, 2]


def test_where_folders_cannot_be_exchanged_nothing_is_merged(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_renameat2", lambda: None)
    writer = Writer(tmp_path, clock, SCHEMA, aims=FileSizeTargets(merge_files=2))
    for number in range(1, 5):
        writer.send(number, [row(0, n=2 * number)], [row(0, n=2 * number + 1)])
    writer.send(5, watermark=END)
    assert list(range(2, 10)) == plain(tmp_path)
    assert len(list((tmp_path / "events").glob("*/*.parquet"))) == 8
    with pytest.raises(InvalidInputError, match="cannot exchange two folders in one step"):
        writer.receiver.compact()


def test_compaction_by_hand_merges_all_small_files(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    for number in range(1, 4):
        writer.send(number, [row(0, n=number), row(1, n=10 + number)])
    assert compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), clock) == (6, 2)
    assert plain(tmp_path) == [1, 2, 3, 11, 12, 13]
    writer.send(4, [row(1, n=14)])
    assert plain(tmp_path) == [1, 2, 3, 11, 12, 13, 14]


def test_a_job_goes_on_after_a_compaction_by_hand_beside_it(
    tmp_path: Path, writer: Writer, clock: ManualClock
) -> None:
    """Which clears away folders that the job's driver had kept for later."""
    for number in (1, 2, 3):
        writer.send(number, [row(0, n=2 * number)], [row(0, n=2 * number + 1)])
        if number == 2:
            compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), clock)
    writer.send(4, [row(0, n=8)])
    assert compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), clock) == (4, 1)
    writer.send(5, [row(0, n=9)], [row(0, n=10)])
    assert plain(tmp_path) == list(range(2, 11))


def test_an_epoch_gets_in_between_two_steps_of_a_compaction_by_hand(
    tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "BUDGET_BYTES", 1)  # a day in each step
    for number in (1, 2):
        writer.send(number, [row(day, n=10 * day + number) for day in range(3)])

    class Between(ManualClock):
        """Sends an epoch in each pause."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            epochs.append(writer.epoch(3 + len(epochs), [row(0, n=100 + len(epochs))]))
            writer.receiver.commit(epochs[-1])

    epochs: list[SinkEpoch] = []
    counted = compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), Between())
    assert len(epochs) >= 3
    assert counted[0] == 6
    assert plain(tmp_path) == [1, 2, 11, 12, 21, 22, *(100 + n for n in range(len(epochs)))]


def test_a_compaction_by_hand_goes_on_as_long_as_its_steps_are_done(
    tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it waits for epochs in all; for one step, it does not wait that long."""
    monkeypatch.setattr(receiver, "BUDGET_BYTES", 1)  # a day in each step
    for number in (1, 2):
        writer.send(number, [row(day, n=10 * day + number) for day in range(5)])

    class Busy(ManualClock):
        """Between two steps, an epoch takes most of the time that is waited for one."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if seconds == receiver.LISTED_S:
                held.enter_context(writer.receiver._alone())
                begun.append(self.monotonic())
            elif begun and self.monotonic() - begun[-1] > limit_s:
                held.close()

    held, limit_s = contextlib.ExitStack(), 0.6 * WAIT_S
    begun = list[float]()
    with held:
        assert (
            compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), Busy(seed=1))[
                1
            ]
            == 5
        )
    assert len(begun) == 5
    for number in (3, 4):
        writer.send(number, [row(day, n=10 * day + number) for day in range(5)])
    limit_s, begun = 2 * WAIT_S, []
    with held, pytest.raises(ReceiverAwayError, match="is writing to table"):
        compact_table(tmp_path / "events", FileSizeTargets(), Files(sync=False), Busy(seed=2))


def test_days_are_chosen_by_their_names(tmp_path: Path, writer: Writer) -> None:
    writer.send(1, [row(day, n=day) for day in range(5)])
    table = hr.warehouse.Table(tmp_path / "events")
    assert table.to_arrow("2013-01-02..2013-01-04")["n"].to_pylist() == [1, 2, 3]
    assert [dt.date(2013, 1, 3)] == table.to_arrow("2013-01-03")["ds"].to_pylist()
    assert sum(batch.num_rows for batch in table.batches("2013-01-05..2013-02-01")) + 1 == 2
    with pytest.raises(InvalidInputError, match="found days 'May', expected a day such as"):
        table.files("May")


def test_mistakes_of_an_output_table_are_told_with_the_graph() -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        rows = g.input("in", schema={"id": int, "ds": str, "at": dt.datetime})
        rows.send_to(
            g.output_table("no/name", "hour", late="later", allowed_lateness="-1s", retention="1h")
        )
        rows.send_to(g.output_table("two", time="id2"), name="b")

    with pytest.raises(GraphError) as found:
        wrong.build()
    text = str(found.value)
    assert "'no/name' cannot name a table" in text
    assert "partition_by is 'hour'; expected 'day'" in text
    assert "late is 'later'; expected one of add, drop, dead_letter, fail" in text
    assert "allowed_lateness" in text
    assert "retention" in text
