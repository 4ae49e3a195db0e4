"""What looks at a driver, as long as it drives: API, samples, alerts, traces."""

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


class Serving:
    """What a driver lets others see and ask, and whom it tells by itself.

    Args:
        job: its name.
        settings: of the run.
        control: what requests set.
        bus: for the stream of alerts.
        listeners: told what they would be told without this.
        clock: where time comes from.
    """

    def __init__(
        self,
        job: str,
        settings: Settings,
        control: Control,
        bus: Bus,
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        self._watch = DriverWatch(job, settings, control, bus, clock, listeners.notice)
        self._told = listeners

    @property
    def listeners(self) -> Listeners:
        """Those given, after this."""
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
        """Serve no more."""
        self._watch.close()
