"""The remote stores of one task, through the steps of an epoch."""

from __future__ import annotations

from collections import Counter

from headrace.clock import Clock
from headrace.graph.operators import StoreSpec
from headrace.state.remote import RemoteStore

REMOTE = "remote"


class RemoteStores:
    """Opened when an operator is built, kept with it between epochs, for one thread.

    They are no part of the task's state: nothing of them is logged, caught up or moved.

    Args:
        job: its name, which their keys begin with.
        clock: for pauses, deadlines and ages.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self._open: list[RemoteStore] = []

    def open(self, spec: StoreSpec) -> RemoteStore:
        """Return a new store; it connects when it is first asked."""
        store = RemoteStore(self._job, spec, self._clock)
        self._open.append(store)
        return store

    def begin(self) -> None:
        """Turn to an epoch; what an attempt before it left unsent is forgotten."""
        for store in self._open:
            store.discard()

    def send(self) -> int:
        """Send the changes of the epoch: the last thing before the slot answers.

        Returns:
            The number of keys sent.

        Raises:
            UnavailableError: a server did not take all of them in time.
            InvalidInputError: a value cannot be kept; then nothing was sent.
        """
        for store in self._open:
            store.seal()
        return sum(store.send() for store in self._open)

    def counts(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        total: Counter[str] = Counter()
        for store in self._open:
            total.update(store.take_counts())
        return dict(total)

    @property
    def overlay_bytes(self) -> int:
        """About how much memory the changes take."""
        return sum(store.overlay_bytes for store in self._open)

    def close(self) -> None:
        """Let the connections go."""
        for store in self._open:
            store.close()
