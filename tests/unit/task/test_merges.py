"""Merges beside the epochs, in a whole job: reported once, tried again, never in the way."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.clock import Deadline, SystemClock
from headrace.errors import CorruptDataError
from headrace.faults import injected
from headrace.files import Bytes, Files
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment_reader import SegmentReader
from headrace.task.background import InlineBackground, ThreadBackground
from headrace.task.merges import GIVE_UP_EPOCHS, RETRY_EPOCHS
from headrace.testing import TestDriver
from headrace.testing.processes import wait_until


class Last:
    """Keeps the last value of each key, and deletes those that are negative."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.v < 0:
            context.store("last").delete(message.k)
        else:
            context.store("last").put(message.k, message.v)


def make(kind: str) -> hr.Job:
    @hr.job("last")
    def last(g: hr.Graph) -> None:
        stores = (hr.store("last", int, kind=kind),)
        g.input("in").partition_by("k").process(Last, stores=stores, name="p")

    return last


class FullDisk(Files):
    """Refuses to write what is merged."""

    is_full = False

    def write_new(self, path: Path, chunks: Iterable[Bytes], *, durable: bool = True) -> int:
        def cut() -> Iterator[Bytes]:
            for number, chunk in enumerate(chunks):
                if self.is_full and number:
                    raise OSError(errno.ENOSPC, "no space left on device", str(path))
                yield chunk

        own = cut() if ".merge-" in path.name else chunks
        return super().write_new(path, own, durable=durable)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.state.tiers.FILE_COST_BYTES", 500)


Open = Callable[..., TestDriver]


@pytest.fixture
def opened() -> Iterator[Open]:
    drivers: list[TestDriver] = []

    def make_driver(kind: str = "memory", **more: Any) -> TestDriver:
        options = {"tasks": 1, "slots": 1, "key_groups": 4, "keep_epochs": 0, **more}
        driver = TestDriver(make(kind), **options)
        drivers.append(driver)
        driver.create("in", {"k": pa.int64(), "v": pa.int64()})
        return driver

    yield make_driver
    for driver in drivers:
        driver.close()


def fill(driver: TestDriver, epochs: int, keys: int = 10, value: int = 1) -> None:
    for _ in range(epochs):
        driver.feed("in", [{"k": k, "v": value} for k in range(keys)])
        driver.advance()


def files_of(driver: TestDriver) -> list[str]:
    (task,) = driver.coordinator.state.tasks.values()
    return [ref.path for ref in task.files]


def temporary(driver: TestDriver) -> list[Path]:
    return list(driver.storage.glob("*/.merge-*.tmp"))


def test_a_merge_that_is_done_later_is_reported_later(opened: Open) -> None:
    """Epochs go on meanwhile, and what came meanwhile stays behind the merged file."""
    is_done = False
    driver = opened(background=lambda: InlineBackground(lambda: is_done))
    fill(driver, 7)
    assert len(files_of(driver)) == 7
    is_done = True
    fill(driver, 1)
    assert len(files_of(driver)) == 5
    (task,) = driver.coordinator.state.tasks.values()
    assert (task.shape, len(task.snapshots)) == (1, 1)
    assert (task.snapshots[0].first_epoch, task.snapshot_epoch) == (1, 4)
    assert task.snapshots[0].rows == 10


def test_a_report_that_was_not_committed_is_made_again(opened: Open) -> None:
    """The merge is not: what was linked for the lost epoch is swept, what is kept is linked."""
    driver = opened()
    fill(driver, 4)
    seen: list[str] = []
    driver.feed("in", [{"k": 1, "v": 5}])
    with injected(seen.append):
        assert driver.advance_with_crash("slot.output_written")
    merged: list[str] = []
    with injected(merged.append):
        driver.advance()
    (task,) = driver.coordinator.state.tasks.values()
    assert task.shape == 1
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == {**dict.fromkeys(range(10), 1), 1: 5}


def test_both_attempts_of_a_slot_report_the_same_merge(opened: Open) -> None:
    driver = opened()
    fill(driver, 4)
    driver.runner.doubled = "first"
    made: list[str] = []
    with injected(made.append):
        fill(driver, 1)
    assert made.count("slot.merge_written") == 1
    assert made.count("slot.merge_linked") == 2
    (task,) = driver.coordinator.state.tasks.values()
    assert task.shape == 1


def test_the_temporary_file_goes_once_the_merge_is_committed(opened: Open) -> None:
    driver = opened()
    fill(driver, 4)
    assert temporary(driver) == []
    fill(driver, 1)
    assert len(temporary(driver)) == 1
    fill(driver, 1)
    assert temporary(driver) == []
    driver.start()
    driver.start()
    assert temporary(driver) == []


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_store_comes_back_from_merged_files(opened: Open, kind: str) -> None:
    """With deletions, that stay in what is merged later and go with the oldest."""
    driver = opened(kind)
    fill(driver, 8, keys=40)
    for round_ in range(20):
        driver.feed("in", [{"k": k, "v": -1 if k % 3 else round_} for k in range(round_, 40, 5)])
        driver.advance()
    expected = driver.store("last")
    (task,) = driver.coordinator.state.tasks.values()
    assert task.shape > 2
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == expected
    fill(driver, 1, keys=1, value=77)
    assert driver.store("last") == {**expected, 0: 77}


def test_a_full_disk_stops_merges_and_nothing_else(opened: Open) -> None:
    """The epoch goes on and says so; some epochs later it is tried again."""
    driver = opened()
    driver._files = files = FullDisk(sync=False)
    files.is_full = True
    fill(driver, 4)
    driver.feed("in", [{"k": 1, "v": 5}])
    summary = driver.advance()
    assert summary is not None
    assert "no space left" in summary.merge_problems[0]
    assert temporary(driver) == []
    files.is_full = False
    fill(driver, RETRY_EPOCHS - 1)
    (task,) = driver.coordinator.state.tasks.values()
    assert task.shape == 0
    driver.feed("in", [{"k": 1, "v": 6}])
    summary = driver.advance()
    assert summary is not None
    assert summary.merge_problems == ()
    assert summary.merged_bytes > 0
    (task,) = driver.coordinator.state.tasks.values()
    assert task.shape == 1


def test_a_damaged_source_is_told_with_its_name(opened: Open) -> None:
    """Whoever needs it to come back could not; better to hear of it now."""
    driver = opened(background=lambda: InlineBackground(lambda: True))
    fill(driver, 3)
    path = driver.storage / files_of(driver)[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    fill(driver, 1)
    driver.feed("in", [{"k": 1, "v": 5}])
    with pytest.raises(CorruptDataError, match=path.name):
        driver.advance()


@pytest.mark.parametrize("listed", [100, 1])
def test_a_store_that_stopped_within_a_merged_file_goes_on(
    opened: Open, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    """Only if the file lists where it stands; else it begins anew. Either way it is right."""
    monkeypatch.setattr("headrace.state.merging.MOST_COVERED", listed)
    driver = opened("rocksdb", background=lambda: InlineBackground(lambda: is_done))
    is_done = True
    fill(driver, 5, keys=200)
    assert [ref.rows for ref in _task(driver).snapshots] == [200]
    is_done = False
    fill(driver, 2, keys=3, value=2)
    stands = _task(driver).epoch - 1  # the last epoch is committed, but not applied
    driver.runner.kill(0)
    folder = driver.state_dir(0)
    kept = folder.with_name("kept")
    folder.rename(kept)
    fill(driver, 3, keys=3, value=3)
    is_done = True
    fill(driver, 1, keys=1, value=4)
    assert [r for r in _task(driver).segments if r.first_epoch <= stands < r.epoch]
    driver.runner.kill(0)
    shutil.rmtree(folder)
    kept.rename(folder)
    is_done = False
    driver.feed("in", [{"k": 150, "v": 9}])
    assert driver.advance() is not None
    expected = {**dict.fromkeys(range(200), 1), **dict.fromkeys(range(3), 3), 0: 4, 150: 9}
    assert driver.store("last") == expected


def _task(driver: TestDriver) -> Any:
    (task,) = driver.coordinator.state.tasks.values()
    return task


def test_a_thread_merges_while_epochs_run(opened: Open) -> None:
    """The real background: in the end there are few files, and the state is right."""
    driver = opened("rocksdb", tasks=2, slots=2, background=ThreadBackground)
    rng, model = random.Random(3), dict[int, int]()
    clock = SystemClock()
    deadline = Deadline(clock, 60)
    epochs = 0
    while epochs < 40 or any(len(t.files) > 12 for t in driver.coordinator.state.tasks.values()):
        assert not deadline.expired
        rows = [{"k": rng.randrange(300), "v": rng.randrange(-20, 100)} for _ in range(50)]
        driver.feed("in", rows)
        driver.advance()
        epochs += 1
        for row in rows:
            model[row["k"]] = row["v"]
    live = {key: value for key, value in model.items() if value >= 0}
    assert driver.store("last") == live
    driver.crash(lose_hosts=[0])
    driver.advance(force=True)
    assert driver.store("last") == live


def test_merged_files_say_what_they_stand_for(opened: Open) -> None:
    driver = opened(background=lambda: InlineBackground(lambda: True))
    fill(driver, 5, keys=400)
    fill(driver, 8, keys=2)
    task = _task(driver)
    merged = [ref for ref in task.segments if ref.first_epoch < ref.epoch]
    assert merged
    for ref in merged:
        reader = SegmentReader(Files(), driver.storage / ref.path, ref.checksum)
        epochs = [epoch for epoch, _ in reader.header.covers]
        assert epochs == list(range(ref.first_epoch, ref.epoch + 1))
        assert reader.header.covers[-1] == (ref.epoch, ref.attempt)


def test_what_a_killed_process_was_merging_is_swept_after_a_while(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.coordinator.coordinator.SWEEP_EVERY", 1)
    driver = opened()
    fill(driver, 5)
    (left,) = temporary(driver)
    driver.runner.kill(0)
    fill(driver, 1)
    assert left.exists()
    os.utime(left, (1, 1))
    fill(driver, 1)
    assert not left.exists()


def test_a_merge_that_waited_until_it_was_swept_is_made_again(opened: Open) -> None:
    is_done = False
    driver = opened(background=lambda: InlineBackground(lambda: is_done))
    fill(driver, 5)
    is_done = True

    def swept(point: str) -> None:
        if point == "slot.merge_written":
            (left,) = temporary(driver)
            left.unlink()

    driver.feed("in", [{"k": 1, "v": 5}])
    with injected(swept, ("slot.merge_written",)):
        summary = driver.advance()
    assert summary is not None
    assert summary.merge_problems == ()
    assert _task(driver).shape == 0
    fill(driver, 1)
    assert _task(driver).shape == 1


def test_a_damaged_source_is_put_right_from_the_copy(opened: Open) -> None:
    driver = opened(durability="backup(30s)")
    fill(driver, 4)
    driver.copy()
    path = driver.storage / files_of(driver)[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    fill(driver, 1)
    assert path.read_bytes() == whole
    fill(driver, 1)
    assert _task(driver).shape == 1


def test_a_merge_that_the_driver_refuses_is_let_go_of(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A while later another one is made, of the files as they are then, and that one counts."""
    driver = opened()
    fill(driver, 4)
    made: list[str] = []
    with monkeypatch.context() as refusing, injected(made.append):
        refusing.setattr("headrace.coordinator.epoch.can_replace", lambda task, merged: False)
        fill(driver, 1)
        (first,) = temporary(driver)
        fill(driver, GIVE_UP_EPOCHS)
        assert temporary(driver) == [first]
        assert made.count("slot.merge_written") == 1
        fill(driver, GIVE_UP_EPOCHS)
        (second,) = temporary(driver)
        assert second != first
        assert made.count("slot.merge_written") == 2
    assert _task(driver).shape == 0
    fill(driver, 1)
    assert _task(driver).shape == 1
    driver.crash(lose_hosts=[0])
    fill(driver, 1)
    assert driver.store("last") == dict.fromkeys(range(10), 1)


def test_a_store_is_written_to_disk_when_its_snapshot_begins(opened: Open, tmp_path: Path) -> None:
    """So a process that is killed later finds it at the snapshot, and reads only what follows."""
    driver = opened("rocksdb", background=lambda: InlineBackground(lambda: False))
    fill(driver, 5)
    (stores,) = driver.state_dir(0).glob("last/*/rocksdb")
    names = sorted(["last", "p.timers"])
    scope = "last/{}/{}-{}".format(*stores.parent.name.split("-"))
    reached: set[int] = set()

    def has_reached() -> bool:
        """Open what is on disk as it would be found after a kill."""
        copy = tmp_path / driver.clock.new_id()
        shutil.copytree(stores, copy, ignore=shutil.ignore_patterns("LOCK"))
        backend = RocksDBBackend(copy, names, scope)
        if backend.position is not None:
            reached.add(backend.position.epoch)
        backend.close()
        return 4 in reached

    wait_until(has_reached, Deadline(SystemClock(), 20), f"epoch 4 on disk, found {reached}")


def test_merges_of_the_process_before_a_fork_are_left_to_it(opened: Open) -> None:
    """Both may end: the child removes no file of its parent, which goes on with its merge."""
    is_done = False
    driver = opened(background=lambda: InlineBackground(lambda: is_done))
    fill(driver, 5)
    merges = driver.runner.host(0).merges
    is_done = True
    (entry,) = merges._entries.values()
    assert merges.background.look(entry.ticket)
    (left,) = temporary(driver)
    child = os.fork()
    if child == 0:
        merges.close()
        os._exit(len(merges._entries))
    assert os.waitpid(child, 0)[1] == 0
    assert left.exists()
    fill(driver, 1)
    assert _task(driver).shape == 1
