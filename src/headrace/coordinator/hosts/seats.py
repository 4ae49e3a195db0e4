"""Which slot each task was run by last, and which others may still have its stores open."""

from __future__ import annotations

from collections.abc import Mapping


class Seats:
    """What a driver remembers of slots from epoch to epoch.

    It is a cache: a new driver knows nothing, and has asked all slots to let go of their stores.
    """

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._left: dict[str, set[int]] = {}
        self._is_open = False

    @property
    def at(self) -> Mapping[str, int]:
        """The slot that each task was placed in last."""
        return self._at

    @property
    def is_open(self) -> bool:
        """Say whether slots may have stores open."""
        return self._is_open

    def let_go(self) -> None:
        """Note that no slot has any store open; tasks are to keep their seats all the same."""
        self._left.clear()
        self._is_open = False

    def leaving(self, placed: Mapping[str, int]) -> dict[int, list[str]]:
        """Return the tasks that slots are to let go of, so that others can open their stores.

        Args:
            placed: the slot of each task now.
        """
        found: dict[int, list[str]] = {}
        if not self._is_open:
            return found
        for task, slot in placed.items():
            before = self._at.get(task)
            if before != slot or task in self._left:
                others = {*self._left.get(task, ()), before} - {None, slot}
                for other in others:
                    if other is not None:
                        found.setdefault(other, []).append(task)
        return found

    def left(self, leaving: Mapping[int, list[str]]) -> None:
        """Note that slots have let go of tasks."""
        for slot, tasks in leaving.items():
            for task in tasks:
                if task in self._left:
                    self._left[task].discard(slot)
                    if not self._left[task]:
                        del self._left[task]
                if self._at.get(task) == slot:
                    del self._at[task]

    def sit(self, placed: Mapping[str, int]) -> None:
        """Note the slots that are about to open the stores of tasks."""
        if self._is_open:
            for task, slot in placed.items():
                before = self._at.get(task)
                if before is not None and before != slot:
                    self._left.setdefault(task, set()).add(before)
        self._at.update(placed)
        self._is_open = True
