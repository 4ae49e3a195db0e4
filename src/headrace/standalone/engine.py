"""Runs the parts of a job on the slots of a group of processes, by the direct loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deploy import Deployment
from headrace.coordinator.loop import drive
from headrace.coordinator.patience import Patience
from headrace.coordinator.running.course import Course, OnEpoch
from headrace.errors import HeadraceError
from headrace.standalone.group import Group
from headrace.standalone.runner import GroupRunner


@dataclass(frozen=True)
class GroupEngine:
    """Runs the slots of a job in the processes of a group.

    Args:
        group: of this process and those that have joined.
        course: of the run.
    """

    group: Group
    course: Course
    _runners: list[GroupRunner] = field(default_factory=list)

    def runner(self, one: Deployment, share: tuple[int, int]) -> GroupRunner:
        """Return the runner of a part."""
        made = GroupRunner(self.group, one.plan.job, share)
        self._runners.append(made)
        return made

    def fail(self, error: HeadraceError) -> None:
        """Drop the epochs that are running, from any thread; what drives them gets the error."""
        for runner in self._runners:
            runner.fail(error)

    def drive(self, part: Coordinator, on_epoch: OnEpoch, patience: Patience) -> None:
        """Advance a started part until it has ended or is told to stop."""
        course, epoch = self.course, self.course.settings.epoch
        drive(
            part,
            course.bus,
            course.clock,
            course.control,
            on_epoch,
            interval_ms=epoch.interval_ms,
            tick_ms=epoch.tick_ms,
            patience=patience,
        )
