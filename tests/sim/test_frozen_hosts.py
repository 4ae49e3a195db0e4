"""Hosts that freeze with an order, and end it at some later time: nothing of it counts."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.hosts import FreezingDriver
from tests.support.soak import more

import headrace as hr

HOSTS, SLOTS = 3, 6


class Sum:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        total = store.get(message.id, 0) + message.v
        store.put(message.id, total)
        context.emit({"id": message.id, "total": total})


@hr.job("sums")
def sums(g: Any) -> None:
    by_id = g.input("events").partition_by("id")
    totals = by_id.process(Sum, stores={"n": int}, returns={"id": int, "total": int}, name="sum")
    totals.send_to(g.output("totals"))


@pytest.mark.parametrize("seed", more(range(2), range(100)))
def test_what_a_frozen_host_does_when_it_wakes_changes_nothing(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), Counter[int]()
    with FreezingDriver(
        sums,
        tasks=5,
        slots=SLOTS,
        hosts=HOSTS,
        standby_copies=seed % 2,
        home=tmp_path,
        seed=seed,
    ) as driver:
        driver.create("events", {"id": pa.int64(), "v": pa.int64()})
        asleep: set[int] = set()
        fed = 0
        for _ in range(12):
            chance = rng.random()
            if chance < 0.3 and len(asleep) < HOSTS - 1:
                host = rng.choice(sorted(set(range(HOSTS)) - asleep))
                asleep.add(host)
                driver.freeze(host)
            elif chance < 0.6 and asleep:
                host = rng.choice(sorted(asleep))
                asleep.remove(host)
                driver.thaw(host)
            rows = [{"id": rng.randrange(50), "v": rng.randrange(10)} for _ in range(20)]
            for row in rows:
                model[row["id"]] += row["v"]
            fed += len(rows)
            driver.feed("events", rows)
            driver.run()
            assert driver.store("n") == model
        totals = driver.output("totals")
        assert len(totals) == fed
        last = {row["id"]: row["total"] for row in totals}
        assert {key: last[key] for key in model} == dict(model)
