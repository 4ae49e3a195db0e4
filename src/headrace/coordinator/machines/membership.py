"""Which hosts a job has: who is there, who is waited for, who is given up, who is to be empty.

Slots are asked where they are whenever they may have changed. With strict affinity, as long as a
host is missing that tasks live on, or has fewer slots than it had, nothing is placed: it is waited
for, up to a bound. Then, and without strict affinity at once, tasks are placed over the slots that
answered. A host that comes back after that has returned; what it gets is up to ``balance``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.coordinator.placement import Affinity, PlacementRules, Slot
from headrace.errors import InternalError


@dataclass(frozen=True)
class Ask:
    """Ask all slots where they are; they let go of their stores."""


@dataclass(frozen=True)
class AskAgain:
    """Wait for a moment and ask again, for these hosts are missing; until ``until_s`` at most."""

    hosts: tuple[str, ...]
    until_s: float


@dataclass(frozen=True)
class Place:
    """Place tasks over these slots.

    ``lost`` are hosts that were given up for it, ``returned`` those that had been, and ``joined``
    hosts that are new.
    """

    slots: tuple[Slot, ...]
    lost: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()


Action = Ask | AskAgain | Place


@dataclass(frozen=True)
class Doubted:
    """Slots may have changed: an epoch found one misplaced, or a driver begins.

    ``homes`` are the hosts that tasks live on by the manifest; those that are missing now have been
    since ``now_s`` of the monotonic clock.
    """

    homes: frozenset[str]
    now_s: float


@dataclass(frozen=True)
class Answered:
    """These slots answered; ``now_s`` of the monotonic clock."""

    slots: tuple[Slot, ...]
    now_s: float


Event = Doubted | Answered


class Missed(NamedTuple):
    """A host that is waited for: so many slots of it are left, and since when."""

    slots: int
    since_s: float


@dataclass(frozen=True)
class Membership:
    """The hosts of a job, as far as its driver knows.

    Args:
        rules: of placement.
        homes: hosts that tasks live on.
        slots: over which tasks are placed; none before the first answer.
        wanted: how many slots each host is to have before tasks are placed.
        doubted_s: since when slots may have changed, of the monotonic clock.
        missed: hosts that are waited for.
        given_up: hosts that were waited for, or not, in vain.
        action: what is to be done now.
    """

    rules: PlacementRules
    homes: frozenset[str] = frozenset()
    slots: tuple[Slot, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)
    doubted_s: float = 0.0
    missed: Mapping[str, Missed] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    action: Action = field(default_factory=Ask)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that tasks are placed on."""
        return tuple(sorted({slot.host for slot in self.slots}))

    def after(self, event: Event) -> Membership:
        """Return the membership after an event; its action is what is to be done now."""
        match event:
            case Doubted(homes, now_s):
                wanted = dict.fromkeys(homes, 1) | count_slots(self.slots)
                begun = replace(self, homes=homes, wanted=wanted, doubted_s=now_s)
                return replace(begun, missed={}, action=Ask())
            case Answered(slots, now_s):
                return self._answered(slots, now_s)

    def _answered(self, slots: Sequence[Slot], now_s: float) -> Membership:
        there = count_slots(slots)
        missed = {
            host: self._missed(host, there.get(host, 0), now_s)
            for host, count in self.wanted.items()
            if there.get(host, 0) < count and host not in self.given_up
        }
        until = {host: one.since_s + self._wait_s for host, one in missed.items()}
        if late := {host: at for host, at in until.items() if at > now_s}:
            action = AskAgain(tuple(sorted(late)), max(late.values()))
            return replace(self, missed=missed, action=action)
        return self._placed(tuple(slots), there)

    def _missed(self, host: str, slots: int, now_s: float) -> Missed:
        held = self.missed.get(host)
        if held is None:
            return Missed(slots, now_s if self.missed else self.doubted_s)
        return Missed(slots, now_s) if slots < held.slots else held

    @property
    def _wait_s(self) -> float:
        return self.rules.wait_s if self.rules.affinity is Affinity.STRICT else 0.0

    def _placed(self, slots: tuple[Slot, ...], there: Mapping[str, int]) -> Membership:
        before = count_slots(self.slots)
        known = {*self.homes, *before}
        lost = sorted(known - set(there) - self.given_up)
        returned = sorted(self.given_up & set(there))
        joined = sorted(set(there) - known - self.given_up)
        return replace(
            self,
            slots=slots,
            wanted=dict(there),
            missed={},
            given_up=(self.given_up | set(lost)) - set(there),
            action=Place(slots, tuple(lost), tuple(returned), tuple(joined)),
        )

    def validate(self) -> None:
        """Make sure that a membership is one that can be.

        Raises:
            InternalError: it is not.
        """
        there = {slot.host for slot in self.slots}
        waits = isinstance(self.action, AskAgain)
        wrong = {
            "two slots of one number": len({s.number for s in self.slots}) != len(self.slots),
            "a host that is there and given up": bool(there & self.given_up)
            and isinstance(self.action, Place),
            "a host that is waited for and given up": bool(set(self.missed) & self.given_up),
            "waits for nobody": waits and not self.missed,
            "waits although it is not strict": waits and self._wait_s <= 0,
            "waits for nobody, but missed some": bool(self.missed) and not waits,
            "places over no slots": isinstance(self.action, Place) and not self.slots,
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise InternalError(f"the hosts of a job: {found[0]}: {self}")


def count_slots(slots: Collection[Slot]) -> dict[str, int]:
    """Return how many slots each host has."""
    return dict(Counter(slot.host for slot in slots))
