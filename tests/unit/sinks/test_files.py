"""File sinks: what plain readers see, what merging does, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.support.changes import unconfirmed
from tests.support.homes import Files, control_folder
from tests.support.plans import explain, plan

import headrace as hr
from headrace import Job
from headrace.errors import GraphError, InvalidInputError, NotOwnerError
from headrace.testing import ManualClock, TestDriver, call_at

ROWS = pa.schema({"n": pa.int64()})


def copying(sink: Any, name: str | None = None, job: str = "copy") -> Job:
    @hr.job(job)
    def copy(g: hr.Graph) -> None:
        g.input("in", schema={"n": int}).send_to(sink, name=name)

    return copy


class Sender:
    """Commits epochs of numbers to a file sink by hand."""

    def __init__(
        self, sink: hr.sinks.FileSink, home: Path, operator: str = "out", generation: int = 0
    ) -> None:
        self.sink, self.home, self.clock = sink, home, ManualClock()
        files = Files(sync=False)
        self.site = hr.sinks.SinkSite("job", operator, ROWS, self.clock, files, generation)
        self.receiver = sink.open(self.site)

    def commit(self, epoch: int, *parts: list[int], lineage: str = "a") -> None:
        files = []
        for number, values in enumerate(parts):
            path = self.home / f"{lineage}-{epoch}-{number}.{self.sink.suffix}"
            if not path.exists():
                batch = pa.record_batch({"n": pa.array(values, pa.int64())})
                Files(sync=False).write_new(path, self.sink.prepare([batch], ROWS))
            files.append(hr.sinks.Prepared(path, len(values)))
        self.receiver.commit(hr.sinks.SinkEpoch(lineage, epoch, tuple(files)))


def numbers(folder: Path) -> list[int]:
    files = hr.sinks.committed_files(folder)
    return [n for path in files for n in pl.read_parquet(path)["n"].to_list()]


def test_duckdb_polars_and_pandas_read_the_folder_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sender = Sender(hr.sinks.parquet(folder), tmp_path)
    for epoch in range(1, 4):
        sender.commit(epoch, [epoch], [epoch * 10])
    wanted = [1, 2, 3, 10, 20, 30]
    found = duckdb.execute(f"select n from '{folder}/*/*.parquet' order by n").fetchall()
    assert [n for (n,) in found] == wanted
    assert pl.scan_parquet(f"{folder}/*/*.parquet").collect()["n"].sort().to_list() == wanted
    assert sorted(pd.read_parquet(folder)["n"]) == wanted
    assert numbers(folder) == [1, 10, 2, 20, 3, 30]


def test_an_epoch_is_there_once_however_often_it_is_committed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = Sender(hr.sinks.parquet(folder), tmp_path)
    for _ in range(3):
        first.commit(1, [1, 2])
    second = Sender(hr.sinks.parquet(folder), tmp_path)
    second.commit(1, [1, 2])
    second.commit(2, [3])
    first.commit(1, [1, 2])  # an older driver that was held up
    second.commit(1, [7], lineage="b")
    assert sorted(numbers(folder)) == [1, 2, 3, 7]
    assert list(control_folder(folder).glob("fence/*/*")) == []


def test_small_files_are_merged_and_read_once_at_any_time(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sink = hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=4, keep="10s")
    sender = Sender(sink, tmp_path)
    seen: list[int] = []
    old: list[str] = []
    for epoch in range(1, 14):
        sender.commit(epoch, [epoch], [epoch + 100])
        sender.commit(epoch, [epoch], [epoch + 100])
        seen += [epoch, epoch + 100]
        assert sorted(numbers(folder)) == sorted(seen)
        old = old or (hr.sinks.committed_files(folder) if epoch == 3 else [])
    assert len(hr.sinks.committed_files(folder)) == 3 + 2
    assert all(Path(path).exists() for path in old), "a reader that has begun may end"
    sender.clock.advance(10_000)
    sender.commit(14, [14])
    assert not any(Path(path).exists() for path in old)
    sender.commit(2, [2], [102])  # merged long ago, its folder is gone
    sender.commit(12, [12], [112])  # the last one that was merged
    assert sorted(numbers(folder)) == sorted([*seen, 14])


def test_an_epoch_costs_the_same_however_many_were_merged_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that were merged are not listed, and merged ones that stayed small are merged."""
    folder = tmp_path / "out"
    sender = Sender(hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=4), tmp_path)
    listed, usual = list[str](), os.listdir

    def listdir(place: Any) -> list[str]:
        listed.append(str(place))
        return usual(place)

    sender.commit(1, [1])
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", listdir)
        for epoch in range(2, 4**3 + 4):
            sender.commit(epoch, [epoch])
            sender.clock.advance(1_000_000)
    assert listed
    assert str(folder) not in listed
    assert numbers(folder) == list(range(1, 4**3 + 4))
    assert len(hr.sinks.committed_files(folder)) <= 3 * 3
    again = Sender(sender.sink, tmp_path)
    again.commit(4**3 + 3, [0])
    again.commit(4**3 + 4, [4**3 + 4])
    assert numbers(folder) == list(range(1, 4**3 + 5))


def test_what_another_sends_meanwhile_is_merged_too(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sink = hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=4)
    live, backfill = Sender(sink, tmp_path), Sender(sink, tmp_path)
    for epoch in range(1, 5):
        live.commit(epoch, [epoch])
        backfill.commit(epoch, [epoch * 10], lineage="b")
    assert sorted(numbers(folder)) == [1, 2, 3, 4, 10, 20, 30, 40]
    assert len(hr.sinks.committed_files(folder)) == 2


def test_merging_goes_by_bytes_too(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sender = Sender(hr.sinks.parquet(folder, merge_bytes=100), tmp_path)
    for epoch in range(1, 5):
        sender.commit(epoch, [epoch])
    assert len(hr.sinks.committed_files(folder)) == 2
    assert numbers(folder) == [1, 2, 3, 4]


def test_what_has_other_columns_is_not_merged_together(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sender = Sender(hr.sinks.parquet(folder, merge_bytes=1 << 20, merge_epochs=3), tmp_path)
    for epoch in (1, 2):
        sender.commit(epoch, [epoch])
    path = tmp_path / "wider.parquet"
    pl.DataFrame({"n": [3], "new": ["x"]}).write_parquet(path)
    file = hr.sinks.Prepared(path, 1)
    sender.receiver.commit(hr.sinks.SinkEpoch("a", 3, (file,)))
    files = hr.sinks.committed_files(folder)
    assert [pl.read_parquet(path).columns for path in files] == [["n"], ["n", "new"]]


def test_what_a_killed_driver_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    Sender(hr.sinks.parquet(folder), tmp_path, generation=1).commit(1, [1])
    [own] = (control_folder(folder) / "fence").iterdir()
    (own / "left").mkdir()
    (folder / "merged-000000000001-000000000001-00000000").mkdir()
    Sender(hr.sinks.parquet(folder), tmp_path, generation=2)
    assert [path.name[:12] for path in folder.iterdir()] == ["000000000001"]
    assert list(control_folder(folder).glob("fence/*/*")) == []


def test_a_folder_of_another_sender_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    Sender(hr.sinks.parquet(folder), tmp_path)
    with pytest.raises(InvalidInputError, match=r"is of job 'job', operator 'out', .*'other'"):
        Sender(hr.sinks.parquet(folder), tmp_path, "other")
    with pytest.raises(InvalidInputError, match=r"files of parquet; expected .* csv"):
        Sender(hr.sinks.csv(folder), tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").touch()
    with pytest.raises(InvalidInputError, match=r"no sink put there; found \['mine.txt'\]"):
        Sender(hr.sinks.parquet(tmp_path / "used"), tmp_path)
    with pytest.raises(InvalidInputError, match="is not the folder of a sink"):
        hr.sinks.committed_files(tmp_path)


def test_a_folder_that_went_away_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sender = Sender(hr.sinks.parquet(folder), tmp_path)
    control_folder(folder).rename(tmp_path / "away")
    with pytest.raises(hr.sinks.ReceiverAwayError, match="mount its file system again"):
        sender.commit(1, [1])
    (tmp_path / "away").rename(control_folder(folder))
    sender.commit(1, [1])
    assert numbers(folder) == [1]


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (hr.sinks.parquet("out"), "folder is 'out'; expected an absolute path below /"),
        (hr.sinks.csv("/out", merge_bytes=0), "merge_bytes is 0; expected at least 1"),
        (hr.sinks.csv("/out", keep="soon"), "keep"),
        (7, r"send_to takes \"name\", g.output\(\"name\"\) or a sink; found 7"),
    ],
)
def test_mistakes_are_told_when_the_graph_is_built(sink: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        copying(sink).build()


def test_a_sink_that_nothing_is_sent_to_is_told() -> None:
    @hr.job("idle")
    def idle(g: hr.Graph) -> None:
        g.output_sink(hr.sinks.parquet("/out"))
        g.output_sink("nothing")  # type: ignore[arg-type]

    with pytest.raises(GraphError, match=r"(?s)found 'nothing', expected a sink.*nothing is sent"):
        idle.build()


def test_columns_without_a_form_are_told_when_the_job_is_planned() -> None:
    @hr.job("lists")
    def lists(g: hr.Graph) -> None:
        stream = g.input("in", schema={"l": list[int], "b": bytes})
        stream.send_to(g.output_sink(hr.sinks.csv("/out")))
        stream.send_to(hr.sinks.json_lines("/lines"))

    with pytest.raises(GraphError) as failure:
        plan(lists.build(), {})
    told = str(failure.value)
    assert "column 'l' is list<item: int64>, for which CSV has no form" in told
    assert "column 'b' is binary, for which JSON lines has no form" in told


def test_explain_says_where_rows_go_and_what_is_promised() -> None:
    text = explain(plan(copying(hr.sinks.parquet("/lake/orders")).build(), {}))
    assert "in.to_orders" in text
    assert "sink Parquet files in /lake/orders" in text
    assert "exactly-once: an epoch is there whole or not at all" in text


def started(job: Job, home: Path) -> TestDriver:
    driver = TestDriver(job, home=home, memory_bus=False)
    if "in" not in driver.bus.names():
        driver.create("in", ROWS)
    return driver


def test_another_folder_under_the_same_name_is_refused(tmp_path: Path) -> None:
    with started(copying(hr.sinks.parquet(tmp_path / "a"), "out"), tmp_path / "home") as driver:
        driver.feed("in", [{"n": 1}])
        driver.run()
    moved = copying(hr.sinks.parquet(tmp_path / "b"), "out")
    with (
        started(moved, tmp_path / "home") as driver,
        pytest.raises(InvalidInputError, match=r"to was Parquet files in .*/a, is now .*/b; which"),
    ):
        driver.start()
    assert not (tmp_path / "b").exists()
    renamed = copying(hr.sinks.parquet(tmp_path / "b"), "there")
    with started(renamed, tmp_path / "home") as driver:
        driver.feed("in", [{"n": 2}])
        driver.run()
    assert (numbers(tmp_path / "a"), numbers(tmp_path / "b")) == ([1], [2])


def test_a_sink_that_was_taken_out_before_it_confirmed_is_told(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with started(copying(hr.sinks.parquet(tmp_path / "a")), home) as driver:
        driver.feed("in", [{"n": 1}])
        assert driver.advance_with_crash("commit.published")
        with pytest.raises(InvalidInputError, match="have not confirmed them yet; start the job"):
            unconfirmed(driver)
    without = copying(hr.sinks.parquet(tmp_path / "b"))
    with (
        started(without, home) as driver,
        pytest.raises(InvalidInputError, match=r"sent rows to sinks \['in.to_a'\]"),
    ):
        driver.start()
    with started(copying(hr.sinks.parquet(tmp_path / "a")), home) as driver:
        driver.start()
    with started(without, home) as driver:
        driver.start()
    assert numbers(tmp_path / "a") == [1]


def test_a_damaged_file_is_not_handed_on(tmp_path: Path) -> None:
    with started(copying(hr.sinks.parquet(tmp_path / "a")), tmp_path / "home") as driver:
        driver.feed("in", [{"n": 1}])
        assert driver.advance_with_crash("commit.published")
        [path] = (driver.storage / "output").iterdir()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(Exception, match=r"sends to its sink, is damaged"):
            driver.start()
        assert list((tmp_path / "a").iterdir()) == []


def test_where_a_file_cannot_be_linked_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    sender = Sender(hr.sinks.parquet(tmp_path / "out"), tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    sender.commit(1, [1])
    assert numbers(tmp_path / "out") == [1]


MERGED = {"merge_bytes": 1 << 30, "merge_epochs": 2, "keep": "0s"}


@pytest.mark.parametrize("point", ["sink.sent", "sink.merged", "sink.listed"])
def test_a_driver_that_freezes_in_its_commit_neither_holds_up_the_next_nor_changes_anything(
    tmp_path: Path, point: str
) -> None:
    """It has the lock of the folder, and keeps it; it wakes when more was sent, merged, removed."""
    folder = tmp_path / "out"
    sink = hr.sinks.parquet(folder, **MERGED)  # type: ignore[arg-type]
    old = Sender(sink, tmp_path, generation=1)
    old.commit(1, [1])
    found: list[list[int]] = []

    def take_over() -> None:
        new = Sender(sink, tmp_path, generation=2)
        for epoch in range(2, 6):
            new.commit(epoch, [epoch])
        found.append(numbers(folder))

    def send() -> None:
        old.commit(2, [2])
        old.commit(3, [3])

    with call_at(point, take_over), pytest.raises(NotOwnerError):
        send()
    assert found == [[1, 2, 3, 4, 5]]
    for epoch in range(1, 6):
        with pytest.raises(NotOwnerError):
            old.commit(epoch, [epoch])
    assert numbers(folder) == [1, 2, 3, 4, 5]


def test_a_backfill_that_freezes_holds_the_job_up_for_half_a_minute_only(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sink = hr.sinks.parquet(folder)
    job, backfill = Sender(sink, tmp_path, generation=1), Sender(sink, tmp_path)

    def go_on() -> None:
        with pytest.raises(hr.sinks.ReceiverAwayError, match="another process is writing"):
            job.commit(1, [1])
        job.clock.advance(29_000)
        with pytest.raises(hr.sinks.ReceiverAwayError, match="another process is writing"):
            job.commit(1, [1])
        job.clock.advance(2_000)
        job.commit(1, [1])

    with call_at("sink.sent", go_on), pytest.raises(NotOwnerError):
        backfill.commit(1, [7], lineage="old")
    assert numbers(folder) == [1]
