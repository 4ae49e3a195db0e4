"""A run over old data with more tasks and executors than the job has otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.cli.running.pursuit import Pursuit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.running.ways import Way
    from headrace.config import Settings
    from headrace.coordinator.joined import JoinedParts
    from headrace.coordinator.loop import Control
    from headrace.coordinator.summary import EpochSummary


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
    _parts: JoinedParts | None = None
    _pursuit: Pursuit = field(init=False)

    def __post_init__(self) -> None:
        """Begin to look whether it comes closer."""
        self._pursuit = Pursuit(self.rate)

    def begin(self, parts: JoinedParts, control: Control) -> str | None:
        """Take a job that has begun, and has run no epoch yet; return what was done to it.

        Raises:
            InvalidInputError: it has no keyed stage, or cannot have so many tasks.
        """
        state, told = parts.state, None
        if state.ended:
            return None
        if self.tasks is not None and set(state.task_counts.values()) != {self.tasks}:
            parts.rescale(self.tasks)
            before = ", ".join(f"{name} {count}" for name, count in state.task_counts.items())
            told = f"{state.job}: {self.tasks} tasks for each keyed stage (else {before})"
        self._parts, self._lags = parts, parts.lags()
        self._look(control)
        return told

    def observe(self, summary: EpochSummary, control: Control, now: float) -> str | None:
        """Take an epoch that is done; returns what is to be told where it never catches up.

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

    def _look(self, control: Control) -> None:
        if self.ends and not any(self._lags.values()) and not control.stop.is_set():
            self.has_caught_up = True
            control.stop.set()


def executor_sets(
    settings: Settings, way: Way, executors: int | None, cores: int | None
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
