"""A crash at every fault point of every kind of job: nothing is lost, nothing is there twice.

A cell is a job, the point at which a process dies, when in its life, its kind of stores, its bus,
and what follows the crash. Every point of every job is met, and every pair of values; the whole
product is of the soak suite.
"""

from __future__ import annotations

import pytest
from tests.sim.copies import check_at_least_once, expire_lease
from tests.sim.matrix import STEPS, SUBJECTS, Copied, Held, Related, Subject
from tests.support.pairwise import Cell, choices, pairs_of, pairwise
from tests.support.soak import more

from headrace.testing import FAULT_POINTS, TestDriver

EPOCH = ("epoch.", "commit.", "slot.", "bus.")
OWN = {"parts": ("feed.", "trim."), "sent": ("sink.", "warehouse."), "copied": ("copy.",)}
"""How the names begin of the fault points that one job alone passes."""

NOT_HERE = {"sink.part_sent"}
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
    """Return every point that the epochs of each job pass."""
    return [
        {"job": name, "point": point}
        for name in SUBJECTS
        for point in FAULT_POINTS
        if point.startswith((*EPOCH, *OWN.get(name, ()))) and point not in NOT_HERE
    ]


def allows(cell: Cell) -> bool:
    """Say whether a cell can be."""
    job, after = cell["job"], cell["after"]
    if cell["bus"] == "memory" and cell["point"].startswith(("bus.", "trim.")):
        return False
    if cell["store"] == "columnar" and job not in WITH_TABLES:
        return False
    return after != "rescales" or (job not in ("parts", "copied") and cell["moment"] != "end")


CELLS = pairwise(bases(), FACTORS, allows)


def name_of(cell: Cell) -> str:
    return "-".join(cell.values())


EVERY = [cell for base in bases() for cell in choices(base, FACTORS, allows)]


@pytest.mark.parametrize("cell", more(CELLS, EVERY, share=100), ids=name_of)
def test_whoever_dies_anywhere_loses_and_doubles_nothing(cell: Cell) -> None:
    kind = SUBJECTS[cell["job"]]
    is_copied = kind is Copied
    with TestDriver(
        kind.job(cell["store"]),
        tasks=2 if kind is Related else 3,
        hosts=1 if is_copied else 2,
        memory_bus=cell["bus"] == "memory",
        durability="backup(30s)" if is_copied else "epoch",
    ) as driver:
        subject = kind(driver)
        begin = {"first": 0, "middle": 2, "end": STEPS}[cell["moment"]]
        died = False
        for step in range(STEPS):
            subject.feed(step)
            if step == STEPS - 1 == begin - 1:
                break  # the end of the inputs finds rows that nobody has read
            if step < begin:
                subject.proceed()
            else:
                died |= crashed(subject, cell, died=died)
        if not died:
            Held.numbers = set()
            died = driver.advance_with_crash(cell["point"], 1, subject.end)
            follow(subject, cell)
        assert died, "nobody passed the point"
        subject.end()
        if isinstance(subject, Copied) and cell["after"] == "disks are lost":
            check_at_least_once(subject.world, driver)
        else:
            subject.check()


def crashed(subject: Subject, cell: Cell, *, died: bool) -> bool:
    """Go through a step in which a process dies: at its first pass, later once at its second."""
    driver, point = subject.driver, cell["point"]
    now = driver.advance_with_crash(point, 2 if died else 1, subject.proceed)
    if now and not died:
        follow(subject, cell)
    Held.numbers = set()
    driver.run()
    return now


def follow(subject: Subject, cell: Cell) -> None:
    """Let happen what follows the first crash."""
    driver = subject.driver
    match cell["after"]:
        case "disks are lost":  # one, or both
            driver.crash(lose_hosts=[0] if cell["bus"] == "memory" else [0, 1])
            expire_lease(driver)
        case "dies again":
            driver.advance_with_crash(cell["point"], 1, subject.proceed)
        case "rescales":
            driver.coordinator.rescale(5)


def test_every_pair_that_can_be_is_met() -> None:
    met = {pair for cell in CELLS for pair in pairs_of(cell)}
    assert {pair for cell in EVERY for pair in pairs_of(cell)} == met
    assert len(CELLS) < len(EVERY) / 10
