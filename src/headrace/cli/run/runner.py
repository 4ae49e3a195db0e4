"""Where ``headrace run`` runs a job, and with how many tasks and executors.

A job runs on Spark, or in this process, alone or shared with others. A run over old data can
have more tasks and executors until it has caught up; a warning says if its lag does not shrink.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.driver_loop import JobControl
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.job_group import JobGroup
    from headrace.coordinator.job_run import RunListeners, RunResult
    from headrace.graph.builder import Job


@dataclass(frozen=True)
class JobRunner:
    """Where a job runs.

    Args:
        standalone: in this process; else on Spark.
        join: there, with others that share it.
        takeover: fence the driver that runs it.
        standby: wait, with a warm session, until nobody drives it.
    """

    standalone: bool = False
    join: bool = False
    takeover: bool = False
    standby: bool = False

    @classmethod
    def of(
        cls,
        *,
        standalone: bool,
        join: bool,
        master: str | None,
        loop: str | None,
        takeover: bool = False,
        standby: bool = False,
    ) -> JobRunner:
        """Read the options of a command.

        Raises:
            InvalidInputError: they contradict each other.
        """
        from headrace.errors import InvalidInputError

        way = cls(standalone or join, join, takeover, standby)
        given = "--master" if master is not None else "--loop" if loop is not None else ""
        if way.standalone and given:
            own = "--join" if join else "--standalone"
            raise InvalidInputError(
                f"{own} runs the job without Spark, and {given} is about Spark; leave one out"
            )
        of_spark = "--takeover" if takeover else "--standby" if standby else ""
        if way.standalone and of_spark:
            raise InvalidInputError(
                f"{of_spark} is for jobs on Spark: processes that share a job elect their driver "
                "by themselves; leave it out, and use --join"
            )
        if takeover and standby:
            raise InvalidInputError(
                "--takeover fences the driver now, and --standby waits until it is gone; leave one "
                "out"
            )
        return way

    def run(
        self,
        job: Job,
        settings: Settings,
        bus: Bus,
        control: JobControl,
        listeners: RunListeners,
        clock: Clock,
        on_role: Callable[[bool], None],
    ) -> RunResult:
        """Run a job to its end, with all that looks at its driver.

        Args:
            job: to run.
            settings: of the run.
            bus: inputs and outputs.
            control: stops and finishes it.
            listeners: of the run.
            clock: where time comes from.
            on_role: called with whether this process drives, where that changes.
        """
        if self.standalone:
            from headrace.coordinator.driver_loop import stop_on_signals
            from headrace.standalone.running import Running

            with stop_on_signals(control):
                return Running(
                    job,
                    settings,
                    join=self.join,
                    bus=bus,
                    control=control,
                    listeners=listeners,
                    on_role=on_role,
                ).wait()
        from headrace import extras

        extras.load("pyspark", "a run on Spark", "run without Spark: --standalone")
        from headrace.control.driver_watch import DriverObservers
        from headrace.spark.run import run_job
        from headrace.spark.standby import run_standby

        with closing(
            DriverObservers(job.name, settings, control, bus, clock, listeners)
        ) as watched:
            observed = watched.listeners
            if self.standby:
                return run_standby(job, settings, bus, control, observed, clock)
            return run_job(
                job,
                settings,
                bus=bus,
                control=control,
                takes_over=self.takeover,
                clock=clock,
                **vars(observed),
            )


WINDOW_S = 30.0
"""So long a job may come no closer: inputs come in bursts, and epochs take their time."""

REPEAT_S = 300.0


@dataclass
class CatchUpMonitor:
    """Written by the driver's thread.

    Args:
        rate: rows a second that the job may read; ``None``: as many as it can.
    """

    rate: int | None = None
    _marks: deque[tuple[float, int, int]] = field(default_factory=deque)
    _rows: int = 0
    _noted_at: float | None = None

    def note(self, now: float, rows: int, lags: list[int]) -> str | None:
        """Take an epoch; returns what to report where the job comes no closer.

        Args:
            now: of the monotonic clock, s.
            rows: of the job's inputs that the epoch has read.
            lags: rows that lie before each part of the job.
        """
        self._rows += rows
        self._marks.append((now, self._rows, sum(lags)))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        (began, rows_then, lag_then), lag = self._marks[0], sum(lags)
        seconds = now - began
        if seconds < WINDOW_S or lag < lag_then or not lag:
            return None
        if self._noted_at is not None and now - self._noted_at < REPEAT_S:
            return None
        self._noted_at = now
        reads = (self._rows - rows_then) / seconds
        comes = reads + (lag - lag_then) / seconds
        return self._words(reads, comes if len(lags) == 1 else None, lag)

    def _words(self, reads: float, comes: float | None, lag: int) -> str:
        came = "" if comes is None else f", and {comes:,.0f} a second come in"
        if self.rate is None or (comes is not None and comes < self.rate):
            limit, move = "", "more tasks, executors or cores (--tasks, --executors, --cores)"
        else:
            limit = f" (at most {self.rate:,}, by --rate)"
            above = "" if comes is None else f" above {comes:,.0f}"
            move = f"a --rate{above} that leaves it room, or none"
        return (
            "the job never catches up at this pace: it reads "
            f"{reads:,.0f} rows a second{limit}{came}; {lag:,} lie before it. Stop it, and give "
            f"the same command with {move}; it continues from where it is"
        )


@dataclass
class Scaling:
    """Scales a run out before its first epoch, and may end it when it has caught up.

    Args:
        tasks: of each keyed stage; ``None``: as the job has.
        ends: stop as soon as the epochs of all parts have read what was there when they began.
        rate: rows a second that it may read until then; ``None``: as many as it can.
    """

    tasks: int | None = None
    ends: bool = False
    rate: int | None = None
    has_caught_up: bool = False
    _lags: dict[str, int] = field(default_factory=dict)
    _parts: JobGroup | None = None
    _pursuit: CatchUpMonitor = field(init=False)

    def __post_init__(self) -> None:
        """Begin to look whether it comes closer."""
        self._pursuit = CatchUpMonitor(self.rate)

    def begin(self, parts: JobGroup, control: JobControl) -> str | None:
        """Take a job that has begun, and has run no epoch yet; return what was done to it.

        Raises:
            InvalidInputError: it has no keyed stage, or cannot have so many tasks.
        """
        state, notice = parts.state, None
        if state.ended:
            return None
        if self.tasks is not None and set(state.task_counts.values()) != {self.tasks}:
            parts.rescale(self.tasks)
            before = ", ".join(f"{name} {count}" for name, count in state.task_counts.items())
            notice = f"{state.job}: {self.tasks} tasks for each keyed stage (else {before})"
        self._parts, self._lags = parts, parts.lags()
        self._look(control)
        return notice

    def observe(self, summary: EpochSummary, control: JobControl, now: float) -> str | None:
        """Take an epoch that is done; returns what to report where it never catches up.

        Args:
            summary: of the epoch.
            control: of the run.
            now: of the monotonic clock, s.
        """
        self._lags[summary.job] = summary.lag
        if self.ends and self._parts is not None and len(self._lags) > 1:
            behind_now = self._parts.lags()  # what this part sent, those behind it have yet to read
            names = list(behind_now)
            behind = names[names.index(summary.job) + 1 :]
            self._lags.update({name: behind_now[name] for name in behind})
        self._look(control)
        if not self.ends or self.has_caught_up:
            return None
        return self._pursuit.note(now, summary.rows, list(self._lags.values()))

    def _look(self, control: JobControl) -> None:
        if self.ends and not any(self._lags.values()) and not control.stop.is_set():
            self.has_caught_up = True
            control.stop.set()


def executor_sets(
    settings: Settings, way: JobRunner, executors: int | None, cores: int | None
) -> list[str]:
    """Return the settings under which a Spark application has executors of a number and size.

    Args:
        settings: of the run.
        way: where it runs.
        executors: how many; ``None``: as many as the settings and the cluster give.
        cores: of each; ``None``: as the settings say, else one.

    Raises:
        InvalidInputError: there are no executors.
    """
    from headrace.errors import InvalidInputError

    if executors is None and cores is None:
        return []
    where = "--standalone" if way.standalone else settings.spark.master
    if way.standalone or re.match(r"local(\[|$)", where):
        raise InvalidInputError(
            f"--executors and --cores are for a cluster, and {where} has no executors; name one "
            "with --master, or take more cores of this host, as with --master local[8]"
        )
    each = cores or int(settings.spark.conf.get("spark.executor.cores", "1"))
    conf = {"executor.cores": each}
    if executors is None:
        return _conf(conf)
    conf |= {"executor.instances": executors, "cores.max": executors * each}
    return [
        *_conf(conf),
        "spark.conf.spark.dynamicAllocation.enabled=false",
        f"job.slots={executors * each}",
    ]


def end_application(executors: Sequence[str]) -> None:
    """End the Spark application of this process, if it has executors that nobody needs now.

    Args:
        executors: its settings of ``executor_sets``; empty: it stays.
    """
    if executors:
        from headrace.spark.sessions import end_session

        end_session()


def _conf(values: dict[str, int]) -> list[str]:
    return [f"spark.conf.spark.{name}={value}" for name, value in values.items()]
