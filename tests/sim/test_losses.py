"""Workers, hosts and drivers that are lost, one by one and at once: the results, and the story."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.hosts import carry_out, homes, orders
from tests.support.limits import limit
from tests.support.watching import described, described_json, described_text, events

import headrace as hr
from headrace.errors import NotOwnerError
from headrace.testing import DriverCrash, ManualClock, TestDriver, call_at


class Sum:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + message.v)
        context.emit({"id": message.id, "v": message.v})


@hr.job("sums")
def sums(g: Any) -> None:
    by_id = g.input("events").partition_by("id")
    made = by_id.process(Sum, stores={"n": int}, returns={"id": int, "v": int}, name="sum")
    made.send_to(g.output("out"))


class World:
    """Six tasks on three hosts, each with a standby; and what they were fed."""

    def __init__(self, driver: TestDriver) -> None:
        self.driver, self.rng = driver, random.Random(1)
        self.model, self.fed = Counter[int](), Counter[tuple[int, int]]()
        driver.create("events", {"id": pa.int64(), "v": pa.int64()})

    def feed(self, rows: int = 60) -> None:
        made = [{"id": self.rng.randrange(500), "v": self.rng.randrange(9)} for _ in range(rows)]
        for row in made:
            self.model[row["id"]] += row["v"]
            self.fed[row["id"], row["v"]] += 1
        self.driver.feed("events", made)

    def check(self) -> None:
        """Every row counts once, in the store and in the output."""
        self.driver.run()
        assert self.driver.store("n") == self.model
        assert Counter((row["id"], row["v"]) for row in self.driver.output("out")) == self.fed

    def homes(self) -> dict[str, str]:
        return homes(self.driver)

    def texts(self) -> list[str]:
        return events(self.driver)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with TestDriver(sums, tasks=6, slots=6, hosts=3, standby_copies=1, home=tmp_path) as driver:
        made = World(driver)
        for _ in range(3):
            made.feed()
            driver.run()
        yield made


def test_a_lost_host_is_told_with_what_became_of_its_tasks(
    world: World,
) -> None:
    driver = world.driver
    driver.lose_host(0)
    world.feed()
    world.check()
    texts = world.texts()
    assert texts[0].startswith("a driver began: generation 1, process")
    assert "host host-0 was lost: 2 tasks go elsewhere" in texts
    (moved,) = [text for text in texts if "moved" in text]
    assert moved.startswith("2 tasks moved, 2 to their standbys; first commit after ")
    seen = described(driver)
    assert moved in [event["text"] for event in described_json(seen)["events"]]
    assert moved in described_text(seen)


def test_a_host_that_is_waited_for_is_told_of_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks then learns why the job stands still, and that the host came back in time."""
    limit(monkeypatch, restore_bytes_s=1)  # its state is worth the wait
    seen: list[list[str]] = []
    places = {"affinity": "strict", "wait_s": 30.0}
    sleep, is_lost = ManualClock.sleep, False

    def meanwhile(clock: ManualClock, seconds: float) -> None:
        sleep(clock, seconds)
        if is_lost and len(seen) < 2:
            seen.append([one.text for one in described(driver).events])
        elif is_lost:
            driver.bring_back(0)

    monkeypatch.setattr(ManualClock, "sleep", meanwhile)
    with TestDriver(sums, tasks=6, slots=6, hosts=3, placement=places, home=tmp_path) as driver:
        world = World(driver)
        world.feed()
        driver.run()
        before = world.homes()
        driver.lose_host(0)
        is_lost = True
        world.feed()
        world.check()
        assert world.homes() == before
        assert len(seen) == 2
        for told in seen:
            *_, asked, waits = told
            assert asked.startswith("slots were looked up again: ")
            assert waits.startswith("host host-0 is missing, or some of its slots: ")
            assert waits.endswith("its tasks wait for it for up to 30.0 s")
        assert [text for text in world.texts() if text == asked] == [asked]
        assert driver.coordinator.state.counts["placement.missed"] == 2
        assert "placement.lost" not in driver.coordinator.state.counts
        assert not [text for text in world.texts() if "was lost" in text or "moved" in text]


def test_a_worker_a_host_and_the_driver_are_lost_at_once(world: World) -> None:
    """In mid-epoch: what was done of it counts for nothing, and all of it is done again."""
    driver = world.driver
    world.feed()

    def lose() -> None:
        driver.runner.kill(1)
        driver.lose_host(0)
        raise DriverCrash

    with call_at("epoch.level_done", lose), pytest.raises(DriverCrash):
        driver.advance()
    driver.crash()
    world.feed()
    world.check()
    texts = world.texts()
    assert [text for text in texts if text.startswith("a driver began: generation 2")]
    assert [text for text in texts if text.startswith("2 tasks moved, 2 to their standbys")]
    driver.bring_back(0)
    for _ in range(4):
        world.feed()
        driver.run()
    world.check()
    assert set(Counter(world.homes().values()).values()) == {2}
    assert [text for text in world.texts() if text.endswith("came back")]


def test_two_hosts_and_a_task_with_its_standby_are_lost_at_once(world: World) -> None:
    driver = world.driver
    driver.lose_host(0)
    driver.lose_host(1)
    driver.crash()
    world.feed()
    world.check()
    assert len(set(world.homes().values())) == 1
    assert driver.coordinator.state.counts["standby.no_failover"] > 0


def test_a_worker_that_wakes_after_its_task_was_moved_changes_nothing(world: World) -> None:
    """Its order is carried out on the lost host, in the middle of an epoch of the others."""
    driver = world.driver
    order = [one for one in orders(driver) if one.slot == 0 and one.level == 1][-1]
    zombie = driver.runner.host(0)
    driver.runner.down.update({0, 3})
    world.feed()
    driver.run()
    before = world.homes()
    assert zombie.host not in before.values()
    with call_at("epoch.level_done", lambda: carry_out(order, zombie)) as woken:
        world.feed()
        driver.run()
    assert woken
    assert world.homes() == before
    world.check()


def test_a_driver_that_was_fenced_is_told_of_by_the_next_ones_generation(world: World) -> None:
    old = world.driver.coordinator
    world.driver.start()
    world.feed()
    with pytest.raises(NotOwnerError, match="generation 2"):
        old.advance()
    world.check()
    begun = [text for text in world.texts() if text.startswith("a driver began")]
    assert [text.split(",")[0] for text in begun] == [
        "a driver began: generation 1",
        "a driver began: generation 2",
    ]


def test_a_driver_that_finds_nothing_to_read_is_told_of_all_the_same(world: World) -> None:
    world.driver.start()
    world.driver.start()
    assert world.driver.advance() is None
    world.feed()
    world.check()
    begun = [text for text in world.texts() if text.startswith("a driver began")]
    assert [text.split(",")[0] for text in begun] == [
        f"a driver began: generation {number}" for number in (1, 2, 3)
    ]
