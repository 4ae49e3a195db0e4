"""Drivers of one job that freeze before any of their acts and wake in any order, at random.

Each driver is on a host of its own and runs in a thread of its own, of which one runs at a time. A
schedule freezes it before some act; others take over meanwhile, or reset, rewind, rescale, delete
or begin the job again, and freeze as well; those that are frozen wake when a schedule says so, go
on, and may freeze again. Whatever they try, each row is in each output once.

Each seed is one schedule, which its test names.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.sim.processors import NumberedAt
from tests.sim.test_frozen_acts import (
    CHANGES,
    KINDS,
    OFTEN,
    Chain,
    OnHost,
    leave_files,
    set_back_alone,
)
from tests.support.limits import limit, limited
from tests.support.soak import more

import headrace as hr
from headrace import Job
from headrace.errors import NotOwnerError
from headrace.faults import injected
from headrace.testing import FAULT_POINTS, call_at

BATCH = 14
"""Schedules of one test."""

WITHIN_A_LOCK = ("bus.", "trim.", "compact.", "seal.")
"""Acts of a stream's partition and of who seals one, which ``test_frozen_appenders`` freezes."""

COMMANDS = (
    "set_back.",
    "parts.",
    "rescale.",
    "delete.",
    "run.",
    "savepoint.",
    "streams.",
    "drain.",
)
"""Acts of commands, which ``test_frozen_commands`` freezes."""

OF_REMOVALS = ("stream.chosen", "stream.removed")

ELSEWHERE = (
    "spark.",
    "copy.",
    "aliases.",
    "merge.",
    "placement.",
    "output.",
    "request.",
    "pipe.",
    "offload.",
)
OF_SERVERS = ("slot.remote_sent", "sink.part_sent", "sink.shared", "failure.due")
ACTS = [
    point
    for point in FAULT_POINTS
    if not point.startswith((*WITHIN_A_LOCK, *COMMANDS, *ELSEWHERE))
    and point not in (*OF_SERVERS, *OF_REMOVALS)
]
OF_A_WAY = {
    "feed.": ("bus",),
    "generation.": ("bus",),
    "warehouse.": ("table", "delta"),
    "hold.": ("compacted",),
}
OF_ALL = ("epoch.", "commit.", "slot.", "sweep.", "prune.", "tidy.", "catalog.", "stream.")
WAYS = ("exchange", "bus", "exchange", "table", "bus", "compacted", "exchange", "delta")
frozen: Counter[str] = Counter()
met: Counter[str] = Counter()


class Mixed(Chain):
    """A chain of drivers of a job with one sink or another."""

    def __init__(self, home: Path, way: str, rng: random.Random) -> None:
        self._kind, self._options = way, {"tasks": rng.choice([1, 2]), "slots": 1, "key_groups": 8}
        super().__init__(home, "bus" if way == "bus" else "exchange")

    def next(self, **options: Any) -> OnHost:
        return super().next(**self._options, **options)

    def job(self) -> Job:
        kind, folder = self._kind, self.folder

        @hr.job("numbered")
        def numbered(g: hr.Graph) -> None:
            way = "bus" if kind == "bus" else "exchange"
            keyed = g.input("in", time="at").partition_by("user", via=way, name="by-user")
            rows = keyed.process(
                NumberedAt,
                stores=[hr.store("n", int, kind="memory")],
                returns={"user": str, "number": int, "at": int},
            )
            rows.send_to(g.output("out"))
            if kind in {"table", "delta"}:
                form = "delta" if kind == "delta" else "parquet"
                rows.send_to(g.output_table("rows", time="at", format=form))
            else:
                sink = hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=2, keep="0s")
                rows.send_to(sink)

        return numbered

    def create(self) -> None:
        columns = {"user": pa.string(), "at": pa.int64()}
        options: dict[str, Any] = {"partitions": 2, "time": "at", "key": ["user"]}
        self.driver.create("in", columns, compact=self._kind == "compacted", **options)

    def files(self) -> list[str]:
        table = self.home / "warehouse" / "rows"
        match self._kind:
            case "table":
                return [str(path) for path in table.glob("*/*.parquet")]
            case "delta":
                is_there = deltalake.DeltaTable.is_deltatable(str(table))
                return list(deltalake.DeltaTable(str(table)).file_uris()) if is_there else []
            case _:
                return super().files()


class Actor(threading.Thread):
    """What one driver does; it runs only within ``go_on``, and may stop at any act."""

    def __init__(self, driver: OnHost, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.driver, self._act = driver, act
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self.freezes: Callable[[str], bool] = lambda point: False
        self.frozen_at = ""
        self.refused: NotOwnerError | None = None
        self.failed: BaseException | None = None
        self.is_over = False

    def run(self) -> None:
        self._mine.acquire()
        try:
            self._act()
        except NotOwnerError as error:
            self.refused = error
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self.failed = error
        self.is_over = True
        self._theirs.release()

    def go_on(self, freezes: Callable[[str], bool]) -> None:
        """Run to the end, or to an act before which it is to freeze."""
        if self.ident is None:
            self.start()
        self.freezes, self.frozen_at = freezes, ""
        self._mine.release()
        self._theirs.acquire()
        if self.failed is not None:
            raise self.failed

    def pass_by(self, point: str) -> None:
        if self.freezes(point):
            self.frozen_at = point
            self._theirs.release()
            self._mine.acquire()


def _is_passed(point: str, way: str) -> bool:
    """Say whether jobs of some kind pass an act at all."""
    kind = point.partition(".")[0] + "."
    if kind == "sink.":
        return way not in OF_A_WAY["warehouse."] or point in {"sink.due", "sink.committed"}
    return kind in OF_ALL or way in OF_A_WAY[kind]


class Schedule:
    """Drivers that come, freeze and wake as a seed says."""

    def __init__(self, seed: int, home: Path) -> None:
        self._rng = random.Random(seed)
        self.way = WAYS[seed % len(WAYS)]
        self._chain = Mixed(home, self.way, self._rng)
        self._acts = [point for point in ACTS if _is_passed(point, self.way)]
        self._changes = KINDS["bus" if self.way == "bus" else "exchange"]
        self._actors: list[Actor] = []
        self._woken: list[Actor] = []
        self.told: list[str] = []

    def run(self) -> None:
        """Go through the schedule, wake all, and look at what came of it."""
        chain, rng = self._chain, self._rng
        with injected(self._pass_by):
            current = chain.driver
            for _ in range(rng.choice([1, 1, 2, 3])):
                actor = self._drive(current)
                while not actor.is_over and rng.random() < 0.3:
                    self._wake_one(but=actor)
                    self._say(f"{actor.driver.number} wakes, and it still has the job")
                    actor.go_on(self._any_act())
                    self._note(actor)
                assert actor.refused is None
                if rng.random() < 0.3 and (actor.driver.storage / "plans").exists():
                    leave_files(actor.driver)
                current = chain.next()
                if rng.random() < 0.5:
                    self._change(current)
                    if rng.random() < 0.5:
                        self._wake_one()
            current.start()
            while self._sleeping():
                self._wake_one()
        chain.feed(current)
        current.run()
        current.crash(lose_hosts=[0])
        chain.check(current)
        for actor in self._actors:
            actor.driver.close()
        current.close()

    def _pass_by(self, point: str) -> None:
        actor = threading.current_thread()
        if isinstance(actor, Actor):
            actor.pass_by(point)

    def _drive(self, driver: OnHost) -> Actor:
        """Run a driver up to some act, or for some epochs."""

        freezes, rounds = self._any_act(), self._rng.randint(1, 3)
        rounds *= 2 if self._rng.random() < 0.2 else 1  # some acts are not of each epoch

        def act() -> None:
            for _ in range(rounds):
                self._chain.feed(driver, self._rng.randint(1, 6))
                driver.run()
            if actor in self._woken:
                for _ in range(8):
                    driver.advance(force=True)

        actor = Actor(driver, act)
        self._actors.append(actor)
        actor.go_on(freezes)
        self._note(actor)
        return actor

    def _any_act(self) -> Callable[[str], bool]:
        """Choose an act: one of a kind, or one of so many from here."""
        rng = self._rng
        if rng.random() < 0.5:
            wanted, left = {rng.choice(self._acts)}, 1
        else:
            wanted, left = set(self._acts), rng.randint(1, 30)

        def freezes(point: str) -> bool:
            nonlocal left
            left -= point in wanted
            return point in wanted and left == 0

        return freezes

    def _note(self, actor: Actor) -> None:
        where = f"frozen at {actor.frozen_at}" if actor.frozen_at else "over"
        self._say(f"driver {actor.driver.number} is {where}")
        if actor.frozen_at:
            frozen[actor.frozen_at] += 1

    def _say(self, text: str) -> None:
        self.told.append(text)

    def _sleeping(self, but: Actor | None = None) -> list[Actor]:
        return [one for one in self._actors if not one.is_over and one is not but]

    def _wake_one(self, but: Actor | None = None) -> None:
        """Wake one that lost the job while it was frozen; it ends, or freezes once more."""
        sleeping = self._sleeping(but)
        if not sleeping:
            return
        actor = self._rng.choice(sleeping)
        self._woken.append(actor)
        self._say(f"driver {actor.driver.number} wakes at {actor.frozen_at}")
        actor.go_on(self._any_act() if self._rng.random() < 0.4 else lambda point: False)
        self._note(actor)
        met["woken"] += 1
        if actor.is_over:
            assert actor.refused is not None, "a driver that lost the job does not know"

    def _change(self, driver: OnHost) -> None:
        names = self._changes
        if any(actor.driver is self._chain.driver for actor in self._sleeping()):
            # The first driver's process makes the streams, which it cannot while it is frozen.
            names = tuple(name for name in names if CHANGES[name] is not set_back_alone)
        name = self._rng.choice(names)
        self._say(f"driver {driver.number}: {name}")
        met[name] += 1
        change = CHANGES[name]
        if self.way == "table":
            driver.start()  # a table may have rows that its folders do not show yet
            driver.crash()
        change(self._chain, driver)
        if change is set_back_alone:
            driver.start()
        self._chain.feed(driver, self._rng.randint(1, 6))
        driver.run()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limit(monkeypatch, kept_plans=2)
    with limited(**OFTEN):
        yield


def play(seed: int, home: Path) -> None:
    home.mkdir()
    schedule = Schedule(seed, home)
    try:
        schedule.run()
    except BaseException as error:
        error.add_note(f"this was schedule {seed}, {schedule.way}: " + "; ".join(schedule.told))
        raise


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("batch", more(range(1), range(500), share=250))
def test_each_row_is_there_once_whoever_freezes_and_wakes(tmp_path: Path, batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("way", ["exchange", "table", "delta"])
def test_a_receiver_takes_nothing_of_a_job_that_was_deleted(tmp_path: Path, way: str) -> None:
    """The one that was begun since has sent there, under the same name."""
    chain = Mixed(tmp_path, way, random.Random(1))
    old, new = chain.driver, chain.next()
    chain.feed(old)
    old.run()

    def meanwhile() -> None:
        CHANGES["delete"](chain, new)
        chain.feed(new)
        new.run()

    chain.feed(old)
    point = "sink.sent" if way == "exchange" else "warehouse.written"
    with call_at(point, meanwhile) as passes, pytest.raises(NotOwnerError):
        old.run()
    assert passes
    chain.check(new)
    old.close()
    new.close()
