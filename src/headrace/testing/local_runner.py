"""Runs slots in this thread, one after the other: Spark's place in tests.

Each slot has a process of its own to lose: ``kill`` drops what it keeps in memory. A host
is a state directory that several slots may share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.placement import Slot
from headrace.errors import UnavailableError
from headrace.task.orders import SlotOrder, SlotReport
from headrace.task.slot import run_slot
from headrace.task.slot_host import SlotHost, release


class SlotCrash(BaseException):  # not an Exception: nothing may catch it but the runner
    """Raised by a fault hook: the process that runs a slot dies here."""


class LocalRunner:
    """Slots as objects.

    Args:
        open_slot: makes the process of a slot, by number.
        slots: how many there are.
        tries: how often a slot is run again when its process dies.
    """

    def __init__(self, open_slot: Callable[[int], SlotHost], slots: int, tries: int = 4) -> None:
        self._open, self._count, self._tries = open_slot, slots, tries
        self._hosts: dict[int, SlotHost] = {}
        self.history: list[SlotOrder] = []
        self.down: set[int] = set()
        self._known: list[int] = []
        self.doubled: Literal["first", "last"] | None = None

    def host(self, slot: int) -> SlotHost:
        """Return the process of a slot, starting it when it is dead."""
        if slot not in self._hosts:
            self._hosts[slot] = self._open(slot)
        return self._hosts[slot]

    def slots(self) -> list[Slot]:
        """Return every slot with the identity of its host; each lets go of its stores."""
        hosts = {number: self.host(number) for number in self._answering()}
        for host in hosts.values():
            release(host)
        self._known = list(hosts)
        return [Slot(number, host.host, host.state_dir.name) for number, host in hosts.items()]

    def _answering(self) -> list[int]:
        return [number for number in range(self._count) if number not in self.down]

    def has_changed(self) -> bool:
        """Say whether slots have gone or come back."""
        return self._answering() != self._known

    def run(self, orders: list[SlotOrder]) -> list[SlotReport]:
        """Run the orders one by one; a slot whose process dies is run again.

        Slots in
        ``down`` do not answer: their host is lost. With ``doubled`` two attempts of each order
        answer, and that report is returned.
        """
        if self.has_changed():
            raise MisplacedError(f"slots have changed: {len(self._known)} were known")
        if self.doubled is None:
            return [self.run_one(order) for order in orders]
        both = [(self.run_one(order), self.run_one(order)) for order in orders]
        return [pair[0 if self.doubled == "first" else 1] for pair in both]

    def run_one(self, order: SlotOrder) -> SlotReport:
        """Run one order until an attempt answers."""
        self.history.append(order)
        for _ in range(self._tries):
            try:
                report = run_slot(order, self.host(order.slot))
            except SlotCrash:
                self.kill(order.slot)
                continue
            if order.renew:
                self.kill(order.slot)
            return report
        raise UnavailableError(f"slot {order.slot} died {self._tries} times", slot=order.slot)

    def kill(self, slot: int) -> None:
        """End a slot's process: its memory goes, its disk stays."""
        host = self._hosts.pop(slot, None)
        if host is not None:
            for kept in host.runtimes.values():
                kept.task.hang_up()
            host.loop.close()
            host.registry.close_all()
            host.standbys.close()

    def kill_all(self, slots: Sequence[int] | None = None) -> None:
        """End several processes, all when none are named."""
        for slot in list(self._hosts) if slots is None else slots:
            self.kill(slot)
