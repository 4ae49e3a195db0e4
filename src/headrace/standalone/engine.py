"""Runs the parts of a job on the slots of a group of processes, by the direct loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from headrace.control.driver_watch import DriverObservers
from headrace.coordinator.deployment import Deployment
from headrace.coordinator.driver_loop import DroppedError, JobControl
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.job_run import JobRun, RunListeners, RunResult
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.leadership import keep_own_job
from headrace.coordinator.placement import Slot
from headrace.errors import HeadraceError, UnavailableError
from headrace.graph.builder import Job
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.standalone.group import Member, MemberLostError, ProcessGroup
from headrace.standalone.slots import SlotDiedError

TRIES = 4
LOOK_S = 0.2


class SlotLocation(NamedTuple):
    """A slot: the process it is in, and its number there."""

    member: int
    slot: int


_Answers = queue.SimpleQueue[tuple[int, Future[SlotReport]] | None]


class GroupRunner:
    """The slots of one part of a job.

    Called by one thread at a time; ``cancel`` and ``fail`` from any.

    Args:
        group: the processes.
        job: name of the part.
        share: number of the part that they are for, and how many parts share them.
    """

    def __init__(self, group: ProcessGroup, job: str, share: tuple[int, int]) -> None:
        self._group, self._job, self._share = group, job, share
        self._places: dict[int, SlotLocation] = {}
        self._version = -1
        self._members: set[int] = set()
        self._failure: HeadraceError | None = None
        self._cancelled = threading.Event()
        self._woken: _Answers = queue.SimpleQueue()

    def slots(self) -> list[Slot]:
        """Ask every slot where it is, once those that are waited for are back or given up."""
        while True:
            self._version, members = self._group.settle(self._must_end)
            self._check_stop()
            self._number(members)
            self._group.uses(self._job, self._members)
            try:
                reports = self._answers(dict.fromkeys(self._places))
            except MemberLostError:
                continue
            names = {one.number: f"{one.machine}:{one.process}" for one in members}
            return [
                Slot(number, report.host, names[self._places[number].member])
                for number, report in sorted(reports.items())
            ]

    def _number(self, members: list[Member]) -> None:
        """Give each place a number; those that stay keep theirs."""
        part, parts = self._share
        wanted = [
            SlotLocation(member.number, slot)
            for member in members
            for slot in range(member.slots)[part::parts] or [part % member.slots]
        ]
        kept = {number: place for number, place in self._places.items() if place in wanted}
        left = [place for place in wanted if place not in kept.values()]
        free = (number for number in range(len(wanted) + len(kept)) if number not in kept)
        self._places = kept | dict(zip(free, left, strict=False))
        self._members = {member.number for member in members}

    def has_changed(self) -> bool:
        """Say whether a process has come, gone, or would like to go."""
        return self._group.version != self._version

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run the orders and return their reports.

        Raises:
            MisplacedError: a process has gone, or between epochs one has come or would like to go.
        """
        if self._group.version != self._version:
            here = {member.number for member in self._group.members}
            if orders[0].level == 0 or not self._members <= here:
                raise self._misplaced("the processes that share the job have changed")
        try:
            return list(self._answers({order.slot: order for order in orders}).values())
        except MemberLostError as error:
            raise self._misplaced(str(error)) from error

    def _misplaced(self, message: str) -> MisplacedError:
        error = MisplacedError(message)
        error.waited_s = self._group.waited_s(self._members)
        return error

    def _answers(self, wanted: Mapping[int, SlotOrder | None]) -> dict[int, SlotReport]:
        """Ask slots, and again one whose process dies; returns what each says."""
        self._check_stop()
        tries = dict.fromkeys(wanted, 1)
        answers: _Answers = queue.SimpleQueue()
        self._woken = answers
        for number, order in wanted.items():
            self._ask(number, order, answers)
        found: dict[int, SlotReport] = {}
        while len(found) < len(wanted):
            answered = self._next(answers)
            if answered is None:
                continue
            number, future = answered
            try:
                found[number] = future.result()
            except SlotDiedError as error:
                if tries[number] >= TRIES:
                    raise UnavailableError(
                        f"{error}, as {TRIES - 1} before it did; look at the memory that it may "
                        "take, and at what the job's code does in other languages",
                        slot=number,
                    ) from error
                tries[number] += 1
                self._ask(number, wanted[number], answers)
        return found

    def _next(self, answers: _Answers) -> tuple[int, Future[SlotReport]] | None:
        self._check_stop()
        try:
            return answers.get(timeout=LOOK_S)
        except queue.Empty:
            return None

    def _ask(self, number: int, order: SlotOrder | None, answers: _Answers) -> None:
        place = self._places[number]
        future = self._group.ask(place.member, self._job, place.slot, order)
        future.add_done_callback(partial(_put, answers, number))

    def _must_end(self) -> bool:
        return self._cancelled.is_set() or self._failure is not None

    def _check_stop(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._cancelled.is_set():
            raise DroppedError("the epoch was dropped: the job was asked to stop")

    def fail(self, error: HeadraceError) -> None:
        """Drop the level that is running, which then raises this error."""
        self._failure = error
        self._woken.put(None)

    def cancel(self) -> None:
        """Drop the level that is running, and run no other."""
        self._cancelled.set()
        self._woken.put(None)


def _put(answers: _Answers, number: int, future: Future[SlotReport]) -> None:
    answers.put((number, future))


@dataclass(frozen=True)
class GroupEngine:
    """Runs the slots of a job in the processes of a group.

    Args:
        group: of this process and those that have joined.
    """

    group: ProcessGroup
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


@dataclass(frozen=True)
class DriverContext:
    """What a process needs to drive a job.

    Args:
        job: made by ``headrace.job``.
        context: of the job in this process.
        control: what stops and finishes the run.
        listeners: of the run.
    """

    job: Job
    context: JobContext
    control: JobControl
    listeners: RunListeners

    def job_run(self, control: JobControl) -> JobRun:
        """Return a run that is stopped by this control."""
        return JobRun(self.context, control, self.listeners)

    def run(self, job_run: JobRun, engine: GroupEngine, *, is_alone: bool) -> RunResult:
        """Drive the job, whose lock this process holds, until it ends, stops or fails.

        Args:
            job_run: of this, with listeners of its own.
            engine: runs the slots.
            is_alone: the job is not shared: nobody else keeps its lease.

        Raises:
            HeadraceError: as of the run.
        """
        # What is asked of the driver is asked of the process: one that stops leaves a shared job.
        settings, bus, clock = self.context.settings, self.context.bus, self.context.clock
        watched = DriverObservers(
            self.context.job, settings, self.control, bus, clock, job_run.listeners
        )
        with closing(watched):
            job_run = replace(job_run, listeners=watched.listeners)
            deployed = job_run.deployed(self.job)
            kept: AbstractContextManager[None] = nullcontext()
            if is_alone:
                kept = keep_own_job(self.context, job_run.control)
            with kept:
                return job_run.run(deployed, engine)
