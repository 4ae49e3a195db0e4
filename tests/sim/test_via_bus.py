"""Jobs in parts, joined by internal streams: crashes anywhere, as if nothing had happened."""

from __future__ import annotations

import random

import pytest
from tests.sim.world import EPOCH, World, make_job
from tests.support.soak import crossed, more

from headrace.testing import FAULT_POINTS, TestDriver

POINTS = [p for p in FAULT_POINTS if p.startswith((*EPOCH, "feed."))]
WAYS = {
    "first": ("id", "name"),
    "second": ("window_start",),
    "beside": ("name",),
    "all": ("id", "name", "window_start"),
}
PARTS = {"first": 3, "second": 2, "beside": 2, "all": 4}


@pytest.mark.parametrize("way", WAYS)
def test_results_are_those_of_one_part(way: str) -> None:
    """Each part in turn, a part far behind, or everything at the end: nothing differs."""
    with TestDriver(make_job("memory", "columnar", WAYS[way]), tasks=3) as driver:
        world = World(driver, random.Random(5))
        for number in range(4):
            world.feed(50)
            driver.advance(part=0)
            if number % 3 == 2:
                driver.run()
        assert PARTS[way] == len(driver.parts)
        driver.finish()
        world.check()


@pytest.mark.parametrize(
    ("point", "nth"), crossed(["bus.frame_written", "bus.index_written"], [4, 9])
)
def test_crash_inside_an_append(point: str, nth: int) -> None:
    """Rows or marks of an epoch are half in their streams: the rest follows, once."""
    job = make_job("memory", via=WAYS["all"])
    with TestDriver(job, tasks=3, memory_bus=False) as driver:
        world = World(driver, random.Random(7))
        world.feed(60)
        driver.run()
        world.feed(60)
        assert driver.advance_with_crash(point, nth, driver.run)
        driver.finish()
        world.check()


@pytest.mark.parametrize("seed", more(range(3), range(600), share=300))
def test_random_schedules(seed: int) -> None:
    """Parts in any order, crashes and lost hosts in between: results are those of the model."""
    rng = random.Random(seed)
    way = rng.choice(sorted(WAYS))
    job = make_job(rng.choice(["memory", "rocksdb"]), rng.choice([None, "columnar"]), WAYS[way])
    with TestDriver(job, tasks=3, hosts=2, max_rows=rng.choice([20, 1000]), seed=seed) as driver:
        world = World(driver, rng)
        for _ in range(25):
            action = rng.random()
            if action < 0.3:
                world.feed(rng.randrange(1, 40))
            elif action < 0.7:
                driver.advance(part=rng.randrange(PARTS[way]))
            elif action < 0.9:
                driver.advance_with_crash(rng.choice(POINTS), rng.randrange(1, 4))
            else:
                driver.crash(lose_hosts=rng.sample([0, 1], rng.randrange(3)))
        driver.finish()
        world.check()
