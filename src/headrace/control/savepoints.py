"""The part of the HTTP API that makes savepoints of the job, and lists them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.control.models import SavepointAsk, SavepointInfo
from headrace.coordinator.savepoints.places import kept_savepoints, savepoints_dir

if TYPE_CHECKING:
    from fastapi import FastAPI

    from headrace.control.board import Board
    from headrace.coordinator.savepoints.form import Savepoint

Save = Callable[[str | None, float], tuple[Path, "Savepoint"]]


def add_savepoints(app: FastAPI, board: Board, save: Save) -> None:
    """Add the routes.

    Args:
        app: of the driver.
        board: of it.
        save: makes a savepoint of a name, or of one made of the time; asks the driver and waits.
    """

    @app.post("/v1/savepoint")
    def savepoint(wanted: SavepointAsk) -> SavepointInfo:
        """Save the job between two epochs, with its own savepoints."""
        _ = board.state  # a job that is about to start is told so
        path, saved = save(wanted.name, wanted.wait_s)
        return _info(path, saved)

    @app.get("/v1/savepoints")
    def savepoints() -> list[SavepointInfo]:
        """The job's own savepoints that can be read."""
        folder = savepoints_dir(board.settings, board.job)
        found = kept_savepoints(folder)
        return [_info(one.path, one.saved) for one in found if one.saved is not None]


def _info(path: Path, saved: Savepoint) -> SavepointInfo:
    return SavepointInfo(
        job=saved.job,
        name=saved.name,
        path=str(path),
        epoch=saved.epoch,
        time_ms=saved.time_ms,
        bytes=saved.bytes,
        files=len(saved.members()),
        parts=[part.state.job for part in saved.parts],
    )
