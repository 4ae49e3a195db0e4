"""Runs the levels of one part on the slots of all processes that share a job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.placement import Slot
from headrace.coordinator.running.dropping import DroppedError
from headrace.errors import HeadraceError, UnavailableError
from headrace.standalone.group import Group, MemberLostError
from headrace.standalone.membership import Member
from headrace.standalone.slots import SlotDiedError
from headrace.task.orders import SlotOrder, SlotReport

TRIES = 4
LOOK_S = 0.2


class Place(NamedTuple):
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

    def __init__(self, group: Group, job: str, share: tuple[int, int]) -> None:
        self._group, self._job, self._share = group, job, share
        self._places: dict[int, Place] = {}
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
            Place(member.number, slot)
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
            raise DroppedError("the epoch was dropped: the job was told to stop")

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
