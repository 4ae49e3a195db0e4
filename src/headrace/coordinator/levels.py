"""Runs a level of an epoch; an epoch that fails leaves behind what it was."""

from __future__ import annotations

from headrace.clock import Clock
from headrace.coordinator.epoch import EpochRun, Runner
from headrace.coordinator.epoch_plan import save_failed
from headrace.coordinator.hosts.letting_go import let_go
from headrace.coordinator.reign import Reign
from headrace.coordinator.storage import JobStorage
from headrace.errors import HeadraceError, InternalError


def run_level(
    run: EpochRun, level: int, runner: Runner, storage: JobStorage, reign: Reign, clock: Clock
) -> None:
    """Run one level of an epoch.

    Args:
        run: planned, with the levels before this one behind it.
        level: its number.
        runner: of the slots.
        storage: of the job.
        reign: of the driver, with the state before the epoch.
        clock: for names.

    Raises:
        HeadraceError: what a slot failed with; nothing of the epoch counts.
    """
    if level == 0:
        let_go(run, runner)
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


def check_files(run: EpochRun, storage: JobStorage) -> None:
    """Make sure that all files of an epoch are there, as slots have told.

    Raises:
        InternalError: one is not; nothing was committed.
    """
    for file in run.files:
        problem = storage.missing(file.path, file.size)
        if problem is not None:
            raise InternalError(f"{problem} before the commit", epoch=run.epoch)
