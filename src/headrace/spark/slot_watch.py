"""Watches a level while Spark runs it, and has it dropped when one of its executors is gone.

Spark itself would run the slots of a lost executor elsewhere, where their stores are not; and it
would wait for a frozen one. Either way the epoch has to be placed anew, the sooner the better.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext

from headrace.clock import Clock
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.silence import Silence
from headrace.spark.located import Executor, SlotRDD, course, executors, in_driver
from headrace.spark.signs import forget_signs, read_signs

LOOK_S = 0.2


class LevelDroppedError(MisplacedError):
    """Executors of a level are gone, or gave no sign of life: the epoch is placed anew."""


class SlotWatch:
    """The executors of a part that answer, as far as its own levels tell.

    Args:
        context: of the session.
        group: the Spark job group of the part.
        silence_s: how long a slot may give no sign of life; ``None``: for ever.
        clock: the time.
        tell: called, from any thread, with a line when something changes.
    """

    def __init__(
        self,
        context: SparkContext,
        group: str,
        silence_s: float | None,
        clock: Clock,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._context, self._group, self._clock, self._tell = context, group, clock, tell
        no_use = silence_s is None or in_driver(str(context.master))
        self._silence = None if no_use or silence_s is None else Silence(silence_s)
        self._dropped, self._waited_s = "", 0.0

    @property
    def every_s(self) -> float | None:
        """How often slots that take long give a sign; ``None``: they need not."""
        return None if self._silence is None else self._silence.every_s

    def executors(self) -> list[Executor]:
        """Return the executors that are alive and have not fallen silent."""
        found = executors(self._context)
        if self._silence is None or not self._silence.aside:
            return found
        for name in self._silence.review({one.identity: one.ended for one in found}):
            limit = self._silence.limit_s
            self._tell(f"executor {name} answers again; slots are given {limit:g} s from now on")
        return [one for one in found if one.identity not in self._silence.aside]

    def renewed(self, slots: Collection[int]) -> None:
        """Note that slots get new processes."""
        if self._silence is not None:
            self._silence.renewed(slots)

    @contextlib.contextmanager
    def over(
        self, rdd: SlotRDD, slots: Sequence[int], prefix: Path, places: Mapping[int, Executor]
    ) -> Iterator[None]:
        """Watch while a block runs slots.

        Args:
            rdd: that is run.
            slots: the numbers of those that are.
            prefix: where their signs are.
            places: the executor that each was placed on.

        Raises:
            LevelDroppedError: the block failed, for the level was dropped.
        """
        if in_driver(str(self._context.master)):
            yield
            return
        self._dropped, self._waited_s = "", 0.0
        if self._silence is not None:
            self._silence.begin(self._clock.monotonic())
        over = threading.Event()
        level = _Level(rdd, slots, prefix, {slot: places[slot].identity for slot in slots})
        thread = threading.Thread(
            target=self._watch, args=(level, over), name="headrace-watch", daemon=True
        )
        thread.start()
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._dropped:
                dropped = LevelDroppedError(self._dropped)
                dropped.waited_s = self._waited_s
                raise dropped from error
            raise
        finally:
            over.set()
            thread.join()
        if self._silence is not None:
            self._silence.answered(level.places)

    def _watch(self, level: _Level, over: threading.Event) -> None:
        looked = self._clock.monotonic()
        while not over.wait(LOOK_S):
            try:
                alive = executors(self._context)
                self._drop(level, self._lost(level, alive), 0.0)
                now = self._clock.monotonic()
                if self._silence is not None and now - looked >= self._silence.every_s:
                    looked = now
                    words = self._silent(self._silence, level, alive, now)
                    self._drop(level, words, self._silence.base_s)
            except Py4JError:  # the session ends; so does the level
                return
            if self._dropped:
                return

    def _drop(self, level: _Level, words: str, waited_s: float) -> None:
        if not words:
            return
        self._dropped, self._waited_s = words, waited_s
        forget_signs(level.prefix, level.slots)
        self._context.cancelJobGroup(self._group)

    def _lost(self, level: _Level, alive: Sequence[Executor]) -> str:
        gone = set(level.places.values()) - {one.identity for one in alive}
        if not gone:
            return ""
        done = {level.rdd.slot_of(one) for one in course(self._context, self._group).done}
        slots = [n for n, name in level.places.items() if name in gone and n not in done]
        return f"executors {sorted(gone)} are gone, with slots {slots}" if slots else ""

    def _silent(
        self, silence: Silence, level: _Level, alive: Sequence[Executor], now: float
    ) -> str:
        running = course(self._context, self._group).running
        slots = {level.rdd.slot_of(partition): name for partition, name in running.items()}
        free = {one.identity for one in alive} - set(slots.values()) - set(silence.aside)
        found = silence.look(now, slots, read_signs(level.prefix, list(slots)), len(free))
        if not found:
            return ""
        silence.give_up({one.identity: one.ended for one in alive if one.identity in found})
        words = _words(found, slots, alive)
        self._tell(f"{words}; the epoch is planned anew without it")
        return words


@dataclass(frozen=True)
class _Level:
    rdd: SlotRDD
    slots: Sequence[int]
    prefix: Path
    places: dict[int, str]


def _words(found: dict[str, float], slots: dict[int, str], alive: Sequence[Executor]) -> str:
    hosts = {one.identity: one.host for one in alive}
    said = [
        f"slots {sorted(slot for slot, on in slots.items() if on == name)} of executor {name} on "
        f"{hosts.get(name, 'a host that has gone')} have given no sign of life for {silent:.1f} s"
        for name, silent in sorted(found.items())
    ]
    return "; ".join(said)
