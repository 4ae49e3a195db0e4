"""Crashes at every fault point of every kind of job: nothing is lost, nothing is there twice.

A cell is a job, the points at which processes die one after the other, when in the job's life, its
kind of stores, its bus, and what follows each crash. Every point of every job is
met, and every pair of values; the whole product is of the soak suite.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.copies import check_at_least_once, expire_lease
from tests.sim.matrix import SUBJECTS, Copied, Exchanged, Held, Subject
from tests.support.faults import die_at
from tests.support.pairwise import DRIVER, POINTS, SLOT, Cell, choices, pairs_of, pairwise
from tests.support.soak import more

from headrace.testing import FAULT_POINTS, TestDriver

EPOCH = ("epoch.", "commit.", "slot.", "bus.")
OWN = {"parts": ("feed.", "trim."), "sent": ("sink.", "warehouse."), "copied": ("copy.",)}
"""How the names begin of the fault points that one job alone passes."""

NOT_HERE = {"sink.part_sent", "sink.shared"}
"""Passed by none of these jobs: tests/servers has those that do."""

OF_FILES = ("bus.", "trim.")
"""Of points that a bus in memory does not pass."""

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


def grouped(points: list[str]) -> list[list[tuple[str, str]]]:
    """Return groups of a few points of the driver, each still passed after those before it.

    Those of a bus of files are in groups of their own. Each group has points of slots as well,
    whose death costs little: the driver survives it.
    """
    slots = [one for one in points if one.startswith("slot.")]
    files = [one for one in points if one.startswith(OF_FILES)]
    others = [one for one in points if one not in (*slots, *files)]
    each = [
        part[n::count]
        for part in (files, others)
        for count in [-(-len(part) // len(DRIVER))]
        for n in range(count)
    ]
    return [
        [*zip(DRIVER, mine, strict=False), *zip(SLOT, slots[n :: len(each)], strict=False)]
        for n, mine in enumerate(each)
    ]


def points_of(cell: Cell, names: tuple[str, ...] = POINTS) -> list[str]:
    return [cell[name] for name in names if name in cell]


def allows(cell: Cell) -> bool:
    """Say whether a cell can be."""
    job, after = cell["job"], cell["after"]
    if cell["bus"] == "memory" and any(p.startswith(OF_FILES) for p in points_of(cell)):
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
        left, slots = points_of(cell, DRIVER), points_of(cell, SLOT)
        for step in range(kind.steps):
            subject.feed(step)
            if step == kind.steps - 1 == begin - 1:
                break  # the end of the inputs finds rows that nobody has read
            for proceed in (subject.proceed, driver.run):
                if step < begin or not left + slots:
                    proceed()
                else:  # also on the way back from the death before
                    has_crashed(subject, cell, left, slots, proceed)
            driver.run()
        while left + slots:
            if not has_crashed(subject, cell, left, slots, subject.end):
                # Dying again at one point, the driver may have gone past the next one. In the whole
                # product the first deaths may also leave nothing to merge for the last one.
                assert left + slots != points_of(cell), f"nobody passed {left + slots}"
                is_chosen = cell in CELLS
                assert cell["after"] == "dies again" or not is_chosen, f"not passed: {left + slots}"
                break
        subject.end()
        if isinstance(subject, Copied) and cell["after"] == "disks are lost":
            check_at_least_once(subject.world, driver)
        else:
            subject.check()


def has_crashed(
    subject: Subject,
    cell: Cell,
    left: list[str],
    slots: list[str],
    step: Callable[[], object],
) -> bool:
    """Go through a step in which processes die, and what follows; drops points that are passed.

    The driver dies at the first one that is left, and slots at all of theirs.
    """
    died = die_at(subject.driver, [*left[:1], *slots], step)
    left[:] = [point for point in left if point not in died]
    slots[:] = [point for point in slots if point not in died]
    if died:
        follow(subject, cell, died)
    Held.numbers = set()
    return bool(died)


def follow(subject: Subject, cell: Cell, died: list[str]) -> None:
    """Let happen what follows crashes at some points."""
    driver = subject.driver
    match cell["after"]:
        case "disks are lost":  # one, or both
            driver.crash(lose_hosts=[0] if cell["bus"] == "memory" else [0, 1])
            expire_lease(driver)
        case "dies again":
            for point in died:
                driver.advance_with_crash(point, 1, subject.proceed)
        case "rescales":
            driver.coordinator.rescale(
                1 if 4 in driver.coordinator.state.task_counts.values() else 4
            )


def test_every_pair_that_can_be_is_met() -> None:
    met = {pair for cell in CELLS for pair in pairs_of(cell)}
    assert {pair for cell in EVERY for pair in pairs_of(cell)} == met
    assert len(CELLS) < len(EVERY) / 20
