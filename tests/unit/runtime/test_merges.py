"""Merges beside the epochs, in a whole job: done once, whichever process ends, never in the way."""

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
from tests.support.faults import refused_merges
from tests.support.homes import Bytes, Files
from tests.support.hosts import (
    RETRY_EPOCHS,
    BackgroundWork,
    InlineBackground,
    ThreadBackground,
    WorkHandle,
    covered,
    epochs_on_disk,
    now_and_then,
)
from tests.support.limits import limit
from tests.support.processes import Deadline, SystemClock, wait_until

import headrace as hr
from headrace.errors import CorruptDataError
from headrace.testing import TestDriver, each_at, points_passed


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
    limit(monkeypatch, merge_cost_bytes=500)


class Later(InlineBackground):
    """Does work when a test says so, between two attempts, as a thread may."""

    def __init__(self, asked: list[WorkHandle[Any]]) -> None:
        super().__init__()
        self._asked = asked

    def submit(self, work: BackgroundWork[Any]) -> WorkHandle[Any]:
        ticket = WorkHandle(work)
        self._asked.append(ticket)
        return ticket

    def look(self, ticket: WorkHandle[Any]) -> bool:
        return ticket.is_done


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
    driver = opened(background=now_and_then(lambda: is_done))
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
    """The merge is not: its file is there."""
    driver = opened()
    fill(driver, 4)
    driver.feed("in", [{"k": 1, "v": 5}])
    assert driver.advance_with_crash("epoch.before_commit")
    assert driver.advance_with_crash("slot.remote_sent")
    with points_passed() as merged:
        fill(driver, 1)
    assert "slot.merge_written" not in merged
    assert _task(driver).shape == 1
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == {**dict.fromkeys(range(10), 1), 1: 1}


def test_both_attempts_of_a_slot_report_the_same_merge(opened: Open) -> None:
    driver = opened()
    fill(driver, 4)
    driver.runner.doubled = "first"
    with points_passed() as made:
        fill(driver, 1)
    assert made.count("slot.merge_written") == 1
    assert _task(driver).shape == 1


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_merge_is_taken_up_by_the_process_that_comes_after(opened: Open, kind: str) -> None:
    """Spark ends workers that are idle: what they have merged by then is not lost."""
    asked: list[WorkHandle[Any]] = []
    driver = opened(kind, background=lambda: Later(asked))
    fill(driver, 5)
    (ticket,) = asked
    assert _task(driver).merging is not None
    ticket.perform()
    driver.crash()
    fill(driver, 1, value=2)
    assert (_task(driver).shape, _task(driver).merging) == (1, None)
    assert len(files_of(driver)) == 3
    assert len(asked) == 1
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == dict.fromkeys(range(10), 2)


def test_a_merge_whose_process_ended_in_its_midst_is_ordered_again(opened: Open) -> None:
    asked: list[WorkHandle[Any]] = []
    driver = opened(background=lambda: Later(asked))
    fill(driver, 5)
    wanted = _task(driver).merging
    driver.crash()
    fill(driver, 3)
    assert _task(driver).merging == wanted
    first, second = asked
    second.perform()
    first.perform()  # a process that was believed dead: one file has the name, and both are right
    fill(driver, 1)
    assert files_of(driver)[0] == wanted.path
    assert (_task(driver).shape, temporary(driver)) == (1, [])


def test_a_merge_of_a_task_that_rests_is_committed_with_the_others(opened: Open) -> None:
    """Of one that is active once an hour beside busy ones, no file waits for its next epoch."""
    asked: list[WorkHandle[Any]] = []
    driver = opened(tasks=2, background=lambda: Later(asked))
    fill(driver, 5, keys=40)
    before = driver.coordinator.state.tasks
    assert [task.merging is not None for task in before.values()] == [True, True]
    for ticket in asked:
        ticket.perform()
    fill(driver, 1, keys=1)
    after = driver.coordinator.state.tasks
    assert sorted(task.epoch for task in after.values()) == [5, 6]
    assert [(task.shape, task.merging) for task in after.values()] == [(1, None), (1, None)]
    assert len(asked) == 2
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == dict.fromkeys(range(40), 1)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_task_has_so_many_files_at_most_although_no_merge_is_ever_done_beside_it(
    opened: Open, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its epoch waits for one: files and manifests stay bounded."""
    limit(monkeypatch, task_files=8)
    driver = opened(kind, background=lambda: Later([]))
    most = 0
    for epoch in range(30):
        fill(driver, 1, keys=20, value=epoch)
        driver.runner.kill(0)
        most = max(most, len(files_of(driver)))
    assert most <= 8 + 1
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == dict.fromkeys(range(20), 29)


def test_a_temporary_file_goes_once_it_has_its_name(opened: Open) -> None:
    driver = opened()
    fill(driver, 5)
    assert (temporary(driver), _task(driver).shape) == ([], 1)


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
    driver = opened(background=now_and_then(lambda: True))
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
    limit(monkeypatch, covered_files=listed)
    driver = opened("rocksdb", background=now_and_then(lambda: is_done))
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


def put(driver: TestDriver, values: dict[int, int]) -> list[str]:
    """Run one epoch that sets values; return the tasks that have changed by it."""
    before = driver.coordinator.state.tasks
    driver.feed("in", [{"k": key, "v": value} for key, value in values.items()])
    driver.advance()
    now = driver.coordinator.state.tasks
    return sorted(name for name in now if now[name].files != _files(before.get(name)))


def _files(task: Any) -> tuple[Any, ...]:
    return () if task is None else task.files


def out_of_date(driver: TestDriver) -> tuple[int, int]:
    """Let a file that two tasks share be out of date for the first of them, which has merged it.

    Returns:
        A key of the first task, and one of the second, which still begins with that file.
    """
    driver.start()
    key_of: dict[str, int] = {}
    for key in range(20):
        (name,) = put(driver, {key: 1})
        key_of.setdefault(name, key)
        if len(key_of) == 2:
            break
    low, high = (key_of[name] for name in sorted(key_of))
    assert put(driver, {low: 2, high: 2}) == sorted(key_of)
    first, second = (driver.coordinator.state.tasks[name] for name in sorted(key_of))
    shared = first.files[-1].path
    assert second.files[-1].path == shared
    for value in range(3, 12):
        put(driver, {low: value})
    tasks = [driver.coordinator.state.tasks[name] for name in sorted(key_of)]
    held = [shared in {ref.path for ref in task.files} for task in tasks]
    assert held == [False, True]
    return low, high


@pytest.mark.parametrize("back_to", [1, 2])
def test_after_a_rescale_a_file_counts_for_the_key_groups_it_was_of(
    opened: Open, back_to: int
) -> None:
    """For those of a task that has merged it since, it is out of date."""
    driver = opened(tasks=2)
    low, high = out_of_date(driver)
    driver.coordinator.rescale(1)
    if back_to == 1:
        for value in range(12, 17):  # until what the rescale left is merged
            put(driver, {high: value})
        assert len(_task(driver).snapshots) == 1
    else:
        driver.coordinator.rescale(back_to)
        put(driver, {high: 16})
    driver.crash(lose_hosts=[0])
    put(driver, {99: 1})
    found = driver.store("last")
    assert (found[low], found[high], found[99]) == (11, 16, 1)


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
    driver = opened(background=now_and_then(lambda: True))
    fill(driver, 5, keys=400)
    fill(driver, 8, keys=2)
    task = _task(driver)
    merged = [ref for ref in task.segments if ref.first_epoch < ref.epoch]
    assert merged
    for ref in merged:
        covers = covered(driver, ref)
        assert [epoch for epoch, _ in covers] == list(range(ref.first_epoch, ref.epoch + 1))
        assert covers[-1] == (ref.epoch, ref.attempt)


def test_what_a_killed_process_was_merging_is_swept_after_a_while(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, sweep_every=1)
    driver = opened()
    fill(driver, 4)
    driver.feed("in", [{"k": 1, "v": 1}])
    assert driver.advance_with_crash("slot.merge_written")
    (left,) = temporary(driver)
    fill(driver, 1)
    assert left.exists()
    os.utime(left, (1, 1))
    fill(driver, 1)
    assert not left.exists()


def test_a_merge_that_was_ordered_is_not_swept_however_long_its_task_rests(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is no longer wanted: then it goes as all does that nothing names."""
    limit(monkeypatch, sweep_every=1)
    asked: list[WorkHandle[Any]] = []
    driver = opened(background=lambda: Later(asked))
    fill(driver, 5)
    asked[0].perform()
    merged = driver.storage / _task(driver).merging.path
    os.utime(merged, (1, 1))
    driver.start()
    assert merged.exists()
    driver.coordinator.rescale(2)
    fill(driver, 1)
    assert not merged.exists()


def test_a_merge_that_is_gone_is_made_again(opened: Open) -> None:
    driver = opened()
    fill(driver, 4)

    def sweep() -> None:
        for path in driver.storage.glob("snapshot/*.seg"):
            path.unlink()

    driver.feed("in", [{"k": 1, "v": 5}])
    with each_at("slot.merge_linked", sweep):
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
    """Another one is made, of the files as they are then, and that one counts."""
    driver = opened()
    fill(driver, 4)
    with refused_merges(), points_passed() as made:
        fill(driver, 1)
        first = _task(driver).merging
        fill(driver, 1)
        assert _task(driver).merging is None
        fill(driver, 1)
        assert _task(driver).merging.path != first.path
        assert made.count("slot.merge_written") == 2
    assert _task(driver).shape == 0
    fill(driver, 1)
    assert _task(driver).shape == 1
    driver.crash(lose_hosts=[0])
    fill(driver, 1)
    assert driver.store("last") == dict.fromkeys(range(10), 1)


def on_disk(driver: TestDriver, tmp_path: Path) -> int:
    """The epoch at which the store is found that a process leaves when it is killed now."""
    (stores,) = driver.state_dir(0).glob("last/*/rocksdb")
    scope = "last/{}/{}-{}".format(*stores.parent.name.split("-"))
    copy = tmp_path / driver.clock.new_id()
    shutil.copytree(stores, copy, ignore=shutil.ignore_patterns("LOCK"))
    return max(epochs_on_disk(copy, sorted(["last", "p.timers"]), scope), default=-1)


def test_a_store_is_written_to_disk_when_its_snapshot_begins(opened: Open, tmp_path: Path) -> None:
    """So a process that is killed later finds it at the snapshot, and reads only what follows."""
    driver = opened("rocksdb", background=now_and_then(lambda: False))
    fill(driver, 5)
    deadline = Deadline(SystemClock(), 20)
    wait_until(lambda: on_disk(driver, tmp_path) == 4, deadline, "epoch 4 on disk")


def test_what_a_process_reads_of_changes_the_next_one_need_not_read_again(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it ends: much that was read is written to disk, little is left to be."""
    limit(monkeypatch, flush_bytes=10_000)
    driver = opened("rocksdb", background=now_and_then(lambda: False))
    fill(driver, 2)
    driver.runner.kill(0)
    folder, kept = driver.state_dir(0), tmp_path / "kept"
    shutil.copytree(folder, kept)
    fill(driver, 3, keys=3000)
    driver.runner.kill(0)
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    fill(driver, 1)
    deadline = Deadline(SystemClock(), 20)
    wait_until(lambda: on_disk(driver, tmp_path) == 5, deadline, "epoch 5 on disk")


def test_merges_of_the_process_before_a_fork_are_left_to_it(opened: Open) -> None:
    """Both may end: the child removes no file of its parent, which goes on with its merge."""
    asked: list[WorkHandle[Any]] = []
    driver = opened(background=lambda: Later(asked))
    fill(driver, 5)
    merges = driver.runner.host(0).merges
    child = os.fork()
    if child == 0:
        merges.close()
        os._exit(len(merges.entries))
    assert os.waitpid(child, 0)[1] == 0
    (ticket,) = asked
    ticket.perform()
    fill(driver, 1)
    assert _task(driver).shape == 1
