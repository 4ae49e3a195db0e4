"""Savepoints: a job that goes on from one, under another name, is the job that ran on."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.sim.world import World, make_job
from tests.support.changes import (
    MANIFEST,
    begin_from,
    read_savepoint,
    reset,
    save,
    save_running,
    savepoint_names,
    savepoints,
    with_settings,
)
from tests.support.soak import crossed

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError, PartsError
from headrace.testing import FAULT_POINTS, TestDriver, crash_at

JOBS = {
    "memory": make_job("memory", small=True),
    "rocksdb": make_job("rocksdb", small=True),
    "columnar": make_job("memory", "columnar", small=True),
    "whole": make_job("memory", "columnar"),
    "parts": make_job("memory", "columnar", ("id", "window_start"), small=True),
}
TAKING = [p for p in FAULT_POINTS if p.startswith("savepoint.") and p not in (
    "savepoint.verified", "savepoint.streams_made", "savepoint.file_linked",
    "savepoint.files_brought", "savepoint.begun",
)]  # fmt: skip
STARTING = [p for p in FAULT_POINTS if p.startswith("savepoint.") and p not in TAKING]


def started(kind: str, home: Path, keep_epochs: int = 100) -> tuple[TestDriver, World]:
    driver = TestDriver(JOBS[kind], tasks=2, hosts=2, home=home, keep_epochs=keep_epochs)
    world = World(driver, random.Random(5))
    world.feed(60)
    driver.run()
    world.feed(40)
    driver.advance()
    return driver, world


def finish(driver: TestDriver, world: World) -> None:
    world.feed(60)
    driver.finish()
    world.check()


@pytest.mark.parametrize(
    ("kind", "running"), crossed(["memory", "rocksdb", "whole", "parts"], [False, True])
)
def test_another_job_goes_on_as_if_it_were_the_first(
    kind: str, running: bool, tmp_path: Path
) -> None:
    """Stores, open windows, timers, late rows and what waits between parts are all there."""
    driver, world = started(kind, tmp_path)
    with driver:
        epochs = [part.state.epoch for part in driver.parts]
        (save_running if running else save)(driver)
        begin_from(driver)
        assert [part.state.epoch > epoch for part, epoch in zip(driver.parts, epochs, strict=True)]
        finish(driver, world)


@pytest.mark.parametrize(("kind", "tasks"), crossed(["columnar", "rocksdb"], [1, 3, 8]))
def test_another_number_of_tasks(kind: str, tasks: int, tmp_path: Path) -> None:
    driver, world = started(kind, tmp_path)
    with driver:
        save(driver)
        begin_from(driver, tasks=tasks)
        assert set(driver.coordinator.state.task_counts.values()) == {tasks}
        finish(driver, world)


def test_parts_take_a_number_of_tasks_that_divides_their_streams(tmp_path: Path) -> None:
    driver, world = started("parts", tmp_path)
    with driver:
        save(driver)
        with pytest.raises(InvalidInputError, match="do not divide the 2 partitions"):
            begin_from(driver, tasks=3)
        assert not [name for name in driver.bus.names() if name.startswith("other.")]
        begin_from(driver, tasks=1)
        finish(driver, world)


def test_a_rescaled_job_keeps_its_tasks(tmp_path: Path) -> None:
    driver, world = started("rocksdb", tmp_path)
    with driver:
        driver.coordinator.rescale(7)
        save(driver)
        begin_from(driver)
        assert set(driver.coordinator.state.task_counts.values()) == {7}
        finish(driver, world)


@pytest.mark.parametrize("kind", ["columnar", "parts"])
def test_the_first_job_goes_on_and_the_savepoint_stays(kind: str, tmp_path: Path) -> None:
    """It goes on, merges and sweeps all its files; what was saved is what it was."""
    driver, world = started(kind, tmp_path, keep_epochs=0)
    with driver:

        def go_on() -> None:
            world.feed(3)
            driver.run()

        save_running(driver, step=go_on)
        for _ in range(5):
            world.feed(20)
            driver.run()
        held = {part.state.job: part.state.epoch for part in driver.parts}
        saved = read_savepoint(savepoints(driver) / "s")
        assert all(one.state.epoch < held[one.state.job] for one in saved.parts)
        driver.finish()
        world.check()
        outputs = {name: len(driver.output(name)) for name in ("counts", "windows")}
        begin_from(driver)
        driver.finish()
        assert {key: driver.store("n")[key] for key in driver.store("n")} == driver.store("n")
        assert all(len(driver.output(name)) > rows for name, rows in outputs.items())


@pytest.mark.parametrize("kind", ["columnar", "parts"])
def test_the_same_job_after_a_reset(kind: str, tmp_path: Path) -> None:
    """Files of before are there under the same names, or gone."""
    driver, world = started(kind, tmp_path)
    with driver:
        save(driver)
        with pytest.raises(InvalidInputError, match="job 'world' exists"):
            begin_from(driver, job="world")
        reset(driver)
        begin_from(driver, job="world")
        finish(driver, world)


@pytest.mark.parametrize(
    ("kind", "point"),
    [*(("parts", one) for one in TAKING), ("columnar", "savepoint.file_brought")],
)
def test_a_writer_that_dies_leaves_no_savepoint(kind: str, point: str, tmp_path: Path) -> None:
    """Only when it has its name it is there; and then it is whole."""
    driver, world = started(kind, tmp_path)
    with driver:
        with crash_at(point):
            save(driver)
        assert savepoint_names(driver) == (["s"] if point == "savepoint.named" else [])
        if point != "savepoint.named":
            save(driver)
        begin_from(driver)
        finish(driver, world)


@pytest.mark.parametrize(
    ("kind", "nth", "point"),
    [
        *(("rocksdb", 1, one) for one in ("savepoint.file_linked", "commit.written")),
        *(("parts", 1, one) for one in (*STARTING, "commit.written")),
        *(("parts", 2, one) for one in ("savepoint.begun", "commit.written")),
    ],
)
def test_a_start_that_dies_is_begun_again(kind: str, nth: int, point: str, tmp_path: Path) -> None:
    """Until its last step there is no job, or one that refuses to run before it is begun again."""
    driver, world = started(kind, tmp_path)
    with driver:
        save(driver)
        with crash_at(point, nth):
            begin_from(driver)
        driver.crash()
        if kind == "parts" and point != "savepoint.verified":
            with pytest.raises(PartsError, match="run it again: headrace run --from-savepoint"):
                driver.start()
        if kind == "parts" or point != "savepoint.begun":
            begin_from(driver)
        finish(driver, world)


def test_what_is_damaged_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    """Each file: cut, changed, or gone; and the manifest."""
    driver, world = started("parts", tmp_path)
    with driver:
        saved = save(driver)
        names = [MANIFEST, *(name for name, _ in saved.members())]
        rng = random.Random(3)
        for name in [MANIFEST, *rng.sample(names, 6)]:
            for harm in HARMS:
                copy = savepoints(driver) / "bad"
                shutil.copytree(savepoints(driver) / "s", copy)
                harm(copy / name)
                with pytest.raises(
                    (CorruptDataError, InvalidInputError), match=r"is damaged|is no"
                ):
                    begin_from(driver, "bad")
                shutil.rmtree(copy)
        assert not (driver.settings.jobs_dir / "other" / "manifests").exists()
        begin_from(driver)
        finish(driver, world)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


HARMS: list[Callable[[Path], None]] = [flip, cut, Path.unlink]


@pytest.mark.parametrize("durability", ["epoch", "backup(30s)"])
def test_a_job_whose_epochs_are_not_on_this_disk_is_not_begun_over(
    durability: str, tmp_path: Path
) -> None:
    """Its state is in job_dir, and the host that begins would commit to a disk of its own."""
    with TestDriver(JOBS["memory"], home=tmp_path, durability=durability) as driver:
        world = World(driver, random.Random(5))
        world.feed(50)
        driver.run()
        save(driver)
        world.feed(50)
        driver.run()
        if driver.copier is not None:
            driver.copy()
            driver.crash()
            shutil.rmtree(driver.storage)
        driver.clock.advance(60_000)
        with_settings(driver, "state", durability="backup(30s)")
        with pytest.raises(InvalidInputError, match="job 'world' exists"):
            begin_from(driver, job="world")


@hr.job("plain")
def plain_job(g: hr.Graph) -> None:
    g.input("in").partition_by("n").aggregate(c=hr.agg.count()).send_to(g.output("out"))


@pytest.mark.parametrize("kind", ["files", "other stream", "range"])
def test_positions_in_what_stands_for_a_stream_are_not_saved_as_its_own(
    kind: str, tmp_path: Path
) -> None:
    """Rows of the stream would be skipped. Those of a range of the stream itself are its own."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n": 1}\n' * 50)
    given = {"files": str(file)} if kind == "files" else {"stream": "others"}
    inputs = {"in": {"to_offset": 40} if kind == "range" else given}
    with TestDriver(plain_job, home=tmp_path, max_rows=10, inputs=inputs) as driver:
        for name in ("in", "others"):
            driver.create(name, {"n": pa.int64()})
            driver.feed(name, [{"n": 2}] * 60)
        for part in driver.parts:
            part.end_at_present()
        driver.advance()
        if kind == "range":
            assert save(driver).parts[0].state.inputs["in"][0].next_offset == 10
            return
        with pytest.raises(InvalidInputError, match="instead of stream 'in'"):
            save(driver)
