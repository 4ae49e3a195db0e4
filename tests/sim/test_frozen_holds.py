"""Processes that freeze while they hold, release or compact a stream, and wake up or die.

An actor is a bus of its own, whose file operations are its steps. Nobody waits for a frozen one,
nothing that a hold protects is gone when it wakes up, and no successor's hold is lower protected.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.faults import Died, SteppedFiles, Turns
from tests.support.soak import more

from headrace.bus import BusOptions, Fence, FileBus, Fsync, StreamSpec
from headrace.bus.compaction import CompactionStoppedError
from headrace.errors import NotOwnerError

KEYED = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SPEC = StreamSpec("c", 1, KEYED, key=("k",), compact=True)
OPTIONS = BusOptions(fsync=Fsync.ALWAYS, segment_bytes=3000, index_entries=4, seal_after_s=0.0)
NOTHING = 1 << 40


class World:
    """A compacted stream of three keys, and what the holds of its readers protect.

    A reader is a job; each hold or release is asked by some generation of it. ``kept`` has the
    offsets that must be there for each reader.

    Args:
        root: of the bus.
        like: another one, closed, whose files are copied.
    """

    def __init__(self, root: Path, like: World | None = None) -> None:
        self.root, self.rows = root, 0
        self.newest: dict[str, int] = {}
        self.kept: dict[str, set[int]] = {}
        self.low: dict[str, int] = {}
        if like is None:
            self.bus = FileBus(root, OPTIONS)
            self.stream = self.bus.create(SPEC)
            self.append(12)
            return
        shutil.copytree(like.root, root)
        self.rows, self.newest, self.low = like.rows, dict(like.newest), dict(like.low)
        self.kept = {reader: set(kept) for reader, kept in like.kept.items()}
        self.bus = FileBus(root, OPTIONS)
        self.stream = self.bus.stream("c")

    def actor(self, step: Callable[[], None]) -> FileBus:
        return FileBus(self.root, OPTIONS, files=SteppedFiles(step))

    def append(self, count: int) -> None:
        for _ in range(count):
            row = pa.record_batch([[self.rows % 3], [self.rows]], schema=KEYED)
            assert self.stream.append(0, row).first_offset == self.rows
            for reader, kept in self.kept.items():
                if self.low[reader] <= self.rows:
                    kept.add(self.rows)
            self.rows += 1

    def take_over(self, reader: str) -> Fence:
        """Return the fence of a new generation of a job."""
        fence = Fence(reader, self.newest.get(reader, 0) + 1)
        self.bus.fence(fence)
        self.newest[reader] = fence.generation
        return fence

    def hold(self, bus: FileBus, fence: Fence, offset: int = NOTHING) -> None:
        """Hold from an offset on, or release; from when it is asked for less may be protected."""
        reader = fence.job
        may_act = fence.generation == self.newest[reader]
        if may_act:
            self._protect(reader, max(offset, self.low.get(reader, NOTHING)))
        try:
            if offset == NOTHING:
                bus.stream("c").release(reader, fence=fence)
            else:
                bus.stream("c").hold(reader, [offset], fence=fence)
        except NotOwnerError:
            assert fence.generation < self.newest[reader]
            return
        assert may_act
        if fence.generation == self.newest[reader]:
            self._protect(reader, offset)

    def _protect(self, reader: str, offset: int) -> None:
        self.low[reader] = offset
        self.kept[reader] = {found for found in self.look() if found >= offset}

    def compact(self, bus: FileBus) -> None:
        """Compact, which nobody else does meanwhile but those that are frozen."""
        lowest = min(self.low.values(), default=NOTHING)
        assert bus.stream("c").compact(0).upto <= min(lowest, self.rows)

    def look(self, bus: FileBus | None = None) -> set[int]:
        """Return the offsets that are there: all that is protected, and the last of each key."""
        holds = self.stream.holds()
        for reader, low in self.low.items():
            assert low == NOTHING or holds[reader] <= (low,)
        found = set()
        for part in (self.stream if bus is None else bus.stream("c")).read(0, 0):
            assert part.offsets.tolist() == part.batch.column("v").to_pylist()
            found.update(part.offsets.tolist())
        missing = {reader: kept - found for reader, kept in self.kept.items()}
        assert not any(missing.values()), missing
        assert found.issuperset(range(max(0, self.rows - 3), self.rows))
        return found

    def settle(self) -> None:
        """Whoever died or woke up, the next owners of all readers have what they ask for."""
        self.append(4)
        with FileBus(self.root, OPTIONS) as fresh:
            for reader in list(self.newest):
                self.hold(fresh, self.take_over(reader), self.rows - 2)
            stream = fresh.stream("c")
            assert stream.holds() == dict.fromkeys(self.newest, (self.rows - 2,))
            assert stream.compact(0).upto == self.rows - 2
            self.look(fresh)
            names = {path.name.split("~")[0] for path in Path(self.root).glob("streams/c/holds/*")}
            assert {name for name in names if not name.startswith(".")} == set(self.newest)
        self.bus.close()


class Actor:
    """A process that is frozen, or dies, at one of its steps.

    Args:
        world: in which it acts.
        at: its step, from 1 on.
        meanwhile: what others do while it is frozen.
        dies: then, instead of waking up.
    """

    def __init__(
        self, world: World, at: int, meanwhile: Callable[[], None], *, dies: bool = False
    ) -> None:
        self.steps, self._at, self._meanwhile, self._dies = 0, at, meanwhile, dies
        self.before: Callable[[], object] = lambda: None
        self._is_dead = False
        self.bus = world.actor(self._step)

    def _step(self) -> None:
        if not self._is_dead:
            self.before()
        self.steps += 1
        if self.steps == self._at:
            self._meanwhile()
            self._is_dead = self._dies
        if self._is_dead:
            raise Died

    @contextlib.contextmanager
    def living(self) -> Iterator[FileBus]:
        """Give its bus to act with, to the end or to its death."""
        with contextlib.suppress(Died), self.bus:
            yield self.bus


Act = Callable[[World, FileBus, Fence], None]


def _compact(world: World, bus: FileBus, fence: Fence) -> None:
    with contextlib.suppress(CompactionStoppedError):  # of who was frozen: others did it, or hold
        bus.stream("c").compact(0)


ACTS: dict[str, Act] = {
    "renew": lambda world, bus, fence: world.hold(bus, fence, 10),
    "go back": lambda world, bus, fence: world.hold(bus, fence, 4),
    "release": lambda world, bus, fence: world.hold(bus, fence),
    "compact": _compact,
}


def _successor(world: World) -> None:
    """The job runs elsewhere, from an offset between those that its former drivers ask for."""
    fence = world.take_over("job")
    with FileBus(world.root, OPTIONS) as bus:
        for offset in (6, 8):
            world.hold(bus, fence, offset)
            world.append(2)
            world.compact(bus)
    world.look()


def _restarted(world: World) -> None:
    """The job released the stream, and has begun again at its beginning."""
    with FileBus(world.root, OPTIONS) as bus:
        world.hold(bus, world.take_over("job"))
        world.append(1)
        world.compact(bus)
        world.hold(bus, world.take_over("job"), 0)
        world.append(2)
        world.compact(bus)
    world.look()


def _other(world: World) -> None:
    """Another job renews its hold, lets rows be compacted, and goes back."""
    fence = Fence("other", world.newest["other"])
    with FileBus(world.root, OPTIONS) as bus:
        world.hold(bus, fence, 11)
        world.compact(bus)
        world.append(1)
        world.hold(bus, fence, 3)
        world.compact(bus)
    world.look()


def _idle(world: World) -> None:
    """The other job goes back; nobody appends."""
    with FileBus(world.root, OPTIONS) as bus:
        world.hold(bus, Fence("other", world.newest["other"]), 2)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A stream that two jobs hold; tests copy it."""
    world = World(tmp_path_factory.mktemp("held") / "bus")
    world.hold(world.bus, world.take_over("job"), 8)
    world.hold(world.bus, world.take_over("other"), 9)
    world.bus.close()
    return world


MEANWHILE = (_successor, _restarted, _other, _idle)
SINGLE = [
    (act, meanwhile, dies) for dies in (False, True) for act in ACTS for meanwhile in MEANWHILE
]


@pytest.mark.parametrize(("act", "meanwhile", "dies"), more(SINGLE[::5], SINGLE))
def test_whoever_is_frozen_at_any_step_stops_nobody_and_takes_no_row_that_is_held(
    tmp_path: Path, held: World, act: str, meanwhile: Callable[[World], None], dies: bool
) -> None:
    """Others take over, hold, release and compact; then it wakes up, or dies there."""
    at, is_over = 0, False
    while not is_over:
        at += 1
        world, fence = World(tmp_path / str(at), held), Fence("job", held.newest["job"])
        frozen = Actor(world, at, partial(meanwhile, world), dies=dies)
        with frozen.living() as bus:
            ACTS[act](world, bus, fence)
            is_over = frozen.steps < at
            world.look(bus)
            world.compact(world.bus)
            ACTS[act](world, bus, fence)
            world.look(bus)
        world.settle()
    assert at > 3


@pytest.mark.parametrize("seed", more(range(2), range(200)))
def test_two_that_are_frozen_within_each_other_take_no_row_that_is_held(
    tmp_path: Path, held: World, seed: int
) -> None:
    """At any two of their steps, and the later one wakes up or dies first."""
    dice = random.Random(seed)
    happened = 0
    for number in range(10):
        world, fence = World(tmp_path / str(number), held), Fence("job", held.newest["job"])
        meanwhile = partial(dice.choice(MEANWHILE), world)
        inner = Actor(world, dice.randrange(1, 20), meanwhile, dies=dice.random() < 0.3)

        def act(world: World = world, inner: Actor = inner) -> None:
            if dice.random() < 0.5:
                later = world.take_over("job")
            else:
                later = Fence("other", world.newest["other"])
            with inner.living() as bus:
                ACTS[dice.choice(list(ACTS))](world, bus, later)
                world.look(bus)

        outer = Actor(world, dice.randrange(1, 20), act, dies=dice.random() < 0.3)
        with outer.living() as bus:
            ACTS[dice.choice(list(ACTS))](world, bus, fence)
            world.look(bus)
        world.compact(world.bus)
        world.settle()
        happened += inner.steps > 0
    assert happened


def _run(world: World, dice: random.Random) -> int:
    """Let four actors act in turns of a few steps, and die anywhere; returns how many turns."""
    turns = Turns(dice, 4)
    failures: list[BaseException] = []

    def live(me: int) -> None:
        turns.wait(me)
        try:
            for _ in range(5):
                actor = Actor(world, dice.randrange(1, 150), lambda: None, dies=True)
                actor.before = partial(turns.step, me)
                with actor.living() as bus:
                    for _ in range(3):
                        _anything(world, bus, dice)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
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
    return turns.handed_over


def _anything(world: World, bus: FileBus, dice: random.Random) -> None:
    """Append and compact, or take a job over and hold for it, higher and higher."""
    if dice.random() < 0.4:
        world.append(dice.randrange(1, 4))
        with contextlib.suppress(CompactionStoppedError):
            bus.stream("c").compact(0)
        return
    reader = dice.choice(["job", "other"])
    fence, offset = world.take_over(reader), dice.randrange(world.rows)
    for _ in range(3):
        if dice.random() < 0.3:
            world.append(1)
        world.hold(bus, fence, offset if dice.random() < 0.9 else NOTHING)
        offset += dice.randrange(3)
    world.look()


@pytest.mark.parametrize("seed", more([0, 107, 137], range(200)))
def test_step_by_step_in_turns_no_row_is_taken_that_is_held(
    tmp_path: Path, held: World, seed: int
) -> None:
    """They wake up in any order, between any steps of the others."""
    world = World(tmp_path / "bus", held)
    assert _run(world, random.Random(seed)) > 30
    world.settle()
