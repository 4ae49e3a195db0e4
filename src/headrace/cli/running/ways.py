"""Where ``headrace run`` runs a job: on Spark, or in this process."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.loop import Control
    from headrace.coordinator.running.course import Listeners, RunResult
    from headrace.graph.jobs import Job


@dataclass(frozen=True)
class Way:
    """Where a job runs.

    Args:
        standalone: in this process; else on Spark.
        join: there, with others that share it.
        takeover: fence the driver that runs it.
    """

    standalone: bool = False
    join: bool = False
    takeover: bool = False

    @classmethod
    def of(
        cls,
        *,
        standalone: bool,
        join: bool,
        master: str | None,
        loop: str | None,
        takeover: bool = False,
    ) -> Way:
        """Read the options of a command.

        Raises:
            InvalidInputError: they contradict each other.
        """
        from headrace.errors import InvalidInputError

        way = cls(standalone or join, join, takeover)
        given = "--master" if master is not None else "--loop" if loop is not None else ""
        if way.standalone and given:
            own = "--join" if join else "--standalone"
            raise InvalidInputError(
                f"{own} runs the job without Spark, and {given} is about Spark; leave one out"
            )
        if way.standalone and takeover:
            raise InvalidInputError(
                "--takeover is for jobs on Spark: processes that share a job elect their driver by "
                "themselves; leave it out, and use --join"
            )
        return way

    def run(
        self,
        job: Job,
        settings: Settings,
        bus: Bus,
        control: Control,
        listeners: Listeners,
        clock: Clock,
        on_role: Callable[[bool], None],
    ) -> RunResult:
        """Run a job to its end, with all that looks at its driver.

        Args:
            job: to run.
            settings: of the run.
            bus: inputs and outputs.
            control: what stops and finishes it.
            listeners: who is told.
            clock: where time comes from.
            on_role: called with whether this process drives, where that changes.
        """
        if self.standalone:
            from headrace.coordinator.running.interrupts import interrupts
            from headrace.standalone.running import Running

            with interrupts(control):
                return Running(
                    job,
                    settings,
                    join=self.join,
                    bus=bus,
                    control=control,
                    listeners=listeners,
                    on_role=on_role,
                ).wait()
        from headrace.control.watched import Watched
        from headrace.spark.run import run_job

        with closing(Watched(job.name, settings, control, bus, clock, listeners)) as watched:
            told = watched.listeners
            return run_job(
                job,
                settings,
                bus=bus,
                control=control,
                on_parts=told.on_parts,
                on_epoch=told.on_epoch,
                on_notice=told.on_notice,
                on_recovery=told.on_recovery,
                takes_over=self.takeover,
            )
