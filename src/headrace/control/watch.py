"""All that looks at a driver while it runs, begun and ended as one."""

from __future__ import annotations

from collections.abc import Callable

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.alerts.watch import AlertWatch
from headrace.control.board import Board
from headrace.control.holds import HoldAnswers
from headrace.control.merge_lock import MergeHold
from headrace.control.samples import SampleLog, Sampler
from headrace.control.server import ControlServer
from headrace.control.tracing import tracer_of
from headrace.coordinator.backup.places import places
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.files import Files


class DriverWatch:
    """What a driver lets others see and ask, and whom it tells by itself.

    Args:
        job: its name.
        settings: of the run.
        control: what requests set.
        bus: for the stream of alerts.
        clock: where time comes from.
        tell: takes lines on what is wrong; from any thread.

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
        tell: Callable[[str], None],
    ) -> None:
        storage, wanted, files = places(settings, job).storage, settings.control, Files(sync=False)
        self.board = Board(job, settings, control, clock)
        self._hold = MergeHold(settings, job, control, tell)
        self.board.hold = self._hold.look
        self._answers = HoldAnswers(storage, self._hold.look, files, clock)
        self._clock, self._serves = clock, wanted.enabled
        self._server = ControlServer(self.board, storage, wanted.host, wanted.port, files, clock)
        self._sampler = Sampler(self.board, SampleLog(storage), clock)
        self._alerts = AlertWatch(
            self.board, bus, storage=storage, files=files, clock=clock, tell=tell
        )
        self._tracer = tracer_of(settings, job, tell)

    def ready(self, parts: JoinedParts) -> None:
        """Begin, once the parts of the job have."""
        self.board.ready(parts)
        self._hold.look()  # a merge may have begun under the driver before
        self._answers.start()
        if self._serves:
            self._server.start()
        self._sampler.start()
        self._alerts.start()

    def observe(self, summary: EpochSummary) -> None:
        """Learn of an epoch; returns at once."""
        self.board.observe(summary)
        if self._tracer is not None:
            self._tracer.observe(summary, self._clock.now_ms())

    def close(self) -> None:
        """Take the last sample, look a last time, send what is left; within seconds."""
        self._sampler.stop()
        self._alerts.stop()
        if self._tracer is not None:
            self._tracer.close()
        self._server.stop()
        self._answers.close()
        self._hold.close()
