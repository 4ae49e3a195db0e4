"""Watches a level while Spark runs it, and has it dropped when a host has fallen silent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext

from headrace.clock import Clock
from headrace.coordinator.epoch import MisplacedError
from headrace.coordinator.silence import Silence
from headrace.spark.located import Executor, SlotRDD, executors, in_driver, running_tasks
from headrace.spark.signs import forget_signs, read_signs


class SilentHostError(MisplacedError):
    """Slots gave no sign of life: the epoch is planned anew without their executors."""


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
        self._given_up = ""

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

    @contextlib.contextmanager
    def over(
        self, rdd: SlotRDD, slots: Sequence[int], prefix: Path, places: dict[int, Executor]
    ) -> Iterator[None]:
        """Watch while a block runs slots.

        Args:
            rdd: that is run.
            slots: the numbers of those that are.
            prefix: where their signs are.
            places: the executor that each was placed on.

        Raises:
            SilentHostError: the block failed, for the level was dropped.
        """
        silence = self._silence
        if silence is None:
            yield
            return
        self._given_up = ""
        silence.begin(self._clock.monotonic())
        over = threading.Event()
        thread = threading.Thread(
            target=self._watch,
            args=(silence, rdd, slots, prefix, over),
            name="headrace-silence",
            daemon=True,
        )
        thread.start()
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._given_up:
                silent = SilentHostError(self._given_up)
                silent.waited_s = silence.base_s
                raise silent from error
            raise
        finally:
            over.set()
            thread.join()
        silence.answered({slot: places[slot].identity for slot in slots})

    def _watch(
        self,
        silence: Silence,
        rdd: SlotRDD,
        slots: Sequence[int],
        prefix: Path,
        over: threading.Event,
    ) -> None:
        while not over.wait(silence.every_s):
            try:
                running = running_tasks(self._context, self._group)
                alive = executors(self._context)
            except Py4JError:  # the session ends; so does the level
                return
            by_slot = {rdd.slot_of(partition): name for partition, name in running.items()}
            free = {one.identity for one in alive} - set(by_slot.values()) - set(silence.aside)
            now = self._clock.monotonic()
            found = silence.look(now, by_slot, read_signs(prefix, list(by_slot)), len(free))
            if not found:
                continue
            silence.give_up({one.identity: one.ended for one in alive if one.identity in found})
            self._given_up = _words(found, by_slot, alive)
            self._tell(f"{self._given_up}; the epoch is planned anew without it")
            forget_signs(prefix, slots)
            self._context.cancelJobGroup(self._group)
            return


def _words(found: dict[str, float], slots: dict[int, str], alive: Sequence[Executor]) -> str:
    hosts = {one.identity: one.host for one in alive}
    said = [
        f"slots {sorted(slot for slot, on in slots.items() if on == name)} of executor {name} on "
        f"{hosts.get(name, 'a host that has gone')} have given no sign of life for {silent:.1f} s"
        for name, silent in sorted(found.items())
    ]
    return "; ".join(said)
