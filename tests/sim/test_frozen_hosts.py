"""Hosts that freeze with an order, and end it at some later time: nothing of it counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.placement import Slot
from headrace.errors import HeadraceError
from headrace.graph.types import to_schema
from headrace.task.orders import SlotOrder, SlotReport
from headrace.task.slot import run_slot
from headrace.task.slot_host import SlotHost
from headrace.testing.driver import TestDriver
from headrace.testing.local_runner import LocalRunner

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


class FreezingRunner(LocalRunner):
    """Slots of frozen hosts keep their order to themselves, until they wake."""

    frozen: set[int]
    left: list[tuple[SlotHost, SlotOrder]]

    def freeze(self, slots: Collection[int]) -> None:
        self.frozen |= set(slots)

    def slots(self) -> list[Slot]:
        self.down |= self.frozen
        return super().slots()

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run what lives; give the others up, as a driver does that hears nothing of them."""
        stopped = [order for order in orders if order.slot in self.frozen - self.down]
        if not stopped:
            return super().run(orders)
        for order in orders:
            if order not in stopped:
                self.run_one(order)
        self.left += [(self.host(order.slot), order) for order in stopped]
        self.down |= self.frozen
        raise MisplacedError(f"slots {[order.slot for order in stopped]} say nothing")

    def thaw(self, slots: Collection[int]) -> None:
        """Let slots end what they were doing; the driver hears of it, and does not care."""
        for host, order in [one for one in self.left if one[1].slot in slots]:
            with suppress(HeadraceError):
                run_slot(order, host)
        self.left = [one for one in self.left if one[1].slot not in slots]
        self.frozen -= set(slots)
        self.down -= set(slots)


class FreezingDriver(TestDriver):
    __test__ = False

    def _new_runner(self, part: str) -> FreezingRunner:
        runner = FreezingRunner(lambda slot: self._open_slot(part, slot), self._slots)
        runner.frozen, runner.left = set(), []
        return runner

    @property
    def freezing(self) -> FreezingRunner:
        runner = self.runners["sums"]
        assert isinstance(runner, FreezingRunner)
        return runner


def slots_of(host: int) -> set[int]:
    return {slot for slot in range(SLOTS) if slot % HOSTS == host}


@pytest.mark.parametrize("seed", range(4))
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
        driver.create("events", to_schema({"id": int, "v": int}))
        asleep: set[int] = set()
        fed = 0
        for _ in range(16):
            chance = rng.random()
            if chance < 0.3 and len(asleep) < HOSTS - 1:
                host = rng.choice(sorted(set(range(HOSTS)) - asleep))
                asleep.add(host)
                driver.freezing.freeze(slots_of(host))
            elif chance < 0.6 and asleep:
                host = rng.choice(sorted(asleep))
                asleep.remove(host)
                driver.freezing.thaw(slots_of(host))
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
