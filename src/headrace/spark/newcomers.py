"""Gets executors ready that come while a job runs, so that the job does not wait for it.

The first slot on an executor starts a Python process, which loads libraries: seconds, in which
no epoch could run. So a newcomer is asked by itself, beside the epochs, by the number that its
slot is going to have: by it Spark finds the process again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from headrace.spark.located import Executor, SlotRDD

Prepare = Callable[[Mapping[int, Executor]], SlotRDD]


class Newcomers:
    """The executors that have come since slots were last placed.

    One thread calls.

    Args:
        prepare: makes what runs on the slots of these numbers and executors.
        group: of the Spark jobs, called in the thread that runs them.
    """

    def __init__(self, prepare: Prepare, group: Callable[[], None]) -> None:
        self._prepare, self._group = prepare, group
        self._asked: dict[str, threading.Event] = {}

    def ready(
        self,
        found: Sequence[Executor],
        known: Sequence[Executor],
        numbered: Callable[[Sequence[Executor]], Mapping[int, Executor]],
    ) -> list[Executor]:
        """Return the executors that are known or ready, and begin to get others ready.

        Args:
            found: those that are alive.
            known: those that slots are placed on; when there are none, all found are returned.
            numbered: gives the slots of executors their numbers.
        """
        there = {one.identity for one in known}
        if not there:
            return list(found)
        new = [one for one in found if one.identity not in there]
        self._asked = {
            one.identity: self._asked[one.identity] for one in new if one.identity in self._asked
        }
        fresh = [one for one in new if one.identity not in self._asked]
        if fresh:
            self._begin(fresh, numbered(found))
        late = {name for name, answered in self._asked.items() if not answered.is_set()}
        return [one for one in found if one.identity not in late]

    def _begin(self, fresh: Sequence[Executor], numbers: Mapping[int, Executor]) -> None:
        names = {one.identity for one in fresh}
        for name in names:
            self._asked[name] = threading.Event()
            mine = {number: one for number, one in numbers.items() if one.identity == name}
            if not mine:  # no slot of this part is going to be there
                self._asked[name].set()
                continue
            threading.Thread(
                target=self._ask, args=(mine, self._asked[name]), name="headrace-new", daemon=True
            ).start()

    def _ask(self, slots: Mapping[int, Executor], answered: threading.Event) -> None:
        self._group()
        try:
            self._prepare(slots).run(list(slots))
        except Exception:  # noqa: BLE001 - it is gone again, or says what is wrong when it is used
            return
        finally:
            answered.set()
