"""What a running driver lets others see: its parts, its last epochs, and what it was asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.control.alerts.rules import RuleNow
from headrace.control.figures import Figures
from headrace.control.hot_keys import HeavyKeys, heavy_keys
from headrace.control.pace import Pace
from headrace.coordinator.inspection.job_list import StageView, stage_views
from headrace.errors import UnavailableError

if TYPE_CHECKING:
    from headrace.bus.bus import Bus
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
        hold: begins no epoch while somebody merges into the job; says whether somebody does.
    """

    job: str
    settings: Settings
    control: Control
    clock: Clock
    _parts: JoinedParts | None = None
    _epochs: deque[EpochSummary] = field(default_factory=lambda: deque(maxlen=EPOCHS))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lags: dict[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    hold: Callable[[], bool] = bool
    alerts: Callable[[], Sequence[RuleNow]] = list
    pace: Pace = field(default_factory=Pace)
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
            self.figures.observe(summary, self.clock.now_ms())
            self._epochs.append(replace(summary, observed=None))
            self._lags[summary.job] = summary.lag
            self.pace.note(self.clock.monotonic(), sum(self._lags.values()))
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
    def stages(self) -> list[StageView]:
        """The keyed stages of all parts, after their last epochs; raises as ``state`` does."""
        return list(stage_views(self.state, self._begun.standbys_wanted))

    @property
    def bus(self) -> Bus:
        """The streams of the job; raises as ``state`` does."""
        return self._begun.bus

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
        return "paused" if self.control.is_paused else "running"

    @property
    def lag(self) -> int | None:
        """Rows that lay before the job after its last epoch; ``None`` before the first."""
        with self._lock:
            return sum(self._lags.values()) if self._lags else None

    @property
    def eta_s(self) -> float | None:
        """For how long the job reads what lies before it; ``None``: it is not known, or paused."""
        with self._lock:
            now = self.clock.monotonic()
            return None if self.control.paused.is_set() else self.pace.eta_s(now)

    def lag_now(self) -> int:
        """Return how many rows lie before the job now; raises as ``lags_now`` does."""
        return sum(self.lags_now().values())

    def lags_now(self) -> dict[tuple[str, int], int]:
        """Return how many rows lie before each partition of each input now, by the streams.

        Raises:
            UnavailableError: it has not begun yet, or a stream does not answer.
        """
        state, parts = self.state, self._parts
        assert parts is not None
        ends, lags = parts.ends(), {}
        for operator, stream in parts.input_streams().items():
            held = state.inputs.get(operator, {})
            for partition, end in enumerate(ends.get(stream, ())):  # one may have come meanwhile
                at = held.get(partition)
                lags[operator, partition] = max(0, end - (0 if at is None else at.next_offset))
        return lags

    def heavy_keys(self, most: int) -> list[HeavyKeys]:
        """Return the heaviest keys of each ``partition_by``, as far as tasks have told."""
        with self._lock:
            told = list(self.figures.hot_keys.values())
        return heavy_keys(told, most)

    @property
    def output_rows(self) -> int:
        """Rows that left the job since the driver began."""
        return self.figures.output_rows

    def counted(self) -> Figures:
        """Return a copy of what the driver has counted."""
        with self._lock:
            return self.figures.copied()

    def epochs(self, last: int) -> Sequence[EpochSummary]:
        """Return the last epochs, oldest first."""
        with self._lock:
            return list(self._epochs)[-last:]
