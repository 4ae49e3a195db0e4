"""A job in this very process: results, the handle, what is refused, and children that die."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.homes import Files
from tests.support.jobs import counting, failing, framing, model, pass_gate
from tests.support.runs import Running, World, is_alive, until

import headrace as hr
from headrace.errors import InvalidInputError, NotOwnerError

ONE_CHILD = ("job.slots=1", "standalone.workers=processes")
QUIET: dict[str, Any] = {"control.enabled": False}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def settings(world: World, *sets: str) -> Any:
    return world.settings("control.enabled=false", *sets)


@pytest.mark.parametrize(
    "sets", [(), ("job.slots=2",), ("job.slots=3", "standalone.workers=threads")]
)
def test_a_bounded_run_comes_to_what_the_model_says(world: World, sets: tuple[str, ...]) -> None:
    world.feed(150)
    result = hr.run(counting(), settings(world, "job.bounded=true", "epoch.max_rows=100", *sets))
    assert (result.state.ended, result.interrupted, result.rows) == (True, False, 300)
    assert model(world.log) == world.found()
    assert world.leftovers("counting") == []


def test_parts_joined_by_the_bus_have_slots_of_their_own(world: World) -> None:
    world.feed(100)
    result = hr.run(counting(via="bus"), settings(world, "job.bounded=true"))
    assert result.state.ended
    assert model(world.log) == world.found()


def test_neither_spark_nor_a_jvm_is_touched(tmp_path: Path) -> None:
    """In a new interpreter, from which neither can be found."""
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.runs import World
from tests.support.jobs import counting
import headrace as hr
world = World(Path({str(tmp_path)!r}) / "home")
world.feed(20)
hr.run(counting(), world.settings("job.bounded=true"))
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")))
"""
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_job_is_followed_paused_and_stopped_by_its_handle(world: World) -> None:
    epochs: list[int] = []
    listened = hr.start(
        counting(), settings(world), on_epoch=lambda summary: epochs.append(summary.rows)
    )
    with listened as running:
        world.feed(10)
        until(lambda: sum(epochs) == 20, "the first rows")
        running.pause()
        assert str(running.status) == "paused"
        assert running.state is not None
        assert running.state.counts["in"] == 20
        with pytest.raises(TimeoutError, match="it continues"):
            running.wait(0.01)
        running.resume()
        world.feed(10)
        until(lambda: sum(epochs) == 40, "more rows")
    assert str(running.status) == "stopped"
    result = running.wait()
    assert (result.interrupted, result.rows, result.state.ended) == (True, 40, False)
    assert running.stop().rows == 40


def test_a_run_from_another_thread_is_finished_from_this_one(world: World) -> None:
    world.feed(30)
    handles: list[Running] = []
    thread = threading.Thread(target=lambda: handles.append(hr.start(counting(), settings(world))))
    thread.start()
    thread.join()
    handles[0].finish()
    assert handles[0].wait(60).state.ended
    assert model(world.log) == world.found()


def test_what_is_wrong_is_raised_where_the_run_is_waited_for(world: World) -> None:
    world.feed(10)
    running = hr.start(failing(poison=7), settings(world))
    with pytest.raises(InvalidInputError, match="cannot take id 7"):
        running.wait(60)
    assert running.status == "failed"
    with pytest.raises(InvalidInputError, match=r"unknown setting job\.taks"):
        hr.start(counting(), {"job.taks": 3})
    with pytest.raises(InvalidInputError, match=r"need state\.durability=epoch"):
        hr.run(counting(), settings(world, "state.durability=backup(30s)"), join=True)


def test_what_is_no_job_and_what_are_no_settings_is_said(world: World) -> None:
    for job in ("counting", counting):
        with pytest.raises(InvalidInputError, match="expected a job, a function under"):
            hr.run(job, settings(world))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"expected settings by key, as .* found .*slots=2"):
        hr.start(counting(), ["job.slots=2"])  # type: ignore[arg-type]


def test_who_cannot_be_joined_keeps_the_job_from_nobody(world: World) -> None:
    with pytest.raises(InvalidInputError, match=r"standalone\.host=192\.0\.2\.1 cannot be"):
        hr.run(counting(), settings(world, "standalone.host=192.0.2.1"), join=True)
    assert not (world.job_dir("counting") / "lease.json").exists()


def test_who_finds_no_room_for_a_lease_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the look at a lease, and after the lock was taken: which is given back, too."""
    world.feed(10)
    write_new, said, failed = Files.write_new, list[str](), list[str]()

    def full(files: Files, path: Path, *words: Any, **how: Any) -> int:
        if path.name.startswith(".lease.") and len(failed) < 3:
            failed.append(path.name)
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_new(files, path, *words, **how)

    monkeypatch.setattr(Files, "write_new", full)
    chosen = settings(world, "job.bounded=true")
    assert hr.run(counting(), chosen, join=True, on_notice=said.append).state.ended
    assert len(failed) == 3
    assert sum("the job waits for room" in line for line in said) >= 1
    assert model(world.log) == world.found()


def test_a_job_that_reads_dataframes_is_refused(world: World) -> None:
    with pytest.raises(InvalidInputError, match="is a Spark DataFrame, and here is no Spark"):
        hr.run(framing(world.gates), settings(world))


def test_a_job_is_driven_once(world: World) -> None:
    with hr.start(counting(), settings(world)) as running:
        until(lambda: running.status == "running", "the first driver")
        with pytest.raises(NotOwnerError, match=f"already driven by process {os.getpid()}"):
            hr.run(counting(), settings(world))
        with pytest.raises(NotOwnerError, match=f"already driven by process {os.getpid()}"):
            hr.run(counting(), settings(world, "standalone.lease_s=0.5"), join=True)


def test_a_child_that_is_killed_loses_and_doubles_nothing(world: World) -> None:
    """In the middle of an epoch; its order is given to a new one."""
    folder = world.gates
    job = counting((3, 5), lambda: pass_gate(folder, "count"))
    world.feed(200)
    with hr.start(job, settings(world, "job.slots=2", "job.bounded=true")) as running:
        until(lambda: world.at_gate("count"), "a child at the gate")
        (child,) = world.at_gate("count")
        assert child != os.getpid()
        os.kill(child, signal.SIGKILL)
        until(lambda: len(world.at_gate("count")) == 2, "a new child at the gate")
        world.open_gate("count")
        assert running.wait(60).state.ended
    assert model(world.log) == world.found()


def test_a_child_that_is_frozen_loses_and_doubles_nothing(world: World) -> None:
    """In the middle of an epoch; it is killed, and its order given to a new one."""
    folder = world.gates
    job = counting((3, 5), lambda: pass_gate(folder, "count"))
    world.feed(200)
    sets = (*ONE_CHILD, "job.bounded=true", "standalone.lease_s=1")
    with hr.start(job, settings(world, *sets)) as running:
        until(lambda: world.at_gate("count"), "a child at the gate")
        (child,) = world.at_gate("count")
        os.kill(child, signal.SIGSTOP)
        until(lambda: len(world.at_gate("count")) == 2, "a new child at the gate")
        assert not is_alive(child)
        world.open_gate("count")
        assert running.wait(60).state.ended
    assert model(world.log) == world.found()


def test_ctrl_c_ends_the_epoch_under_way(world: World, tmp_path: Path) -> None:
    world.feed(50)
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.jobs import counting
import headrace as hr
result = hr.run(
    counting(),
    {{"job.slots": 1, "standalone.workers": "processes", "control.enabled": False}},
    home={str(world.home)!r},
    on_epoch=lambda summary: print("epoch", summary.epoch, flush=True),
)
print("interrupted", result.interrupted, result.rows, flush=True)
"""
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "epoch 1\n"
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does, to the children too
        assert program.stdout.read().splitlines()[-1] == "interrupted True 100"
        assert program.wait(30) == 0
