"""The seam of a driver at which a mode of its job hooks in, such as the backup of its storage.

A ``JobHook`` is one mode, in a file of its own. Who drives a job, or changes one that is stopped,
calls the hooks at the steps below and knows nothing else of modes; most jobs have no hook.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.bus.spec import Fence
    from headrace.coordinator.epoch import EpochRun
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.manifest import JobState
    from headrace.plan.stages import JobPlan


class JobHook:
    """What a mode does at the steps of a driver; by itself nothing.

    1. ``before_generation``, ``begin``, ``create_streams``, ``begun``: a driver starts.
    2. ``has_read_all``, ``planned``: it plans an epoch. 3. ``check``: it is about to commit.
    4. ``observe``: it has committed. 5. ``publishing``: it publishes the outputs. 6. ``pinned``,
    ``swept``: it sweeps. 7. ``summed_up``: it reports the epoch. ``running`` is around the whole
    run, and ``sent_ends`` answers a savepoint. A job that is changed while it is stopped has
    ``before_generation``, ``begin``, ``check`` and ``finish``.
    """

    @property
    def storage_host(self) -> str:
        """Identity of the host on whose disk the job's storage is; empty: all hosts reach it."""
        return ""

    def before_generation(self) -> int:
        """Make sure that this host may drive the job; returns the generation to go above.

        Raises:
            NotOwnerError: a driver of another host is alive.
        """
        return 0

    def begin(self, generation: int) -> None:
        """Take in which generation the driver has, before it reads the manifests."""

    def create_streams(self, plan: JobPlan, fence: Fence) -> None:
        """Make streams that the mode needs, unless they are there.

        Raises:
            PartsError: one holds rows with other columns.
            NotOwnerError: a newer generation than that of the fence has begun.
        """

    def begun(self, end_inputs: Callable[[], None]) -> None:
        """Take in that a driver is about to plan its first epoch.

        Args:
            end_inputs: lets the run end where its inputs end now, unless it has an end.
        """

    def has_read_all(self, plan: JobPlan, state: JobState) -> bool:
        """Say whether a run that has read its inputs has read all that the mode brings, too."""
        del plan, state
        return True

    def planned(self, run: EpochRun) -> EpochRun:
        """Return an epoch that is planned, with what the mode reads in it."""
        return run

    def check(self) -> None:
        """Make sure that nobody has taken over, as far as the mode knows.

        Raises:
            NotOwnerError: somebody has; stop.
        """

    def observe(self, state: JobState) -> None:
        """Take a committed epoch, before files that it no longer names are swept."""

    def publishing(
        self, state: JobState, plan: JobPlan, fence: Fence
    ) -> AbstractContextManager[set[str]]:
        """Publish what the mode adds to the outputs of an epoch, which a block publishes.

        Yields:
            Streams whose rows do not leave the job.
        """
        del state, plan, fence
        return nullcontext(set())

    def pinned(self) -> set[str]:
        """Return the files that no sweep may remove, although no epoch may name them any more."""
        return set()

    def swept(self, state: JobState, plan: JobPlan, fence: Fence) -> None:
        """Release what the state no longer needs; now and then, if no later epoch is committed.

        Raises:
            NotOwnerError: a newer generation than that of the fence has begun.
        """

    def sent_ends(self, plan: JobPlan) -> dict[str, list[int]]:
        """Return where streams end that the mode sends to, once all outputs are published."""
        del plan
        return {}

    def summed_up(self, summary: EpochSummary) -> EpochSummary:
        """Return what is reported of an epoch, with what the mode has to say."""
        return summary

    def finish(self, state: JobState) -> None:
        """Take the last state of a job that was changed while it was stopped."""

    def running(
        self, has_ended: Callable[[], bool], notify: Callable[[str], None], *, takes_over: bool
    ) -> AbstractContextManager[None]:
        """Work beside the epochs of a run for a block.

        Args:
            has_ended: says at the end of the block whether the run has read all of its inputs.
            notify: takes a line when something is wrong although the job continues.
            takes_over: drive the job although another host has its lease.
        """
        del has_ended, notify, takes_over
        return nullcontext()
