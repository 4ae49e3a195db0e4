"""A standby driver on Spark: a session that is warm, and a run once the job's driver has gone.

What takes long at a cold start is done before: the JVM, Spark's first job, the Python process of
each slot with its libraries and the job's plan, and what plans the job in this process. A slot is
found again by its number, so the run has the very processes that were made warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pyspark import SparkContext

from headrace.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.bounded_runs import bounded_bus
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.dataframe_inputs import with_dataframes
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.driver_loop import DroppedError, JobControl, stop_on_signals
from headrace.coordinator.driver_standby import DriverStandby, StandbyStep
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import RunListeners, RunResult, disk_errors_named
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.worker_host import worker_settings
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.graph.operators import JobGraph
from headrace.plan.parts import split_parts
from headrace.spark.dataframe_inputs import dataframe_inputs
from headrace.spark.run import job_context, run_job
from headrace.spark.runner import MOST_SLOTS, spread
from headrace.spark.slot_rdd import SPARK_ERRORS, SlotRDD, executors
from headrace.spark.worker import warm_main

FROZEN_S = 1.0
"""So long a driver that has not renewed its lease has to release the lock by itself."""


def run_standby(
    job: Job,
    settings: Settings,
    bus: Bus,
    control: JobControl,
    listeners: RunListeners,
    clock: Clock,
) -> RunResult:
    """Drive a job as soon as nobody else does, until it ends, is asked to stop, or fails.

    Call from the main thread, as ``run_job``.

    Args:
        job: made by ``headrace.job``.
        settings: of the run.
        bus: inputs and outputs.
        control: ends the waiting, too.
        listeners: of the run; they get notices also when it begins to wait, and to drive.
        clock: where time comes from.

    Raises:
        NotOwnerError: another driver has taken over while this one drove.
        DroppedError: it was asked to stop before there was a job.
        HeadraceError: errors of other kinds.
    """
    context = JobContext(settings, job.name, bus, Files(), clock)
    graph = with_dataframes(job.build(), bus, settings)
    begun: list[JobGroup] = []

    def parts_begun(parts: JobGroup) -> None:
        begun.append(parts)
        if listeners.on_parts is not None:
            listeners.on_parts(parts)

    called = replace(listeners, on_parts=parts_begun)
    warm = WarmSession(context, graph)
    listeners.notice(f"job {job.name!r}: standby driver; it drives as soon as nobody else does")
    while True:
        with disk_errors_named(), stop_on_signals(control):
            step = DriverStandby(context, control, warm).wait()
        if step is None:
            return _not_driven(context, control)
        is_frozen = step is StandbyStep.FENCE
        listeners.notice(f"nobody drives job {job.name!r}: this standby driver does")
        try:
            return run_job(
                job,
                settings,
                bus=bus,
                control=control,
                clock=clock,
                takes_over=is_frozen,
                release_s=FROZEN_S if is_frozen else None,
                **vars(called),
            )
        except NotOwnerError as error:
            if begun or control.stop.is_set():
                raise
            listeners.notice(f"{error.message}; this standby driver waits again")


def _not_driven(context: JobContext, control: JobControl) -> RunResult:
    """Return how a run ended for a process that never drove."""
    state = load_state(FileCommitLog(context.storages.readable, context.files))
    if state is None:
        raise DroppedError("asked to stop before there was a job", job=context.job)
    return RunResult(state, 0, 0, control.stop.is_set() and not state.ended)


class WarmSession:
    """Makes what a driver needs warm, again and again.

    Args:
        context: of the job.
        graph: of the job.
    """

    def __init__(self, context: JobContext, graph: JobGraph) -> None:
        self._context, self._graph = context, graph
        self._places: dict[int, str] = {}
        self._slots: list[SlotRDD] = []

    def __call__(self) -> bool:
        """Do so; returns whether all is ready: without executors it is not."""
        context, name = self._context, self._graph.name
        slots_only = not dataframe_inputs(self._graph)
        spark = job_context(context.settings, name, context.storage, slots_only=slots_only)
        parts = [name]
        with suppress(HeadraceError):  # the run says what is wrong
            bus = bounded_bus(self._graph, context)
            planned = split_parts(make_plan(self._graph, bus, context.settings))
            parts = [one.job for one in planned]
        try:
            return self._warm(spark, parts)
        except SPARK_ERRORS:  # an executor has gone; the next time finds what there is
            return False

    def _warm(self, spark: SparkContext, parts: Sequence[str]) -> bool:
        context, settings = self._context, self._context.settings
        found = executors(spark)
        if not found:
            return False
        spread_out = [
            spread(spark, found, settings.job.slots, (at, len(parts))) for at in range(len(parts))
        ]
        places = {
            at * MOST_SLOTS + number: executor
            for at, own in enumerate(spread_out)
            for number, executor in enumerate(own)
        }
        locations = {number: executor.location for number, executor in places.items()}
        if locations != self._places:
            known = worker_settings(context.job, context.storage, settings)
            described = {
                number: (replace(known, slot=number), [location])
                for number, location in locations.items()
            }
            self._slots = [SlotRDD(spark, described, warm_main)]
            self._places = locations
        spark.setJobGroup(f"headrace {context.job} standby", f"{context.job}: kept warm")
        self._slots[0].run(list(locations))
        return True
