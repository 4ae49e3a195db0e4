"""What the slots of an epoch tell beside what is committed: for people, and in no manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.coordinator.planning import task_name
from headrace.task.orders import HotKeys, SlotOrder, SlotReport


class SlotSeen(NamedTuple):
    """One slot in one level: where it ran, how many tasks, and what its steps took, ms."""

    level: int
    slot: int
    host: str
    process: int
    tasks: int
    steps_ms: dict[str, float]


@dataclass
class Observed:
    """What the reports of one epoch tell; slots that ran twice are told of once.

    Bytes of stores and hot keys are by the name of the task; of tasks that did not run there is
    nothing.
    """

    slots: list[SlotSeen] = field(default_factory=list)
    stores: dict[str, dict[str, int]] = field(default_factory=dict)
    hot_keys: dict[str, list[HotKeys]] = field(default_factory=dict)

    def absorb(self, orders: Iterable[SlotOrder], reports: Iterable[SlotReport]) -> None:
        """Take the reports of a level."""
        levels = {order.slot: order.level for order in orders}
        for report in reports:
            where = (levels.get(report.slot, 0), report.slot, report.host, report.process)
            self.slots.append(SlotSeen(*where, len(report.tasks), report.timings_ms))
            for task in report.tasks:
                name = task_name(task.stage, task.task)
                if task.stores:
                    self.stores[name] = task.stores
                if task.hot_keys:
                    self.hot_keys[name] = task.hot_keys

    def timings_ms(self) -> dict[str, float]:
        """Return what each step took, all slots together, ms."""
        total: dict[str, float] = {}
        for slot in self.slots:
            for step, took_ms in slot.steps_ms.items():
                total[step] = total.get(step, 0.0) + took_ms
        return total
