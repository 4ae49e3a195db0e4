"""What it takes to drive a job from this process, the same whether it is shared or not."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.watched import Watched
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Course, Listeners, RunResult
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.jobs import Job
from headrace.graph.operators import Input
from headrace.standalone.engine import GroupEngine
from headrace.standalone.group import Group


@dataclass(frozen=True)
class Driving:
    """What a process needs to drive a job.

    Args:
        job: made by ``headrace.job``.
        settings: of this process.
        bus: inputs and outputs.
        control: what stops and finishes the run.
        listeners: who is told.
        clock: where time comes from.
        files: the file system.
    """

    job: Job
    settings: Settings
    bus: Bus
    control: Control
    listeners: Listeners
    clock: Clock
    files: Files

    def engine(self, group: Group, control: Control | None = None) -> GroupEngine:
        """Return what runs the job's slots on a group.

        Args:
            group: of processes.
            control: another one than that of the run.
        """
        control = control or self.control
        course = Course(self.bus, self.settings, control, self.clock, self.files, self.listeners)
        return GroupEngine(group, course)

    def run(self, engine: GroupEngine) -> RunResult:
        """Drive the job, whose lock this process holds, until it ends, stops or fails.

        Raises:
            InvalidInputError: the job reads DataFrames; or as of the course.
        """
        self._refuse_frames()
        course = engine.course
        watched = Watched(
            self.job.name, self.settings, course.control, self.bus, self.clock, course.listeners
        )
        with closing(watched):
            course = replace(course, listeners=watched.listeners)
            return course.run(course.deployed(self.job), replace(engine, course=course))

    def _refuse_frames(self) -> None:
        for one in self.job.build().operators:
            if isinstance(one, Input) and one.frame is not None:
                raise InvalidInputError(
                    f"input {one.name!r} of job {self.job.name!r} is a Spark DataFrame, and this "
                    "run has no Spark; run the job on Spark: headrace run MODULE:JOB",
                    operator=one.name,
                )
