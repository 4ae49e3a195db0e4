"""A run whose listeners are told after those that look at its driver."""

from __future__ import annotations

from dataclasses import replace

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.watch import DriverWatch
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Listeners
from headrace.coordinator.summary import EpochSummary


class Watched:
    """What looks at a driver, put before the listeners of its run.

    Args:
        job: its name.
        settings: of the run.
        control: what requests set.
        bus: for the stream of alerts.
        clock: where time comes from.
        told: the listeners.

    Raises:
        InvalidInputError: alerts or traces cannot be sent where the settings say.
    """

    def __init__(
        self,
        job: str,
        settings: Settings,
        control: Control,
        bus: Bus,
        clock: Clock,
        told: Listeners,
    ) -> None:
        self._watch = DriverWatch(job, settings, control, bus, clock, told.notice)
        self._told = told

    @property
    def listeners(self) -> Listeners:
        """What the run is to tell."""
        return replace(self._told, on_parts=self._begin, on_epoch=self._observe)

    def _begin(self, parts: JoinedParts) -> None:
        self._watch.ready(parts)
        if self._told.on_parts is not None:
            self._told.on_parts(parts)

    def _observe(self, summary: EpochSummary) -> None:
        self._watch.observe(summary)
        if self._told.on_epoch is not None:
            self._told.on_epoch(summary)

    def close(self) -> None:
        """Look no more."""
        self._watch.close()
