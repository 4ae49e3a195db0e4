"""The HTTP API of a running driver: what it is doing, and what it may be asked to do."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from headrace.control.board import EPOCHS, Board
from headrace.control.holds import NOBODY_MERGES
from headrace.control.hosts import HostAsks, add_hosts
from headrace.control.metrics import metrics_text
from headrace.control.models import (
    AlertInfo,
    Done,
    EpochInfo,
    EventInfo,
    HotKeysInfo,
    InputInfo,
    JobInfo,
    Problem,
    RescaleAsk,
    RescaleDone,
    SettingInfo,
    StageInfo,
    StopDone,
    TaskInfo,
)
from headrace.control.savepoints import Save, add_savepoints
from headrace.control.telling import LAST_MS, add_tellings
from headrace.control.views import (
    alert_infos,
    epoch_info,
    event_infos,
    hot_keys_infos,
    input_infos,
    job_info,
    setting_infos,
    stage_infos,
    task_infos,
)
from headrace.coordinator.changes.requests import RescaleAnswer
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.task.orders import TOLD_KEYS

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ASK_S = 30.0
EVENTS = 1_000_000

Ask = Callable[[int, str | None, float], RescaleAnswer]

_BEARER = HTTPBearer(auto_error=False, description="the token in control.json of the job")
_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (InvalidInputError, 409),  # as the job is; what is wrong by itself is 422
    (NotOwnerError, 409),
    (UnavailableError, 503),
)


class _Refused(Exception):
    """The token is not the driver's."""


def make_app(board: Board, token: str, ask: Ask, save: Save, hosts: HostAsks) -> FastAPI:
    """Return the API over a board.

    Args:
        board: of the driver.
        token: what requests have to bring.
        ask: asks the driver for another number of tasks, and waits.
        save: makes a savepoint.
        hosts: asks the driver for what concerns hosts, and waits.
    """

    def check(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if sent is None or not secrets.compare_digest(sent.credentials.encode(), token.encode()):
            raise _Refused

    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (401, 409, 422, 503)
    }
    app = FastAPI(
        title="Headrace",
        description=f"The driver of job {board.job}.",
        dependencies=[Depends(check)],
        responses=problems,
        docs_url=None,
        redoc_url=None,
    )
    app.exception_handler(HeadraceError)(_told)
    app.exception_handler(_Refused)(_refused)
    app.exception_handler(RequestValidationError)(_malformed)
    app.exception_handler(HTTPException)(_unknown)
    _observe(app, board)
    _steer(app, board, ask)
    add_hosts(app, board, hosts)
    add_savepoints(app, board, save)
    add_tellings(app, board)
    return app


def _told(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, HeadraceError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    told = Problem(code=error.code, message=error.message, next=error.move)
    return JSONResponse(told.model_dump(), status)


def _refused(request: Request, error: Exception) -> JSONResponse:
    del request, error
    told = Problem(
        code="HR100",
        message="the token is missing, or not that of this driver",
        next="send 'Authorization: Bearer TOKEN' with the token in control.json of the job",
    )
    return JSONResponse(told.model_dump(), 401, {"WWW-Authenticate": "Bearer"})


def _malformed(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RequestValidationError)
    found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    told = Problem(code="HR100", message=found, next="send what /openapi.json describes")
    return JSONResponse(told.model_dump(), 422)


def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    told = Problem(code="HR100", message=message, next="send what /openapi.json describes")
    status = 422 if error.status_code == 400 else error.status_code  # a body that is no JSON
    return JSONResponse(told.model_dump(), status, error.headers)


def _observe(app: FastAPI, board: Board) -> None:
    @app.get("/v1/job")
    def job() -> JobInfo:
        """The job as a whole."""
        return job_info(board)

    @app.get("/v1/stages")
    def stages() -> list[StageInfo]:
        """Its keyed stages."""
        return stage_infos(board)

    @app.get("/v1/tasks")
    def tasks() -> list[TaskInfo]:
        """The tasks of these."""
        return task_infos(board)

    @app.get("/v1/inputs")
    def inputs() -> list[InputInfo]:
        """How far each partition of its inputs has been read."""
        return input_infos(board)

    @app.get("/v1/epochs")
    def epochs(last: Annotated[int, Query(ge=1, le=EPOCHS)] = 100) -> list[EpochInfo]:
        """The last epochs of this driver, oldest first, with what each step took."""
        return [epoch_info(summary) for summary in board.epochs(last)]

    @app.get("/v1/hot-keys")
    def hot_keys(most: Annotated[int, Query(ge=1, le=TOLD_KEYS)] = 10) -> list[HotKeysInfo]:
        """The heaviest keys of each partition_by, by name, of a sample of their rows."""
        return hot_keys_infos(board, most)

    @app.get("/v1/alerts")
    def alerts() -> list[AlertInfo]:
        """The rules of alerts, and how they stand."""
        return alert_infos(board)

    @app.get("/v1/events")
    def events(
        last: Annotated[int, Query(ge=1, le=EVENTS)] = 100,
        since_ms: Annotated[int, Query(ge=0, le=LAST_MS)] = 0,
    ) -> list[EventInfo]:
        """The last things that happened to drivers, hosts and workers of the job, oldest first."""
        return event_infos(board, last, since_ms)

    @app.get("/v1/config")
    def config() -> list[SettingInfo]:
        """Its settings; secrets are hidden."""
        return setting_infos(board)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics_text(board), media_type=METRICS_TYPE)


def _steer(app: FastAPI, board: Board, ask: Ask) -> None:
    @app.post("/v1/pause")
    def pause() -> Done:
        """Commit the epoch under way, and begin none until it is resumed."""
        board.control.paused.set()
        return Done(status=board.status)

    @app.post("/v1/hold")
    def hold() -> Done:
        """Begin no epoch while a process merges into the job, whose lock tells when it is over."""
        if not board.hold():
            raise InvalidInputError(f"{NOBODY_MERGES} {board.job!r}; see headrace jobs merge")
        return Done(status=board.status)

    @app.post("/v1/resume")
    def resume() -> Done:
        """Go on after a pause."""
        board.control.paused.clear()
        return Done(status=board.status)

    @app.post("/v1/stop")
    def stop() -> StopDone:
        """End the epoch under way, and the driver; nothing is lost."""
        was = board.status
        board.control.stop.set()
        return StopDone(status=board.status, was=was)

    @app.post("/v1/finish")
    def finish() -> Done:
        """Read the inputs to the ends that they have now, close all windows, and end for good."""
        board.control.paused.clear()
        board.control.finish.set()
        return Done(status=board.status)

    @app.post("/v1/rescale")
    def rescale(wanted: RescaleAsk) -> RescaleDone:
        """Give the job another number of tasks, between two epochs."""
        answer = ask(wanted.tasks, wanted.stage or None, ASK_S)
        if answer.error:
            raise InvalidInputError(answer.error)
        return RescaleDone(epoch=answer.epoch, tasks=answer.counts)
