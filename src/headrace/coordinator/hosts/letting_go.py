"""Before an epoch: slots let go of the tasks that others are about to open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.coordinator.epoch import EpochRun, Runner
from headrace.faults import fault
from headrace.task.orders import SlotOrder


def let_go(run: EpochRun, runner: Runner) -> None:
    """Have slots let go of the tasks that move; run before the first level of an epoch.

    Raises:
        HeadraceError: a slot did not answer; nothing of the epoch counts.
    """
    leaving = run.placing.leaving()
    there = {slot.number for slot in run.slots}
    wanted = {slot: names for slot, names in leaving.items() if slot in there}
    if wanted:
        runner.run(_orders(run, wanted))
        fault("placement.let_go")
    run.placing.seated(leaving)


def _orders(run: EpochRun, wanted: Mapping[int, Collection[str]]) -> list[SlotOrder]:
    return [
        SlotOrder(
            job=run.state.job,
            lineage=run.state.lineage,
            generation=run.generation,
            epoch=run.epoch,
            level=0,
            slot=slot,
            time_ms=run.time_ms,
            plan=run.plan_digest,
            leaves=[_split(name) for name in sorted(set(names))],
        )
        for slot, names in sorted(wanted.items())
    ]


def _split(name: str) -> tuple[str, int]:
    stage, _, task = name.rpartition("/")
    return stage, int(task)


def renewals(
    slots: Sequence[int], job: str, lineage: str, generation: int, epoch: int, plan: str
) -> list[SlotOrder]:
    """Return orders that have the processes of slots let go of everything, and end."""
    return [
        SlotOrder(job, lineage, generation, epoch, 0, slot, 0, plan, renew=True) for slot in slots
    ]
