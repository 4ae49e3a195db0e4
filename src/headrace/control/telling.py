"""The part of the HTTP API that answers ``jobs ls``, ``describe``, ``why`` and ``history``.

The answers are made by what makes them of the files of a job that does not run.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from fastapi import Query

from headrace.control.description import Description, live_description
from headrace.control.past import Past, past_of
from headrace.control.samples import SampleLog, sample_of
from headrace.coordinator.backup.places import places
from headrace.coordinator.inspection.part_readers import part_readers
from headrace.coordinator.inspection.why import Why, ask_why
from headrace.sources.sourced import saved

if TYPE_CHECKING:
    from fastapi import FastAPI

    from headrace.control.board import Board

MOST_LINES = 1_000
LAST_MS = 1 << 62


def add_tellings(app: FastAPI, board: Board) -> None:
    """Add the routes to an app."""

    @app.get("/v1/description")
    def description() -> Description:
        """All that is told of the job at once, as of one epoch; `headrace jobs describe --json`."""
        return live_description(board)

    @app.get("/v1/why")
    def why() -> list[Why]:
        """Who holds the watermarks of each part back, and where its rows went."""
        bus = board.bus
        readers = part_readers(board.settings, board.job, board.clock)
        return [ask_why(reader, saved(bus, reader.root)) for reader in readers]

    @app.get("/v1/history")
    def history(
        begin_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        end_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        lines: Annotated[int, Query(ge=1, le=MOST_LINES)] = 12,
    ) -> Past:
        """Rows, lag and state over time, of the samples that are kept, and of this moment."""
        return _past(board, begin_ms, max(end_ms, begin_ms + 1), lines)


def _past(board: Board, begin_ms: int, end_ms: int, lines: int) -> Past:
    log = SampleLog(places(board.settings, board.job).storage)
    now = sample_of(board, board.clock.now_ms())
    kept = (one for one in log.read(begin_ms) if one.at_ms <= end_ms)
    latest = [now] if now.at_ms >= begin_ms else []
    found = past_of(chain(kept, latest), begin_ms, end_ms, lines)
    return replace(found, left_out=log.left_out, live=True)
