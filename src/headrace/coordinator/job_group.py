"""The parts of one job as one: driven at the same time, and reported together.

One thread each. A part has slots of its own, so an epoch that takes long holds up no other
part's. Only where there are fewer cores than parts do these take turns, task by task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.bus import Bus
from headrace.coordinator.commands import CommandQueue
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.driver_loop import DroppedError, JobControl
from headrace.coordinator.job_parts import group_state
from headrace.coordinator.manifest import JobState
from headrace.coordinator.rescale import wanted_counts
from headrace.errors import UnavailableError
from headrace.plan.stages import JobPlan


class JobGroup:
    """What the drivers of several parts say together.

    From any thread; each part continues by itself.

    Args:
        parts: senders first; those that have not begun are left out.
    """

    def __init__(self, parts: Sequence[Coordinator]) -> None:
        self._parts = tuple(part for part in parts if part.has_state) or tuple(parts)

    @property
    def state(self) -> JobState:
        """The state of the first part, with inputs, tasks and counts of all."""
        return group_state(self.states)

    @property
    def bus(self) -> Bus:
        """The streams of all parts."""
        return self._parts[0].bus

    @property
    def states(self) -> list[JobState]:
        """The state of each part, senders first."""
        return [part.state for part in self._parts]

    @property
    def plans(self) -> list[JobPlan]:
        """The plan of each part, senders first."""
        return [part.plan for part in self._parts]

    @property
    def standbys_wanted(self) -> dict[str, int]:
        """How many standbys each task of a stage is to have, of stages whose tasks are to."""
        return {name: one for part in self._parts for name, one in part.standbys_wanted.items()}

    def input_streams(self) -> dict[str, str]:
        """Return the stream of each input operator, and of what goes from part to part."""
        return {name: one for part in self._parts for name, one in part.input_streams().items()}

    def ends(self) -> dict[str, list[int]]:
        """Return the next offset of each partition of each of these streams."""
        return {name: ends for part in self._parts for name, ends in part.ends().items()}

    def lags(self) -> dict[str, int]:
        """Return how many rows lie before each part now, by the job of its state."""
        return {part.state.job: sum(part.lags().values()) for part in self._parts}

    def partition_lags(self) -> dict[tuple[str, int], int]:
        """Return how many rows lie before each partition of each input now."""
        return {where: lag for part in self._parts for where, lag in part.lags().items()}

    def commands(self, job: str) -> CommandQueue:
        """Return the queue of the part whose state has this job.

        Raises:
            UnavailableError: no part has, as where the job had more parts once.
        """
        for part in self._parts:
            if part.state.job == job:
                return part.commands
        raise UnavailableError(f"the driver does not run part {job!r} of the job")

    def wake(self) -> None:
        """Let all parts look at what was asked of them."""
        for part in self._parts:
            part.commands.wake()

    def rescale(self, tasks: int) -> None:
        """Give each keyed stage of all parts so many tasks; call where no epoch is under way.

        Raises:
            InvalidInputError: there is none, or it cannot have so many; nothing has changed.
            NotOwnerError: a newer driver has taken over; stop.
        """
        wanted_counts(self.state, tasks)
        for part in self._parts:
            if part.state.task_counts:
                part.rescale(tasks)


def drive_parts(
    parts: Sequence[Coordinator], drive: Callable[[Coordinator], None], control: JobControl
) -> None:
    """Drive each part until it has ended or the job is asked to stop; one in this thread.

    A part that fails stops the others, which end their epochs. One of several that is done
    refuses commands.

    Args:
        parts: started.
        drive: drives one part; called in a thread for each of several.
        control: is asked to stop when a part fails.

    Raises:
        BaseException: what a part failed with, the first where several did.
    """
    if len(parts) == 1:
        drive(parts[0])
        return
    failed: list[BaseException] = []

    def run(part: Coordinator) -> None:
        try:
            drive(part)
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failed.append(error)
            control.stop.set()
        finally:
            part.commands.close()  # nobody answers any more, however long the others take

    threads = [
        threading.Thread(target=run, args=(part,), name=f"headrace {part.state.job}")
        for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        # What was dropped because of a failure elsewhere is not what went wrong.
        raise next((e for e in failed if not isinstance(e, DroppedError)), failed[0])
