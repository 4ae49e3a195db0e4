"""Processes that freeze with the lock of a partition, at each step of what they do, and wake up.

An actor is a bus of its own, whose file operations are its steps. A frozen one is a call that has
not returned yet: others act inside it, and are frozen in turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.faults import Died, SteppedFiles, Turns
from tests.support.homes import unpack
from tests.support.soak import more

from headrace.bus import (
    BusOptions,
    FileBus,
    Fsync,
    OffsetGoneError,
    Producer,
    Stream,
    StreamSpec,
)
from headrace.errors import UnavailableError
from headrace.files import Files
from headrace.records.frame import encode_frame
from headrace.testing import crash_at

SCHEMA = pa.schema([("id", pa.int64())])
KEYED = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SPEC = StreamSpec("s", 1, SCHEMA)
OPTIONS = BusOptions(
    fsync=Fsync.ALWAYS, segment_bytes=1200, index_entries=4, adopt_bytes=256, seal_after_s=0.0
)
COMPACTED = replace(OPTIONS, segment_bytes=3000)
Step = Callable[[], None]


class World:
    """A partition, who uses it, and which rows must be in it.

    Each row has a number of its own. ``answered`` has the offset of each that an append has
    answered for; of others that were ``asked`` for, nobody knows.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answered: dict[int, int] = {}
        self.asked: set[int] = set()
        self.seen: dict[int, int] = {}
        self.begin = 0
        self._count = 0
        with FileBus(root, OPTIONS) as bus:
            bus.create(SPEC)

    def actor(self, step: Step = lambda: None) -> FileBus:
        return FileBus(self.root, OPTIONS, files=SteppedFiles(step))

    def append(self, bus: FileBus, me: str, *, as_file: bool = False) -> None:
        """Append one row, under a sequence of its own."""
        number = self._count = self._count + 1
        self.asked.add(number)
        self.repeat(bus, me, number, as_file=as_file)

    def repeat(self, bus: FileBus, me: str, number: int, *, as_file: bool = False) -> bool:
        batch = pa.record_batch([[number]], schema=SCHEMA)
        producer, stream = Producer(f"{me}/{number}", ""), bus.stream("s")
        if as_file:
            path = self.root / f"row-{number}"
            if not path.exists():
                Files(sync=False).write_new(path, encode_frame(batch))
            done = stream.append_file(0, path, producer=producer, sequence=1)
        else:
            done = stream.append(0, batch, producer=producer, sequence=1)
        if done.first_offset == done.next_offset:  # of rows that were trimmed
            assert done.duplicate
            self.answered.setdefault(number, -1)
        else:
            assert self.answered.setdefault(number, done.first_offset) == done.first_offset
        return done.duplicate

    def trim(self, bus: FileBus) -> None:
        (end,), (begin,) = bus.stream("s").ends(), bus.stream("s").begins()
        self.begin = max(self.begin, bus.stream("s").trim(0, max(begin, end - 5)))

    def anything(self, bus: FileBus, dice: random.Random) -> None:
        """Append, trim or read, as the dice say."""
        kind = dice.random()
        if kind < 0.7:
            self.append(bus, "x", as_file=dice.random() < 0.2)
        elif kind < 0.8:
            self.trim(bus)
        else:
            self.look(bus.stream("s"))

    def look(self, stream: Stream) -> None:
        """Read everything: nothing that was seen or answered for has changed."""
        (end,), answered = stream.ends(), dict(self.answered)
        while True:
            (begin,) = stream.begins()
            try:
                rows = {
                    part.first_offset + at: number
                    for part in stream.read(0, begin)
                    for at, number in enumerate(part.batch.column("id").to_pylist())
                }
                break
            except OffsetGoneError:
                continue
        found = list(rows.values())
        assert len(set(found)) == len(found)
        assert list(rows) == list(range(begin, begin + len(rows)))
        assert begin + len(rows) >= end
        for offset, number in rows.items():
            assert self.seen.setdefault(offset, number) == number
        missing = {n for n, offset in answered.items() if offset >= begin} - set(found)
        assert missing == set()
        assert all(rows[answered[n]] == n for n in found if n in answered)


def _at(number: int, act: Step) -> tuple[Step, list[int]]:
    """Return a step that acts once, as the number-th, and how many there were."""
    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] == number:
            act()

    return step, count


def _appends(world: World, bus: FileBus) -> None:
    world.append(bus, "a")


def _files(world: World, bus: FileBus) -> None:
    world.append(bus, "a", as_file=True)


def _trims(world: World, bus: FileBus) -> None:
    world.trim(bus)


BEFORE = (0, 1, 3, 4, 9)
EVERY = [(acts, before) for acts in (_appends, _files, _trims) for before in BEFORE]


@pytest.mark.parametrize(("acts", "before"), more([*EVERY[:5:2], *EVERY[5::3]], EVERY))
def test_whoever_is_frozen_at_any_step_stops_nobody_and_loses_nothing(
    tmp_path: Path, acts: Callable[[World, FileBus], None], before: int
) -> None:
    """Others append, read and trim meanwhile; then it wakes up, and continues as if nothing was."""
    at, count = 0, [1]
    while at < count[0]:
        at += 1
        world = World(tmp_path / str(at))
        with world.actor() as other, world.actor() as reader:
            for _ in range(before):
                world.append(other, "b")
            world.look(reader.stream("s"))

            def meanwhile(world: World = world, other: FileBus = other, at: int = at) -> None:
                for _ in range(2):
                    world.append(other, "b")
                if at % 3 == 0:
                    world.trim(other)
                for _ in range(3):
                    world.append(other, "b", as_file=True)
                world.look(other.stream("s"))

            step, count = _at(at, meanwhile)
            with world.actor(step) as frozen:
                acts(world, frozen)
                for bus in (other, frozen, reader):
                    world.look(bus.stream("s"))
                world.append(frozen, "a")
                world.append(other, "b")
                for bus in (reader, other, frozen):
                    world.look(bus.stream("s"))
        with world.actor() as fresh:
            world.look(fresh.stream("s"))
    assert count[0] > 3


def _random_run(root: Path, seed: int) -> int:
    """Let four actors be frozen within each other and die anywhere; returns how often."""
    dice, world = random.Random(seed), World(root)
    frozen: list[int] = []
    happened = 0
    buses: dict[int, FileBus] = {}
    reader = world.actor()

    def step_of(me: int) -> Step:
        def step() -> None:
            nonlocal happened
            if me not in frozen or frozen[-1] != me or len(frozen) > 3 or dice.random() > 0.04:
                return
            happened += 1
            for _ in range(dice.randrange(1, 5)):
                act(dice.choice([other for other in range(4) if other not in frozen]))
            if dice.random() < 0.2:
                raise Died

        return step

    def act(me: int) -> None:
        bus = buses.setdefault(me, world.actor(step_of(me)))
        frozen.append(me)
        try:
            world.anything(bus, dice)
        except Died:
            del buses[me]
        finally:
            frozen.pop()

    for _ in range(45):
        act(dice.randrange(4))
        if dice.random() < 0.3:
            world.look(reader.stream("s"))
    with world.actor() as last:
        for number in sorted(world.asked - set(world.answered)):
            world.repeat(last, "x", number)
        world.look(last.stream("s"))
        world.look(reader.stream("s"))
        assert set(world.answered) == world.asked
        for number, offset in world.answered.items():
            if offset >= last.stream("s").begins()[0]:
                assert world.repeat(last, "x", number)
    for bus in (*buses.values(), reader):
        bus.close()
    return happened


@pytest.mark.parametrize("seed", more(range(2), range(60)))
def test_frozen_and_dying_in_any_order_no_row_is_lost_doubled_or_moved(
    tmp_path: Path, seed: int
) -> None:
    assert _random_run(tmp_path, seed) > 0


class Gate:
    """Lets a thread take some steps, and then each one when it is told to."""

    def __init__(self) -> None:
        self._free, self._is_over = 1 << 30, False
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)

    def step(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        self._stands.release()
        self._go.acquire()

    def run(self, act: Step, free: int) -> threading.Thread:
        """Let a thread act until it has taken so many steps, or is over."""
        self._free = free

        def live() -> None:
            act()
            self._is_over = True
            self._stands.release()

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        self._stands.acquire()
        return thread

    def one(self) -> None:
        """Let it take one step more."""
        if not self._is_over:
            self._go.release()
            self._stands.acquire()

    def open(self) -> None:
        """Let it go on to its end."""
        self._free = 1 << 30
        self._go.release()


@pytest.mark.parametrize("free", range(3))
def test_one_that_was_kept_out_writes_while_the_one_that_kept_it_out_does(
    tmp_path: Path, free: int
) -> None:
    """It takes one step between any two of the other, which counts on the end of its segment."""
    at, count = 0, [1]
    while at < count[0]:
        at += 1
        world, gate = World(tmp_path / str(at)), Gate()
        step, count = _at(at, gate.one)
        with world.actor(gate.step) as frozen, world.actor(step) as other:
            world.append(frozen, "a")
            thread = gate.run(partial(world.append, frozen, "a"), free)
            world.append(other, "b")
            gate.open()
            thread.join()
            for _ in range(2):
                world.append(other, "b")
            for bus in (other, frozen):
                world.look(bus.stream("s"))
        with world.actor() as fresh:
            world.look(fresh.stream("s"))
            assert set(world.answered) == world.asked
    assert count[0] > 3


def _interleaved_run(root: Path, seed: int) -> int:
    """Let four actors run in turns of a few steps, and die anywhere; returns how many turns."""
    dice, world = random.Random(seed), World(root)
    turns = Turns(dice, 4)
    failures: list[BaseException] = []
    buses: list[FileBus] = []

    def step_of(me: int) -> Step:
        def step() -> None:
            turns.step(me)
            if dice.random() < 0.004:
                raise Died

        return step

    def opened(me: int) -> FileBus:
        buses.append(world.actor(step_of(me)))
        return buses[-1]

    def live(me: int) -> None:
        turns.wait(me)
        try:
            bus = opened(me)
            for _ in range(18):
                try:
                    world.anything(bus, dice)
                except Died:
                    bus = opened(me)
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            failures.append(error)
        finally:
            turns.step(me, is_over=True)

    threads = [threading.Thread(target=live, args=(me,), daemon=True) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure
    with world.actor() as last:
        for number in sorted(world.asked - set(world.answered)):
            world.repeat(last, "x", number)
        world.look(last.stream("s"))
        for number, offset in world.answered.items():
            if offset >= last.stream("s").begins()[0]:
                assert world.repeat(last, "x", number)
    for bus in buses:
        with contextlib.suppress(Died):
            bus.close()
    return turns.handed_over


@pytest.mark.parametrize("seed", more(range(2), range(60)))
def test_step_by_step_in_turns_no_row_is_lost_doubled_or_moved(tmp_path: Path, seed: int) -> None:
    """One that was kept out continues while the one that kept it out is at work."""
    assert _interleaved_run(tmp_path, seed) > 50


@pytest.mark.parametrize("rows", range(3, 6))
def test_one_that_is_kept_out_by_who_died_before_it_told_anybody_appends(
    tmp_path: Path, rows: int
) -> None:
    """Also where the index file that it knows is full, so that it adds nothing to it."""
    world = World(tmp_path)
    with world.actor() as one, world.actor() as other, contextlib.ExitStack() as died:
        for _ in range(rows):
            world.append(one, "a")
        (lock,) = tmp_path.glob("streams/s/*/lock")
        descriptor = os.open(lock, os.O_RDWR)
        died.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with crash_at("seal.published"):
            world.append(other, "b")
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        world.append(one, "a")
        world.look(one.stream("s"))


def test_a_partition_of_before_is_sealed_too(tmp_path: Path) -> None:
    """Its index files have no openings."""
    golden = Path(__file__).parents[1] / "compat" / "golden"
    (archive, *_) = sorted(golden.glob("streams-*.tar.xz"))
    unpack(archive, tmp_path)
    options = replace(OPTIONS, segment_bytes=3000)
    with FileBus(tmp_path / "bus", options) as other:
        stream = other.stream("plain")
        (before, end) = [list(stream.read(2, 0)), stream.ends()[2]]
        batch = before[0].batch.slice(0, 1)

        def meanwhile() -> None:
            assert stream.append(2, batch).first_offset == end

        step, _ = _at(2, meanwhile)
        with FileBus(tmp_path / "bus", options, files=SteppedFiles(step)) as frozen:
            assert frozen.stream("plain").append(2, batch).first_offset == end + 1
        assert stream.ends()[2] == end + 2
        assert [part.batch for part in stream.read(2, 0, end)] == [part.batch for part in before]


def _prices(stream: Stream) -> dict[int, int]:
    parts = stream.read(0, stream.begins()[0])
    return {row["k"]: row["v"] for part in parts for row in part.batch.to_pylist()}


class Prices:
    """A compacted stream of three keys, and the last value of each."""

    def __init__(self, root: Path) -> None:
        self.root, self.last, self._count = root, dict[int, int](), 0
        self.bus = FileBus(root, COMPACTED)
        self.stream = self.bus.create(StreamSpec("c", 1, KEYED, key=("k",), compact=True))

    def append(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            self.last[self._count % 3] = self._count
            row = pa.record_batch([[self._count % 3], [self._count]], schema=KEYED)
            self.stream.append(0, row)

    def meanwhile(self) -> None:
        self.append(6)
        with FileBus(self.root, COMPACTED) as fresh:
            assert _prices(fresh.stream("c")) == self.last


def test_a_frozen_compaction_stops_no_appends_and_takes_no_row(tmp_path: Path) -> None:
    """At each of its steps; of each key the last row stays, whichever comes when it wakes up."""
    at, count = 0, [1]
    while at < count[0]:
        at += 1
        prices = Prices(tmp_path / str(at))
        prices.append(10)
        step, count = _at(at, prices.meanwhile)
        with (
            prices.bus,
            FileBus(prices.root, COMPACTED) as reader,
            FileBus(prices.root, COMPACTED, files=SteppedFiles(step)) as frozen,
        ):
            assert _prices(reader.stream("c")) == prices.last
            for _ in range(2):
                with contextlib.suppress(UnavailableError):
                    frozen.stream("c").compact(0)
                for bus in (prices.bus, reader, frozen):
                    assert _prices(bus.stream("c")) == prices.last
                prices.append(2)
            prices.stream.compact(0)
            assert prices.stream.stored()[0].rows == 3
            for bus in (prices.bus, reader, frozen):
                assert _prices(bus.stream("c")) == prices.last
    assert count[0] > 10
