"""What the slots of an epoch report beside what is committed: metrics for people, and failures.

A failed slot's answer becomes an error of its kind, with the worker's traceback as its note.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import HeadraceError, InternalError, UnavailableError
from headrace.runtime.orders import HotKeys, SlotReport


def slot_error(report: SlotReport) -> HeadraceError:
    """Return a failed slot's error as an error of its kind, the worker's traceback as its note.

    An error of the system, such as a full disk, is ``UnavailableError``; any other that is
    not of Headrace is a fault of Headrace, for errors of the user's functions have a kind.
    """
    failure, slot = report.error, report.slot
    if failure is None:
        raise InternalError(f"slot {slot} did not fail", slot=slot)
    known = {kind.__name__: kind for kind in _kinds(HeadraceError)}
    error: HeadraceError
    if failure.kind in known:
        kind = known[failure.kind]
        error = kind.__new__(kind)
        HeadraceError.__init__(error, failure.message, **failure.fields)
    else:
        outside = getattr(builtins, failure.kind, None)
        is_system = isinstance(outside, type) and issubclass(outside, OSError)
        made = UnavailableError if is_system else InternalError
        error = made(f"slot {slot} failed: {failure.kind}: {failure.message}", slot=slot)
    error.add_note(f"in the worker:\n{failure.trace}")
    return error


def _kinds(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)


class SlotMetrics(NamedTuple):
    """One slot in one level: where it ran, how many tasks, and what its steps took, ms."""

    level: int
    slot: int
    host: str
    process: int
    tasks: int
    steps_ms: dict[str, float]


@dataclass
class EpochMetrics:
    """What the reports of one epoch say; slots that ran twice count once.

    Bytes of stores and hot keys are by the name of the task; of tasks that did not run there is
    nothing.
    """

    slots: list[SlotMetrics] = field(default_factory=list)
    stores: dict[str, dict[str, int]] = field(default_factory=dict)
    hot_keys: dict[str, list[HotKeys]] = field(default_factory=dict)

    def timings_ms(self) -> dict[str, float]:
        """Return what each step took, all slots together, ms."""
        total: dict[str, float] = {}
        for slot in self.slots:
            for step, took_ms in slot.steps_ms.items():
                total[step] = total.get(step, 0.0) + took_ms
        return total
