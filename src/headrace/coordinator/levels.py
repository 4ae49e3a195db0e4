"""Runs the levels of an epoch one after the other; one that fails leaves behind what it was."""

from __future__ import annotations

from headrace.clock import Clock
from headrace.coordinator.epoch import EpochRun, Runner
from headrace.coordinator.epoch_plan import save_failed
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.errors import HeadraceError, InternalError
from headrace.faults import fault


def run_levels(
    run: EpochRun, runner: Runner, storage: JobStorage, reign: Reign, clock: Clock
) -> dict[str, float]:
    """Run an epoch up to where it can be committed.

    Args:
        run: planned.
        runner: of the slots.
        storage: of the job.
        reign: of the driver, with the state before the epoch.
        clock: for names, and how long each level took.

    Returns:
        How long each took, ms.

    Raises:
        HeadraceError: what a slot failed with; nothing of the epoch counts.
    """
    timings = {}
    for level in range(len(run.plan.levels)):
        began = clock.monotonic()
        orders = run.orders(level)
        if orders:
            storage.forget_recovery()
            try:
                run.absorb(orders, runner.run(orders))
            except HeadraceError as error:
                reign.check(error)  # a newer driver's epoch is the one to tell of
                save_failed(storage.root, run, reign.state, error, storage.files, clock.new_id())
                raise
        run.finish_level(level)
        timings[f"level {level}"] = round((clock.monotonic() - began) * 1000, 2)
        fault("epoch.level_done")
    return timings


def check_files(run: EpochRun, storage: JobStorage) -> None:
    """Make sure that all files of an epoch are there, as slots have told.

    Raises:
        InternalError: one is not; nothing was committed.
    """
    for file in run.files:
        problem = storage.missing(file.path, file.size)
        if problem is not None:
            raise InternalError(f"{problem} before the commit", epoch=run.epoch)
