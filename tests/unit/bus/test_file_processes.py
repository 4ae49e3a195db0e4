"""Many processes on one bus: appends at once, deaths, forks, wake-ups, locks."""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.bus import (
    Appended,
    BusOptions,
    FileBus,
    Fsync,
    OffsetGoneError,
    Producer,
    StreamSpec,
)
from headrace.errors import UnavailableError

SPEC = StreamSpec("s", 1, pa.schema([("id", pa.int64())]))
ME = Producer("me", "1")
COMMON = """
import os, sys
import pyarrow as pa
from headrace.bus import BusOptions, FileBus, Producer
from headrace.faults import injected
bus = FileBus(sys.argv[1], BusOptions(segment_bytes=20_000, index_entries=50))
stream = bus.stream("s")
def rows(*ids):
    return pa.record_batch([list(ids)], ["id"])
"""


def start(root: Path, program: str, *arguments: str) -> subprocess.Popen:
    text = COMMON + textwrap.dedent(program)
    return subprocess.Popen([sys.executable, "-c", text, str(root), *arguments])


def ids_in(root: Path) -> list[int]:
    with FileBus(root) as bus:
        found = bus.stream("s").read(0, 0)
        return [n for part in found for n in part.batch.column("id").to_pylist()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with FileBus(tmp_path) as bus:
        bus.create(SPEC)
    return tmp_path


def test_four_processes_append_at_once_and_lose_nothing(root):
    """A reader that is open all the while sees each row once, in its appender's order."""
    program = """
    me = int(sys.argv[2])
    for number in range(60):
        stream.append(0, rows(1000 * me + number), producer=Producer(str(me), ""), sequence=number)
    """
    with FileBus(root) as bus:
        stream = bus.stream("s")
        workers = [start(root, program, str(worker)) for worker in range(4)]
        seen: list[int] = []
        follow = stream.follow(0, 0, stopped=lambda: len(seen) >= 240)
        for found in follow:
            seen += found.batch.column("id").to_pylist()
        assert [worker.wait(30) for worker in workers] == [0] * 4
    assert seen == ids_in(root)
    for worker in range(4):
        mine = [number for number in seen if number // 1000 == worker]
        assert [1000 * worker + number for number in range(60)] == mine


@pytest.mark.parametrize("point", ["bus.frame_written", "bus.index_written"])
def test_a_process_that_dies_in_an_append_leaves_at_most_one_copy(root, point):
    program = """
    point = sys.argv[2]
    def die(at):
        if at == point:
            os._exit(9)
    stream.append(0, rows(1, 2), producer=Producer("me", "1"), sequence=1)
    with injected(die, (point,)):
        stream.append(0, rows(3, 4), producer=Producer("me", "1"), sequence=2)
    """
    assert start(root, program, point).wait(30) == 9
    with FileBus(root) as bus:
        answer = bus.stream("s").append(
            0, pa.record_batch([[3, 4]], ["id"]), producer=ME, sequence=2
        )
    assert Appended(2, 4, point == "bus.index_written") == answer
    assert ids_in(root) == [1, 2, 3, 4]


def test_a_process_that_dies_before_its_first_entry_leaves_no_segment(root):
    program = """
    def die(at):
        os._exit(9)
    with injected(die):
        stream.append(0, rows(1, 2))
    """
    folder = root / "streams" / "s" / "p-00000"
    for _ in range(2):
        assert start(root, program).wait(30) == 9
    assert len(list(folder.glob("*.seg"))) == 2
    for _ in range(2):  # the first begins the index, the next may sweep by it
        with FileBus(root) as bus:
            bus.stream("s").append(0, pa.record_batch([[7]], ["id"]))
    assert len(list(folder.glob("*.seg"))) == 1
    assert ids_in(root) == [7, 7]


def test_a_forked_child_locks_for_itself(root):
    """A lock taken before a fork is shared by both; the child must not rely on it."""
    program = """
    stream.append(0, rows(0))
    child = os.fork()
    for number in range(1, 41):
        stream.append(0, rows(number if child else -number))
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """
    assert start(root, program).wait(30) == 0
    assert list(range(-40, 41)) == sorted(ids_in(root))


def test_a_lock_that_is_held_too_long_is_reported(root):
    options = BusOptions(lock_timeout_s=0.01)
    descriptor = os.open(root / "streams/s/p-00000/lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with FileBus(root, options) as bus:
        stream = bus.stream("s")
        with pytest.raises(UnavailableError, match=r"locked by another process for 0.01 s"):
            stream.append(0, pa.record_batch([[1]], ["id"]))
        assert stream.ends() == [0]
        os.close(descriptor)
        stream.append(0, pa.record_batch([[1]], ["id"]))
    assert ids_in(root) == [1]


def test_a_process_that_is_stopped_with_the_lock_delays_others_for_a_while(root):
    """When it is continued, its append comes behind theirs, and it appends on."""
    program = """
    import signal
    times = [1]
    def freeze(point):
        if times:
            times.pop()
            os.kill(os.getpid(), signal.SIGSTOP)
    with injected(freeze, ("bus.frame_written",)):
        assert stream.append(0, rows(1)).first_offset == 2
    assert stream.append(0, rows(2)).first_offset == 3
    """
    stopped = start(root, program)
    assert os.WIFSTOPPED(os.waitpid(stopped.pid, os.WUNTRACED)[1])
    with FileBus(root, BusOptions(seal_after_s=0.01)) as bus:
        for number in (10, 11):
            bus.stream("s").append(0, pa.record_batch([[number]], ["id"]))
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(30) == 0
        bus.stream("s").append(0, pa.record_batch([[12]], ["id"]))
    assert ids_in(root) == [10, 11, 1, 2, 12]


def test_racing_creators_agree_on_one_stream(tmp_path):
    program = """
    import threading
    from headrace.bus import StreamSpec
    spec = StreamSpec(sys.argv[2], 1, pa.schema([("id", pa.int64())]))
    bus.create(spec, exist_ok=True).append(0, rows(1))
    """
    with FileBus(tmp_path) as bus:
        bus.create(SPEC)
        workers = [start(tmp_path, program, "other") for _ in range(2)]
        assert [worker.wait(30) for worker in workers] == [0, 0]
        assert bus.names() == ["other", "s"]
        assert bus.stream("other").ends() == [2]


def test_the_never_policy_loses_nothing_when_a_process_dies(root):
    program = """
    from headrace.bus import Fsync
    stream = FileBus(sys.argv[1], BusOptions(fsync=Fsync.NEVER)).stream("s")
    stream.append(0, rows(1, 2))
    os._exit(9)
    """
    assert start(root, program).wait(30) == 9
    assert ids_in(root) == [1, 2]
    assert Fsync("never") == Fsync.NEVER


def test_readers_follow_while_others_append_and_trim(root):
    """Offsets only rise, every row from the beginning on is there, or is said to be gone."""
    program = """
    for number in range(200):
        stream.append(0, rows(*[5 * number + n for n in range(5)]), producer=me, sequence=number)
        if number % 5 == 4:
            stream.trim(0, 5 * max(0, number - 20))
            assert stream.append(0, rows(0), producer=me, sequence=number - 3).duplicate
    """
    tiny = "bus = FileBus(sys.argv[1], BusOptions(segment_bytes=2_000, index_entries=7))\n"
    tiny += 'stream, me = bus.stream("s"), Producer("me", "")\n'
    text = COMMON + tiny + textwrap.dedent(program)
    writer = subprocess.Popen([sys.executable, "-c", text, str(root)])
    begin = end = 0
    with FileBus(root) as staying:
        while writer.poll() is None:
            with FileBus(root) as fresh:
                for bus in (staying, fresh):
                    stream = bus.stream("s")
                    (begins,), (ends,) = stream.begins(), stream.ends()
                    assert begin <= begins
                    assert end <= ends
                    begin, end = begins, ends
                    try:
                        parts = list(stream.read(0, begin, end))
                    except OffsetGoneError:
                        continue
                    ids = [n for part in parts for n in part.batch.column("id").to_pylist()]
                    assert ids == list(range(begin, end))
        assert writer.returncode == 0
        stream = staying.stream("s")
        assert stream.ends() == [1000]
        assert begin <= stream.begins()[0] <= 5 * 179
        assert stream.begins()[0] > 0
