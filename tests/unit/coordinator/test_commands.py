"""Commands in the driver's process: answers, time-outs, the end, and the loop that is woken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus import StreamSpec, open_bus
from headrace.clock import Deadline, SystemClock
from headrace.coordinator.commands import (
    COMMANDS,
    Command,
    CommandQueue,
    CommandServer,
    CutAnswer,
    CutSavepoint,
    Drain,
    RequestChannel,
    Rescale,
    Restart,
)
from headrace.coordinator.driver_loop import JobControl, StopSignal, run_epochs, wait_for_news
from headrace.coordinator.job_group import JobGroup, drive_parts
from headrace.coordinator.manifest import JobState
from headrace.errors import UnavailableError
from headrace.files import Files
from headrace.testing import TestDriver

LONG_S = 30.0
FILES = Files(sync=False)


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    g.input("in").partition_by("k").aggregate(s=hr.agg.sum("v")).send_to(g.output("out"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(sums, home=tmp_path, tasks=2) as made:
        made.create("in", {"k": pa.int64(), "v": pa.int64()})
        made.feed("in", [{"k": 1, "v": 1}])
        made.run()
        yield made


@contextmanager
def looping(driver: TestDriver, **more: int) -> Iterator[JobControl]:
    """Run the driver's own loop in another thread, of a part that has nothing to read."""
    control, part = JobControl(), driver.parts[0]
    given = part, driver.bus, SystemClock(), control, lambda summary: None
    thread = threading.Thread(target=run_epochs, args=given, kwargs=more)
    thread.start()
    try:
        yield control
    finally:
        control.stop.set()
        thread.join(LONG_S)
    assert not thread.is_alive()


def test_each_command_has_a_kind_of_its_own() -> None:
    assert len({kind.kind for kind in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize(
    "command",
    [Rescale(3, "a"), CutSavepoint(still=True), Drain("a", undo=True), Restart(rolling=False)],
    ids=str,
)
def test_a_request_file_has_the_command_and_who_asks(
    tmp_path: Path, command: Command[object]
) -> None:
    channel = RequestChannel(tmp_path, FILES, SystemClock(), type(command))
    sent = channel.post(command)
    assert channel.pending() == sent
    assert sent.command == command


def test_the_loop_of_an_idle_driver_answers(driver: TestDriver) -> None:
    commands = driver.parts[0].commands
    with looping(driver, interval_ms=0):
        answer = commands.ask(Rescale(4), LONG_S)
        assert set(answer.counts.values()) == {4}
        refused = commands.ask(Rescale(4, "nowhere"), LONG_S)
        assert "no keyed stage 'nowhere'" in refused.error
        assert commands.ask(CutSavepoint(), LONG_S).epoch == answer.epoch


def test_a_driver_that_rests_until_the_next_epoch_answers(driver: TestDriver) -> None:
    driver.feed("in", [{"k": 2, "v": 1}])
    with looping(driver, interval_ms=3_600_000):
        assert set(driver.parts[0].commands.ask(Rescale(4), LONG_S).counts.values()) == {4}


def test_a_paused_driver_answers_and_tells_where_a_merge_may_begin(driver: TestDriver) -> None:
    with looping(driver) as control:
        control.paused.set()
        still = driver.parts[0].commands.ask(CutSavepoint(still=True), LONG_S)
        assert still.epoch == driver.parts[0].state.epoch


def test_commands_of_one_type_are_answered_in_order(driver: TestDriver) -> None:
    commands = driver.parts[0].commands
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(commands.ask, Rescale(count), LONG_S) for count in (2, 4, 8, 16)]
        with looping(driver):
            counts = [set(one.result(LONG_S).counts.values()) for one in asked]
    assert counts == [{2}, {4}, {8}, {16}]


def test_a_request_file_and_a_command_of_this_process_are_both_answered(
    driver: TestDriver,
) -> None:
    part = driver.parts[0]
    channel = RequestChannel(driver.storage, FILES, SystemClock(), Rescale)
    request = channel.post(Rescale(4))
    with ThreadPoolExecutor(1) as pool, looping(driver):
        asked = pool.submit(part.commands.ask, Rescale(4), LONG_S)
        assert set(asked.result(LONG_S).counts.values()) == {4}
        part.commands.ask(Rescale(4), LONG_S)  # the file was looked at by then
    answer = channel.taken(request)
    assert answer is not None
    assert set(answer.counts.values()) == {4}


def test_neither_of_two_ways_waits_for_the_end_of_a_rest(driver: TestDriver) -> None:
    driver.feed("in", [{"k": 2, "v": 1}])
    commands, clock = driver.parts[0].commands, SystemClock()
    channel = RequestChannel(driver.storage, FILES, clock, Rescale)
    request = channel.post(Rescale(4))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(commands.ask, Rescale(8), LONG_S)
        while commands.pending(Rescale) is None:
            threading.Event().wait(0.001)
        with looping(driver, interval_ms=3_600_000):
            assert set(asked.result(LONG_S).counts.values()) == {8}
            deadline = Deadline(clock, LONG_S)
            while (answer := channel.taken(request)) is None and not deadline.expired:
                clock.sleep(0.01)
    assert answer is not None
    assert set(answer.counts.values()) == {4}


class Part:
    """A part at epoch 7 that does nothing but cut."""

    is_paused = False
    commands = CommandQueue(SystemClock())
    state = JobState(
        job="sums",
        lineage="",
        generation=1,
        epoch=7,
        time_ms=0,
        digest="",
        key_groups=1,
        fingerprint={},
        inputs={},
    )

    def cut(self) -> CutAnswer:
        return CutAnswer(self.state.epoch, {})

    def restart(self, request: object) -> None:
        assert request is None


def test_one_under_way_comes_before_others_of_its_type(tmp_path: Path) -> None:
    """A restart takes many turns; another one that comes meanwhile waits for its end."""
    clock, queue = SystemClock(), CommandQueue(SystemClock())
    channel = RequestChannel(tmp_path, FILES, clock, CutSavepoint)
    server = CommandServer(tmp_path, FILES, clock, queue)
    part: Any = Part()
    first = channel.post(CutSavepoint(still=True))
    server.serve(part)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queue.ask, CutSavepoint(), LONG_S)
        while queue.pending(CutSavepoint) is None:
            threading.Event().wait(0.001)
        server.serve(part)
        assert not asked.done()
        part.is_paused = True
        server.serve(part)
        assert channel.taken(first) == CutAnswer(7, {})
        server.serve(part)
        assert asked.result(LONG_S) == CutAnswer(7, {})


def test_what_is_not_answered_in_time_is_taken_back(driver: TestDriver) -> None:
    part = driver.parts[0]
    with pytest.raises(UnavailableError, match="did not take the request within 0 s"):
        part.commands.ask(Rescale(4), 0.01)
    part.serve_requests()
    assert set(part.state.task_counts.values()) == {2}


def test_those_who_wait_are_told_that_the_driver_has_ended(driver: TestDriver) -> None:
    part = driver.parts[0]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(part.commands.ask, Rescale(4), LONG_S)
        while part.commands.pending(Rescale) is None:
            threading.Event().wait(0.001)
        part.close()
        with pytest.raises(UnavailableError, match="the driver has ended"):
            asked.result(LONG_S)
    with pytest.raises(UnavailableError, match="the driver has ended"):
        part.commands.ask(Rescale(4), LONG_S)


def test_a_part_that_is_done_refuses_while_the_others_run(driver: TestDriver) -> None:
    done, refused = driver.parts[0], threading.Event()
    other: Any = Part()

    def drive(part: object) -> None:
        if part is other:
            assert refused.wait(LONG_S)

    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(done.commands.ask, Rescale(4), LONG_S)
        driven = pool.submit(drive_parts, [done, other], drive, JobControl())
        try:
            with pytest.raises(UnavailableError, match="the driver has ended"):
                asked.result(LONG_S)
            assert not driven.done()
        finally:
            refused.set()
        driven.result(LONG_S)


def test_a_part_that_the_driver_does_not_run_is_told(driver: TestDriver) -> None:
    parts = JobGroup(driver.parts)
    assert parts.commands("sums") is driver.parts[0].commands
    with pytest.raises(UnavailableError, match="does not run part 'other'"):
        parts.commands("other")


@pytest.mark.parametrize("address", ["memory:", "file"])
def test_a_wait_for_news_ends_with_a_command(tmp_path: Path, address: str) -> None:
    """Also with one that came before the wait, and with ``stop``."""
    commands, stop = CommandQueue(SystemClock()), StopSignal()
    with open_bus(str(tmp_path / "bus") if address == "file" else address) as bus:
        bus.create(StreamSpec("in", 1, pa.schema({"k": pa.int64()})))
        stream = bus.stream("in")
        commands.wake()
        with commands.waking(stream.wake):
            assert stream.wait_unless([0], 3_600.0, lambda: commands.has_news) == [0]
        commands.looked()
        waker = threading.Timer(0.05, stop.set)
        with stop.waking(commands.wake):
            waker.start()
            with commands.waking(stream.wake):
                assert stream.wait_unless([0], 3_600.0, lambda: commands.has_news) == [0]
        waker.join()
        assert commands.has_news
        wait_for_news(bus, {"in": [0]}, None, SystemClock(), 100, commands)
