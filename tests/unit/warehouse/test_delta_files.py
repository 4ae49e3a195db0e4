"""Files of a Delta table: what compaction removes, and what a commit that failed leaves."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake.exceptions
import deltalake.table
import pyarrow as pa
import pytest
from tests.support.limits import limit

from headrace.errors import NotOwnerError
from headrace.faults import injected
from headrace.files import Files
from headrace.graph.sinks import LATE_ROW, Prepared, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.testing import ManualClock, call_at
from headrace.warehouse import Table, delta
from headrace.warehouse.day_files import FileSizeTargets
from headrace.warehouse.sink import TableSink, compact_table

DAY = 86_400_000
BEGIN = 15_706 * DAY
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
FILES = Files(sync=False)
AIMS = FileSizeTargets(merge_files=16, keep_ms=1000)


class Died(BaseException):
    """The driver ends here."""


class Sent:
    """A table that epochs are sent to as a driver would."""

    def __init__(self, home: Path, **options: Any) -> None:
        self._home, self.clock = home, ManualClock()
        self.clock.advance(BEGIN + 100 * DAY - self.clock.now_ms())
        self.folder = home / "events"
        self.sink = TableSink(
            "events", "at", form="delta", folder=str(self.folder), aims=AIMS, **options
        )
        self.reopen()

    def reopen(self, generation: int = 0) -> None:
        """Let another driver go on."""
        site = SinkSite("history", "out", SCHEMA, self.clock, FILES, generation)
        self.receiver = self.sink.open(site)

    def epoch(self, number: int, *days: float, watermark: float = -1, late: int = 0) -> SinkEpoch:
        """Return an epoch with a row for each day, of which the first ones are late."""
        rows = [{"at": int((BEGIN + day * DAY) * 1000), "n": number} for day in days]
        path = self._home / f"{number}.days"
        batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
        batch = batch.append_column(LATE_ROW, pa.array([n < late for n in range(len(rows))]))
        path.unlink(missing_ok=True)
        FILES.write_new(path, self.sink.prepare([batch], SCHEMA))
        held = (Prepared(path, len(rows)),)
        return SinkEpoch("lineage", number, held, int(BEGIN + watermark * DAY))

    def send(self, number: int, *days: float, watermark: float = -1, late: int = 0) -> None:
        self.receiver.commit(self.epoch(number, *days, watermark=watermark, late=late))

    def compact(self) -> tuple[int, int]:
        return compact_table(self.folder, AIMS, FILES, self.clock)

    def on_disk(self) -> set[str]:
        return {f"{path.parent.name}/{path.name}" for path in self.folder.glob("ds=*/*.parquet")}

    def named(self) -> set[str]:
        found = deltalake.DeltaTable(str(self.folder)).file_uris()
        return {"/".join(uri.split("/")[-2:]) for uri in found}


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path)


@pytest.mark.parametrize("times", [2, 10_000])
def test_compaction_that_a_dropped_day_refuses_is_tried_again_for_a_while(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    limit(monkeypatch, table_wait_s=3)
    for number in range(1, 4):
        sent.send(number, 0)
    usual, tries = deltalake.table.TableOptimizer.compact, list[int]()

    def refused(self: Any) -> Any:
        tries.append(1)
        if len(tries) <= times:
            raise deltalake.exceptions.CommitFailedError("deleted the same data")
        return usual(self)

    monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", refused)
    if times == 2:
        assert sent.compact() == (3, 1)
        return
    begin = sent.clock.now_ms()
    with pytest.raises(ReceiverAwayError, match="deleted the same data"):
        sent.compact()
    assert sent.clock.now_ms() - begin >= 3_000


def age(path: Path) -> Path:
    """Let a file be of last year."""
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


def test_compaction_removes_what_no_version_names_and_leaves_marks(tmp_path: Path) -> None:
    sent = Sent(tmp_path, retention="2d")
    sent.send(1, 0)
    none = "interval 0 seconds"
    kept = {f"delta.{name}RetentionDuration": none for name in ("deletedFile", "log")}
    deltalake.DeltaTable(str(sent.folder)).alter.set_table_properties(kept)
    first = sent.on_disk()
    sent.send(2, 1, 2, 3, watermark=3)
    sent.send(3, 3)
    assert not first & sent.named()
    assert first <= sent.on_disk()
    deltalake.DeltaTable(str(sent.folder)).create_checkpoint()
    marks = {age(path) for path in sent.folder.glob("ds=*/_SUCCESS")}
    assert marks
    orphan = next(iter(marks)).with_name("orphan.parquet")
    orphan.write_bytes(b"never named")
    for path in sent.folder.glob("ds=*/*.parquet"):
        age(path)
    before = sent.named()

    sent.compact()

    assert sent.on_disk() == sent.named() | before
    assert set(sent.folder.glob("ds=*/_SUCCESS")) == marks


def test_a_mark_that_somebody_removed_comes_back_with_the_next_epoch(sent: Sent) -> None:
    sent.send(1, 0, 1, watermark=1.5)
    (mark,) = sent.folder.glob("ds=*/_SUCCESS")
    said = mark.read_bytes()
    mark.unlink()
    sent.send(2, 2, watermark=1.5)
    assert mark.read_bytes() == said


@pytest.mark.parametrize("is_there", [False, True])
def test_a_commit_that_is_refused_leaves_no_files(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    sent.send(1, 0)
    usual, tries = deltalake.DeltaTable.create_write_transaction, list[int]()

    def refused(self: Any, *given: Any, **named: Any) -> None:
        tries.append(1)
        if is_there or len(tries) > 2:
            usual(self, *given, **named)
        if is_there or len(tries) <= 2:
            raise deltalake.exceptions.CommitFailedError("a newer version")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", refused)
    epoch = sent.epoch(2, 0, 1)
    for _ in range(1 if is_there else 2):
        with pytest.raises(ReceiverAwayError, match="a newer version"):
            sent.receiver.commit(epoch)
    sent.receiver.commit(epoch)
    assert len(tries) == (1 if is_there else 3)
    assert sent.on_disk() == sent.named()
    assert len(sent.named()) == 3


def test_compaction_leaves_what_may_still_be_read_or_written_whatever_the_table_says(
    sent: Sent,
) -> None:
    """A property of no time at all would take files of readers, and of the epoch under way."""
    for number in (1, 2):
        sent.send(number, 0)
    none = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    deltalake.DeltaTable(str(sent.folder)).alter.set_table_properties(none)
    before = sent.on_disk()
    under_way = sent.folder / "ds=2013-01-01" / "under-way.parquet"
    under_way.write_bytes(b"of an epoch that is not committed yet")

    assert sent.compact() == (2, 1)

    assert under_way.exists()
    assert before < sent.on_disk()
    assert not before & sent.named()


def test_late_rows_of_a_day_are_counted_once_and_outlive_compactions_and_others(
    tmp_path: Path,
) -> None:
    sent = Sent(tmp_path, retention="3d")

    def late() -> dict[str, int]:
        return {day.day: day.late_rows for day in Table(sent.folder).days if day.late_rows}

    sent.send(1, 0, 1, watermark=1.5)
    assert late() == {}
    sent.send(2, 0.2, 0.4, 1.9, watermark=1.5, late=2)
    mark = sent.folder / "ds=2013-01-01" / "_SUCCESS"
    assert json.loads(mark.read_bytes())["late_rows"] == 2
    assert late() == {"2013-01-01": 2}
    sent.reopen()
    sent.send(2, 0.2, 0.4, 1.9, watermark=1.5, late=2)  # again, by a driver that does not know
    assert late() == {"2013-01-01": 2}
    sent.compact()
    deltalake.DeltaTable(str(sent.folder)).alter.set_table_properties(
        {"by": "x"}, raise_if_not_exists=False
    )
    sent.reopen()
    sent.send(3, 0.3, 1.95, watermark=1.5, late=1)
    assert late() == {"2013-01-01": 3}
    assert json.loads(mark.read_bytes())["late_rows"] == 3
    sent.send(4, 3, watermark=1.5)  # which drops the first day
    sent.send(5, 1.1, watermark=3, late=1)
    assert late() == {"2013-01-02": 1}


@pytest.mark.parametrize("point", ["warehouse.written", "warehouse.listed", "warehouse.shown"])
def test_late_rows_count_once_though_the_driver_dies(sent: Sent, point: str) -> None:
    def die(passed: str) -> None:
        if passed == point:
            raise Died

    sent.send(1, 0, 1, watermark=1.5)
    with injected(die, (point,)), pytest.raises(Died):
        sent.send(2, 0.2, watermark=1.5, late=1)
    sent.reopen()
    sent.send(2, 0.2, watermark=1.5, late=1)
    (day, _) = Table(sent.folder).days
    assert (day.rows, day.late_rows) == (2, 1)
    mark = json.loads((sent.folder / "ds=2013-01-01" / "_SUCCESS").read_bytes())
    assert (mark["rows"], mark["late_rows"]) == (2, 1)


def test_a_table_of_before_they_were_counted_has_none(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(delta, "LATE", "of another name")
        sent.send(1, 0, 0.5, watermark=0, late=1)
    assert [day.late_rows for day in Table(sent.folder).days] == [0]
    sent.send(2, 0.7, watermark=0, late=1)
    assert [day.late_rows for day in Table(sent.folder).days] == [1]


@pytest.mark.parametrize("point", ["warehouse.written", "warehouse.listed"])
def test_a_driver_that_freezes_in_its_commit_changes_nothing_after_the_next_one(
    sent: Sent, point: str
) -> None:
    """Not even of a lineage that the table knows nothing of, as after the loss of its host."""
    sent.reopen(generation=1)
    sent.send(1, 0)
    old, found = sent.receiver, list[tuple[set[str], bytes]]()

    def content() -> tuple[set[str], bytes]:
        return sent.named(), (sent.folder / "ds=2013-01-01" / "_SUCCESS").read_bytes()

    def take_over() -> None:
        sent.reopen(generation=2)
        for number in range(2, 5):
            sent.send(number, 0, watermark=2)
        found.append(content())

    late = replace(sent.epoch(2, 0, watermark=2), lineage="other")
    with call_at(point, take_over), pytest.raises((NotOwnerError, ReceiverAwayError)):
        old.commit(late)
    assert [content()] == found
    with pytest.raises(NotOwnerError):
        old.commit(late)
    with pytest.raises(NotOwnerError):
        sent.reopen(generation=1)
    assert [content()] == found
    assert sent.on_disk() >= sent.named()
