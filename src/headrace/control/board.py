"""What a running driver lets others see: its parts, its last epochs, and what it was asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import UnavailableError

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.joined import JoinedParts
    from headrace.coordinator.loop import Control
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.summary import EpochSummary

EPOCHS = 1_000
"""So many of the last epochs are told of."""


@dataclass
class Board:
    """Written by the driver's thread, read by any.

    Args:
        job: its name.
        settings: of the run.
        control: what stops, pauses and finishes it.
        clock: where time comes from.
    """

    job: str
    settings: Settings
    control: Control
    clock: Clock
    _parts: JoinedParts | None = None
    _epochs: deque[EpochSummary] = field(default_factory=lambda: deque(maxlen=EPOCHS))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lags: dict[str, int] = field(default_factory=dict)
    count: int = 0
    busy_ms: float = 0.0

    def __post_init__(self) -> None:
        self.began_ms = self.clock.now_ms()

    def ready(self, parts: JoinedParts) -> None:
        """Learn the parts of the job, which have begun."""
        self._parts = parts

    def observe(self, summary: EpochSummary) -> None:
        """Learn of an epoch that is committed."""
        with self._lock:
            self._epochs.append(summary)
            self._lags[summary.job] = summary.lag
            self.count += 1
            self.busy_ms += summary.took_ms

    @property
    def state(self) -> JobState:
        """The job's state after its last epoch.

        Raises:
            UnavailableError: it has not begun yet.
        """
        return self._begun.state

    @property
    def states(self) -> list[JobState]:
        """The states of its parts, senders first; raises as ``state`` does."""
        return self._begun.states

    @property
    def _begun(self) -> JoinedParts:
        if self._parts is None:
            raise UnavailableError(f"job {self.job!r} is about to start; ask again in a moment")
        return self._parts

    @property
    def status(self) -> str:
        """``starting``, ``running``, ``paused``, ``stopping`` or ``ended``."""
        if self.control.stop.is_set():
            return "stopping"
        if self._parts is None:
            return "starting"
        if self._parts.state.ended:
            return "ended"
        return "paused" if self.control.paused.is_set() else "running"

    @property
    def lag(self) -> int | None:
        """Rows that lay before the job after its last epoch; ``None`` before the first."""
        with self._lock:
            return sum(self._lags.values()) if self._lags else None

    def lag_now(self) -> int:
        """Return how many rows lie before the job now, by the streams themselves.

        Raises:
            UnavailableError: it has not begun yet, or a stream does not answer.
        """
        state, parts = self.state, self._parts
        assert parts is not None
        ends, lag = parts.ends(), 0
        for operator, stream in parts.input_streams().items():
            held = state.inputs.get(operator, {})
            for partition, end in enumerate(ends.get(stream, ())):  # one may have come meanwhile
                at = held.get(partition)
                lag += max(0, end - (0 if at is None else at.next_offset))
        return lag

    def epochs(self, last: int) -> Sequence[EpochSummary]:
        """Return the last epochs, oldest first."""
        with self._lock:
            return list(self._epochs)[-last:]
