"""A driver freezes before each of its acts; when it wakes, another has done what it wanted.

Each point is met once in a chain of drivers of one home, each on a host of its own: a driver
freezes there, and before it wakes another one takes over, or the job is reset, rewound, rescaled,
deleted or begun from a savepoint, and has run on. What the woken driver does then lands nowhere.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.sim.processors import Numbered
from tests.support.changes import begin_from, make_streams, remove, rescale, reset, rewind, save
from tests.support.limits import limit, limited

import headrace as hr
from headrace import Job
from headrace.errors import HeadraceError, NotOwnerError
from headrace.testing import FAULT_POINTS, TestDriver, call_at

OFTEN = {"sweep_every": 3, "base_every": 2, "prune_margin": 1}
"""Not so often that what a woken driver still sends has been swept each time."""


def make(folder: Path, way: str) -> Job:
    @hr.job("numbered")
    def numbered(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("user", via=way, name="by-user")
        rows = keyed.process(
            Numbered, [hr.store("n", int, kind="memory")], returns={"user": str, "number": int}
        )
        rows.send_to(g.output("out"))
        rows.send_to(hr.sinks.parquet(folder, merge_bytes=1 << 30, merge_epochs=2, keep="0s"))

    return numbered


class OnHost(TestDriver):
    """A driver of a shared home, whose slots have stores of their own."""

    __test__ = False

    def __init__(self, job: Job, home: Path, number: int, **changed: Any) -> None:
        self.number, self._host = number, f"host-of-{number}"
        options: dict[str, Any] = {
            "tasks": 2,
            "memory_bus": False,
            "seed": number,
            "keep_epochs": 5,
            **changed,
        }
        super().__init__(job, home=home, **options)

    def state_dir(self, host: int) -> Path:
        return self.home / self._host / str(host)


Row = tuple[str, int]


class Chain:
    """Drivers of one job that follow each other, and what their outputs have to hold."""

    def __init__(self, home: Path, way: str) -> None:
        self.home, self._way, self._drivers = home, way, 0
        self.folder, self._rng = home / "sink", random.Random(5)
        self._now, self.fed = 0, Counter[str]()
        self.before: Counter[Row] = Counter()
        self.kept_before: Counter[Row] = Counter()
        """Rows of lineages that are over: whatever was sent of them stays."""
        self.driver = self.next()
        self.create()

    def create(self) -> None:
        columns = {"user": pa.string(), "at": pa.int64()}
        self.driver.create("in", columns, partitions=2, time="at", key=["user"])

    def next(self, **options: Any) -> OnHost:
        self._drivers += 1
        return OnHost(self.job(), self.home, self._drivers, **options)

    def job(self) -> Job:
        return make(self.folder, self._way)

    def feed(self, driver: TestDriver, count: int = 6) -> None:
        users = [f"user {self._rng.randrange(4)}" for _ in range(count)]
        self.fed.update(users)
        self._now += 1000
        driver.feed("in", [{"user": user, "at": self._now} for user in users])

    def streamed(self, driver: TestDriver) -> Counter[Row]:
        is_there = "out" in driver.bus.names()  # else it was deleted before it was begun
        rows = driver.output("out") if is_there else []
        return Counter((row["user"], row["number"]) for row in rows)

    def files(self) -> list[str]:
        """Return what the sink has committed."""
        is_there = (self.home / f".{self.folder.name}.headrace" / "listing.json").exists()
        return hr.sinks.committed_files(self.folder) if is_there else []

    def kept(self) -> Counter[Row]:
        tables = (pl.read_parquet(path, columns=["user", "number"]) for path in self.files())
        return Counter(row for table in tables for row in table.rows())

    def wanted(self) -> Counter[Row]:
        numbers = ((user, n) for user, count in self.fed.items() for n in range(1, count + 1))
        return Counter(numbers)

    def begin_anew(self, driver: TestDriver) -> None:
        """From here on all is sent once more."""
        self.before, self.kept_before = self.streamed(driver), self.kept()

    def check(self, driver: TestDriver) -> None:
        assert self.streamed(driver) == self.before + self.wanted()
        assert self.kept() == self.kept_before + self.wanted()
        assert driver.store("n") == dict(self.fed)

    def close(self) -> None:
        self.driver.close()


def take_over(chain: Chain, driver: OnHost) -> None:
    driver.start()


def set_back(chain: Chain, driver: OnHost) -> None:
    driver.start()  # a reset is refused while a sink may lack the last epoch
    driver.crash()
    reset(driver)
    chain.begin_anew(driver)


def set_back_alone(chain: Chain, driver: OnHost) -> None:
    """Nobody has begun since: files of the last epochs are there, and nothing was swept."""
    set_back(chain, driver)
    for part in chain.driver.parts:
        make_streams(part, driver.bus)


def go_back(chain: Chain, driver: OnHost) -> None:
    """To the epoch before the last one that read anything, whose rows are sent once more."""
    driver.run()
    target = driver.coordinator.state.epoch
    before = chain.streamed(driver)
    chain.feed(driver)
    driver.run()
    again = chain.streamed(driver) - before
    driver.crash()
    rewind(driver, target)
    chain.before += again
    chain.kept_before += again


def resize(chain: Chain, driver: OnHost) -> None:
    tasks = sorted(driver.start().state.task_counts.values())[0]
    driver.crash()
    rescale(driver, 3 - tasks if tasks in (1, 2) else 2)


def delete(chain: Chain, driver: OnHost) -> None:
    remove(driver)
    chain.begin_anew(driver)


def from_savepoint(chain: Chain, driver: OnHost) -> None:
    """Of the same epoch, so nothing is sent twice, under a lineage of its own."""
    driver.run()
    name = f"of-{driver.number}"
    save(driver, name)
    reset(driver)
    begin_from(driver, name, "numbered")


CHANGES: dict[str, Callable[[Chain, OnHost], None]] = {
    "takeover": take_over,
    "reset": set_back,
    "reset alone": set_back_alone,
    "rewind": go_back,
    "rescale": resize,
    "delete": delete,
    "savepoint": from_savepoint,
}
KINDS = {
    "exchange": tuple(CHANGES),
    "bus": ("reset", "reset alone", "takeover", "delete", "savepoint"),
}
"""By the way between the two stages of the job: what can be done to it."""

HARDEST = {
    "commit.published": "reset alone",
    "epoch.output_published": "reset alone",
    "feed.mark_published": "reset alone",
    "feed.trim_due": "reset alone",
    "sweep.due": "savepoint",
    "prune.due": "delete",
}
"""Where most would be lost, if nothing refused what the driver still does."""

OF_EPOCHS = tuple(
    point
    for point in FAULT_POINTS
    if point.startswith(("epoch.", "commit.", "sink.", "sweep.", "prune."))
    and point not in ("sink.part_sent", "sink.shared")
)
OF_FEEDS = ("feed.mark_published", "feed.trim_due", "feed.trimmed")
OF_STARTS = ("catalog.due", "tidy.due")


def points(way: str) -> tuple[str, ...]:
    return (*OF_EPOCHS, *OF_STARTS, *(OF_FEEDS if way == "bus" else ()))


def leave_behind(driver: TestDriver) -> None:
    """Let the next start find what a driver left, and another description of the stores."""
    driver.crash()
    leave_files(driver)


def leave_files(driver: TestDriver) -> None:
    for path in driver.storage.glob("catalog/*.json"):
        path.write_bytes(path.read_bytes() + b" ")
    for number in range(3):
        (driver.storage / "plans" / f"of a driver before {number}").touch()


def freeze(chain: Chain, point: str, change: Callable[[Chain, OnHost], None]) -> bool:
    """Let the driver freeze at a point, and wake when another one has done something."""
    old, new = chain.driver, chain.next()
    if point in OF_STARTS:
        leave_behind(old)

    failed: list[Exception] = []

    def meanwhile() -> None:
        try:
            change(chain, new)
            if change is not set_back_alone:
                chain.feed(new)
                new.run()
        except Exception as error:
            failed.append(error)
            raise

    found: list[HeadraceError] = []
    with call_at(point, meanwhile) as passes:
        try:
            for _ in range(12):
                chain.feed(old)
                old.run()
                if passes:
                    break
        except HeadraceError as error:
            found.append(error)
    if failed:
        raise failed[0]
    if not passes:
        new.close()
        return False
    while not found or point not in OF_STARTS:  # who has not started would start once more
        try:
            old.advance(force=True)
        except HeadraceError as error:
            found.append(error)
            break
        assert len(found) == 0
    assert [error for error in found if not isinstance(error, NotOwnerError)] == []
    old.close()
    chain.driver = new
    new.crash(lose_hosts=[0])  # all that the next one has is in the storage
    chain.feed(new)
    new.run()
    chain.check(new)
    return True


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limit(monkeypatch, kept_plans=2)
    with limited(**OFTEN):
        yield


def freeze_at_each(home: Path, way: str, names: Sequence[str]) -> None:
    """Let drivers freeze at each point, while something is done by turns."""
    chain = Chain(home, way)
    chain.feed(chain.driver)
    chain.driver.run()
    turns, missed = itertools.cycle(names), []
    for point in points(way):
        name = HARDEST.get(point, "") if len(names) > 1 else ""
        name = name or next(turns)
        try:
            if not freeze(chain, point, CHANGES[name]):
                missed.append(point)
        except BaseException as error:
            error.add_note(f"frozen at {point}, {name}")
            raise
    assert missed == []
    chain.close()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("way", KINDS)
def test_what_a_woken_driver_does_lands_nowhere(tmp_path: Path, way: str) -> None:
    freeze_at_each(tmp_path, way, KINDS[way])


@pytest.mark.soak
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("way", "name"), [(way, one) for way in KINDS for one in KINDS[way]])
def test_it_does_so_whatever_was_done_meanwhile(tmp_path: Path, way: str, name: str) -> None:
    freeze_at_each(tmp_path, way, [name])
