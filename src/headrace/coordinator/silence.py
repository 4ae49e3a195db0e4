"""Which hosts have fallen silent: a pure judge of what slots that take long say of themselves.

A host that hangs or is cut off closes no socket: whoever waits for its answer waits for ever.
So a slot that takes long says now and then that it lives, and one that does not is given up.
What is given up by mistake costs a move, never a result; and each mistake doubles the patience.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

START_S = 30.0
"""What a slot is given for its first answer: its process may have to start and load libraries."""

MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class _Heard:
    executor: str
    sign: str | None
    at: float


@dataclass
class Silence:
    """What the driver has heard of the slots of its executors.

    One thread calls. Times are monotonic seconds.

    Args:
        base_s: how long a slot may say nothing; doubled by each executor that proves to live.
    """

    base_s: float
    _doublings: int = 0
    _heard: dict[int, _Heard] = field(default_factory=dict)
    _answered: set[tuple[int, str]] = field(default_factory=set)
    _aside: dict[str, int] = field(default_factory=dict)
    _looked: float | None = None

    @property
    def limit_s(self) -> float:
        """How long a slot that has answered before may say nothing now."""
        return float(self.base_s * 2**self._doublings)

    @property
    def every_s(self) -> float:
        """How often to look, and how often a slot that takes long says that it lives."""
        return self.limit_s / 6

    @property
    def aside(self) -> Collection[str]:
        """The executors that are given up for now."""
        return self._aside.keys()

    def begin(self, now: float) -> None:
        """Begin with a level: nothing has been heard in it."""
        self._heard.clear()
        self._looked = now

    def answered(self, executors: Mapping[int, str]) -> None:
        """Note the slots that have answered, by number, and the executors that they ran on."""
        self._answered.update(executors.items())

    def renewed(self, slots: Collection[int]) -> None:
        """Note that slots get new processes, which are given time to start."""
        self._answered = {one for one in self._answered if one[0] not in slots}

    def look(
        self, now: float, running: Mapping[int, str], signs: Mapping[int, str], others: int
    ) -> dict[str, float]:
        """Return the executors that have been silent for too long, and for how long.

        Nobody is given up while no executor is left to go to. A look that comes late says that the
        driver itself was held up, and then nothing is known of the time since the last.

        Args:
            now: the time.
            running: by number, the executor of each slot that has not answered yet.
            signs: what those have last said that have said anything; a new sign differs.
            others: executors without a slot that runs.
        """
        looked = now if self._looked is None else self._looked
        is_late = now - looked > 3 * self.every_s
        self._looked = now
        silent: dict[str, float] = {}
        heard: dict[int, _Heard] = {}
        for slot, executor in running.items():
            before = self._heard.get(slot)
            sign = signs.get(slot)
            if before is None or before.executor != executor:
                before = _Heard(executor, sign, now if is_late or sign else looked)
            elif sign is not None and sign != before.sign:
                before = _Heard(executor, sign, now)
            elif is_late:
                before = _Heard(executor, sign, before.at + now - looked)
            heard[slot] = before
            is_known = sign is not None or (slot, executor) in self._answered
            limit = self.limit_s if is_known else max(self.limit_s, START_S)
            if now - before.at >= limit:
                silent[executor] = max(silent.get(executor, 0.0), now - before.at)
        self._heard = heard
        left = set(running.values()) - silent.keys()
        return silent if left or others else {}

    def give_up(self, ended: Mapping[str, int]) -> None:
        """Set executors aside, by how many tasks each had ended by then."""
        self._aside.update(ended)

    def review(self, ended: Mapping[str, int]) -> list[str]:
        """Take back what lives after all; returns those executors.

        Args:
            ended: how many tasks each executor has ended that Spark still has.
        """
        back = [name for name, then in self._aside.items() if ended.get(name, then) > then]
        self._aside = {
            name: then for name, then in self._aside.items() if name in ended and name not in back
        }
        if back:
            self._doublings = min(MOST_DOUBLINGS, self._doublings + 1)
        return back
