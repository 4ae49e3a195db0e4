"""Crashes at every fault point of every kind of job: nothing is lost, nothing is there twice.

A cell is a job, the points at which processes die one after the other, when in the job's life, its
kind of stores, its bus, and what follows each crash. Every point of every job is
met, and every pair of values; the whole product is of the soak suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.sim.copies import check_at_least_once, expire_lease
from tests.sim.matrix import SUBJECTS, Copied, Exchanged, Held, Subject
from tests.support.pairwise import POINTS, Cell, choices, pairs_of, pairwise
from tests.support.soak import more

from headrace.testing import FAULT_POINTS, TestDriver

EPOCH = ("epoch.", "commit.", "slot.", "bus.")
OWN = {"parts": ("feed.", "trim."), "sent": ("sink.", "warehouse."), "copied": ("copy.",)}
"""How the names begin of the fault points that one job alone passes."""

NOT_HERE = {"sink.part_sent", "sink.shared"}
"""Passed by none of these jobs: tests/servers has those that do."""

FACTORS = {
    "moment": ("first", "middle", "end"),
    "store": ("memory", "rocksdb", "columnar"),
    "after": ("goes on", "disks are lost", "dies again", "rescales"),
    "bus": ("memory", "file"),
}
WITH_TABLES = {"exchanged", "parts", "copied"}
"""Jobs whose aggregates may be in columnar stores while processors are in others."""


def bases() -> list[Cell]:
    """Return groups of points that have each point that the epochs of each job pass."""
    found = []
    for name in SUBJECTS:
        for begin in (EPOCH, OWN.get(name, ())):
            points = [one for one in FAULT_POINTS if one.startswith(begin) and one not in NOT_HERE]
            found += [{"job": name, **dict(group)} for group in grouped(points)]
    return found


def grouped(points: list[str]) -> list[Iterator[tuple[str, str]]]:
    """Return groups of up to three points, each of which is still passed after those before it.

    That of a slot is the last one, for a driver survives its death and would end the job. A merge
    needs some epochs, so it is in a group of two.
    """
    slots = [one for one in points if one.startswith("slot.")]
    slots.sort(key=lambda one: one.startswith("slot.merge_"))
    others = [one for one in points if one.startswith("bus.")]
    others += [one for one in points if one not in (*others, *slots)]
    count = max(len(slots), -(-len(points) // len(POINTS)))
    return [zip(POINTS, others[n::count] + slots[n::count], strict=False) for n in range(count)]


def points_of(cell: Cell) -> list[str]:
    return [cell[name] for name in POINTS if name in cell]


def allows(cell: Cell) -> bool:
    """Say whether a cell can be."""
    job, after = cell["job"], cell["after"]
    if cell["bus"] == "memory" and any(p.startswith(("bus.", "trim.")) for p in points_of(cell)):
        return False
    if cell["store"] == "columnar" and job not in WITH_TABLES:
        return False
    return after != "rescales" or (job not in ("parts", "copied") and cell["moment"] != "end")


CELLS = pairwise(bases(), FACTORS, allows)


def name_of(cell: Cell) -> str:
    return "-".join(cell.values())


EVERY = [cell for base in bases() for cell in choices(base, FACTORS, allows)]


@pytest.mark.parametrize("cell", more(CELLS, EVERY), ids=name_of)
def test_whoever_dies_anywhere_loses_and_doubles_nothing(cell: Cell) -> None:
    kind = SUBJECTS[cell["job"]]
    is_copied = kind is Copied
    with TestDriver(
        kind.job(cell["store"]),
        tasks=3 if kind is Exchanged else 2,
        hosts=1 if is_copied else 2,
        memory_bus=cell["bus"] == "memory",
        durability="backup(30s)" if is_copied else "epoch",
    ) as driver:
        subject = kind(driver)
        begin = {"first": 0, "middle": kind.steps // 2, "end": kind.steps}[cell["moment"]]
        left = points_of(cell)
        for step in range(kind.steps):
            subject.feed(step)
            if step == kind.steps - 1 == begin - 1:
                break  # the end of the inputs finds rows that nobody has read
            if step < begin or not left:
                subject.proceed()
            else:
                has_crashed(subject, cell, left, subject.proceed)
                driver.run()
        while left:
            if not has_crashed(subject, cell, left, subject.end):
                # Dying again at one point, the driver may have gone past the next one.
                assert left != points_of(cell), f"nobody passed {left[0]}"
                assert cell["after"] == "dies again", f"nobody passed {left[0]}"
                break
        subject.end()
        if isinstance(subject, Copied) and cell["after"] == "disks are lost":
            check_at_least_once(subject.world, driver)
        else:
            subject.check()


def has_crashed(subject: Subject, cell: Cell, left: list[str], step: Callable[[], object]) -> bool:
    """Go through a step in which a process dies if it passes the next point, and what follows."""
    died = subject.driver.advance_with_crash(left[0], 1, step)
    if died:
        follow(subject, cell, left.pop(0))
    Held.numbers = set()
    return died


def follow(subject: Subject, cell: Cell, point: str) -> None:
    """Let happen what follows a crash at a point."""
    driver = subject.driver
    match cell["after"]:
        case "disks are lost":  # one, or both
            driver.crash(lose_hosts=[0] if cell["bus"] == "memory" else [0, 1])
            expire_lease(driver)
        case "dies again":
            driver.advance_with_crash(point, 1, subject.proceed)
        case "rescales":
            driver.coordinator.rescale(
                1 if 4 in driver.coordinator.state.task_counts.values() else 4
            )


def test_every_pair_that_can_be_is_met() -> None:
    met = {pair for cell in CELLS for pair in pairs_of(cell)}
    assert {pair for cell in EVERY for pair in pairs_of(cell)} == met
    assert len(CELLS) < len(EVERY) / 20
