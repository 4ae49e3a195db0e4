"""All that observes a driver while it runs, begun and ended as one with its run."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from headrace.bus import Bus
from headrace.clock import Clock
from headrace.closeable import running_beside
from headrace.config import Settings
from headrace.control.alerts import STOP_S, AlertWatch
from headrace.control.history import SampleLog, Sampler
from headrace.control.live_job import LiveJob
from headrace.control.quiesce import HoldResponder, MergeHold
from headrace.control.server import ControlServer
from headrace.control.tracing import epoch_tracer
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import RunListeners
from headrace.coordinator.job_storage import job_storages
from headrace.files import Files


class DriverObservers:
    """What a driver lets others see and ask, and whom it notifies by itself.

    Args:
        job: its name.
        settings: of the run.
        control: what requests set.
        bus: for the stream of alerts.
        clock: where time comes from.
        listeners: the listeners of the run, which get notices from any thread.

    Raises:
        InvalidInputError: alerts or traces cannot be sent where the settings say.
    """

    def __init__(
        self,
        job: str,
        settings: Settings,
        control: JobControl,
        bus: Bus,
        clock: Clock,
        listeners: RunListeners,
    ) -> None:
        storage, wanted = job_storages(settings, job).storage, settings.control
        files, notify = Files(sync=False), listeners.notice
        self._listeners, self._held = listeners, ExitStack()
        self.live = LiveJob(job, settings, control, clock)
        self._hold = MergeHold(settings, job, control, notify)
        self._held.callback(self._hold.close)
        self.live.hold = self._hold.look
        self._answers = HoldResponder(storage, self._hold.look, files, clock)
        self._serves = wanted.enabled
        self._server = ControlServer(self.live, storage, wanted, files)
        self._sampler = Sampler(self.live, SampleLog(storage))
        self._alerts = AlertWatch(self.live, bus, storage=storage, files=files, notify=notify)
        self._tracer = epoch_tracer(settings, job, notify)
        if self._tracer is not None:
            self._held.callback(self._tracer.close)

    @property
    def listeners(self) -> RunListeners:
        """What the run is to call: this, then the listeners that it was given."""
        return replace(self._listeners, on_parts=self.ready, on_epoch=self.observe)

    def ready(self, parts: JobGroup) -> None:
        """Begin, once the parts of the job have."""
        self.live.ready(parts)
        self._hold.look()  # a merge may have begun under the driver before
        beside = self._held.enter_context
        beside(running_beside("headrace-holds", self._answers.run))
        if self._serves:
            self._held.callback(self._server.stop)
            self._server.start()
        beside(running_beside("headrace-alerts", self._alerts.run, STOP_S))
        beside(running_beside("headrace-samples", self._sampler.run))
        if self._listeners.on_parts is not None:
            self._listeners.on_parts(parts)

    def observe(self, summary: EpochSummary) -> None:
        """Learn of an epoch; returns at once."""
        self.live.observe(summary)
        if self._tracer is not None:
            self._tracer.observe(summary, self.live.clock.now_ms())
        if self._listeners.on_epoch is not None:
            self._listeners.on_epoch(summary)

    def close(self) -> None:
        """Take the last sample, look a last time, send what is left; within seconds."""
        self._held.close()
