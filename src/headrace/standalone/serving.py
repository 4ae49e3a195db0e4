"""The HTTP API and the samples of a driver, as long as it drives."""

from __future__ import annotations

from dataclasses import replace

from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.board import Board
from headrace.control.samples import SampleLog, Sampler
from headrace.control.server import ControlServer
from headrace.coordinator.backup.places import places
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import Listeners
from headrace.coordinator.summary import EpochSummary
from headrace.files import Files


class Serving:
    """What a driver lets others see and ask.

    Args:
        job: its name.
        settings: of the run.
        control: what requests set.
        listeners: told what they would be told without this.
        clock: where time comes from.
    """

    def __init__(
        self, job: str, settings: Settings, control: Control, listeners: Listeners, clock: Clock
    ) -> None:
        storage, wanted, files = places(settings, job).storage, settings.control, Files(sync=False)
        self._board = Board(job, settings, control, clock)
        self._server = ControlServer(self._board, storage, wanted.host, wanted.port, files, clock)
        self._sampler = Sampler(self._board, SampleLog(storage), clock)
        self._told, self._is_wanted = listeners, wanted.enabled

    @property
    def listeners(self) -> Listeners:
        """Those given, after this."""
        return replace(self._told, on_parts=self._begin, on_epoch=self._observe)

    def _begin(self, parts: JoinedParts) -> None:
        self._board.ready(parts)
        if self._is_wanted:
            self._server.start()
        self._sampler.start()
        if self._told.on_parts is not None:
            self._told.on_parts(parts)

    def _observe(self, summary: EpochSummary) -> None:
        self._board.observe(summary)
        if self._told.on_epoch is not None:
            self._told.on_epoch(summary)

    def close(self) -> None:
        """Serve no more."""
        self._sampler.stop()
        self._server.stop()
