"""What it takes to drive a job from this process, the same whether it is shared or not."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.watched import Watched
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Course, Listeners, RunResult
from headrace.coordinator.running.tenure import keeping
from headrace.files import Files
from headrace.graph.jobs import Job
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
        return GroupEngine(group, self.course(control or self.control))

    def course(self, control: Control) -> Course:
        """Return the course of a run that is stopped by this control."""
        return Course(self.bus, self.settings, control, self.clock, self.files, self.listeners)

    def run(self, engine: GroupEngine, *, is_alone: bool) -> RunResult:
        """Drive the job, whose lock this process holds, until it ends, stops or fails.

        Args:
            engine: runs the slots.
            is_alone: the job is not shared: nobody else keeps its lease.

        Raises:
            HeadraceError: as of the course.
        """
        course = engine.course
        # What is asked of the driver is asked of the process: one that stops leaves a shared job.
        watched = Watched(
            self.job.name, self.settings, self.control, self.bus, self.clock, course.listeners
        )
        with closing(watched):
            course = replace(course, listeners=watched.listeners)
            deployed = course.deployed(self.job)
            kept: AbstractContextManager[None] = nullcontext()
            if is_alone:
                name, control = self.job.name, course.control
                kept = keeping(self.settings, name, control, self.clock, self.files)
            with kept:
                return course.run(deployed, replace(engine, course=course))
