"""The HTTP API of a running driver: its routes, and who may call them.

Loaded in the server's thread, for it needs FastAPI. The answers about status are made by what
makes them of the files of a job that does not run.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.control.api_models import (
    AlertInfo,
    EpochInfo,
    EventInfo,
    HotKeysInfo,
    InputInfo,
    JobInfo,
    Model,
    Problem,
    RescaleAsk,
    RescaleDone,
    SavepointAsk,
    SavepointInfo,
    SettingInfo,
    StageInfo,
    TaskInfo,
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
from headrace.control.description import JobDescription, describe_live_job
from headrace.control.history import JobHistory, SampleLog, job_history, sample_of
from headrace.control.job_handle import (
    AcceptClock,
    ClockDone,
    Done,
    DriverHandle,
    Finish,
    Hold,
    JobHandle,
    Pause,
    Resume,
    Stop,
    StopDone,
)
from headrace.control.job_status import SHOWN_EPOCHS, JobStatus
from headrace.control.metrics import metrics_text
from headrace.coordinator.commands import Drain, Rescale, Restart
from headrace.coordinator.inspection.diagnosis import JobDiagnosis, diagnose
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.job_events import HostView, event_text, host_views, pending_moves
from headrace.coordinator.job_parts import group_state
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.operations.savepoint_format import list_savepoints, savepoints_dir
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.runtime.orders import REPORTED_KEYS
from headrace.sources.bounded_bus import saved_inputs

if TYPE_CHECKING:
    from headrace.coordinator.operations.savepoint_format import Savepoint


ANSWER_S = 30.0
"""For the answer of each part."""


class HostInfo(Model):
    """One host of the job."""

    host: str = Field(description="identity of its state directory")
    address: str
    status: str = Field(description="up, lost, draining or drained")
    slots: int
    tasks: int
    standbys: int
    state_bytes: int
    everywhere: bool = Field(description="all jobs of the home are to leave it, not this one alone")


class HappeningInfo(Model):
    """Something that happened to the hosts of the job."""

    time_ms: int
    what: str
    host: str
    text: str


class PlacementInfo(Model):
    """Where the job's tasks are."""

    hosts: list[HostInfo]
    moves_pending: int = Field(description="tasks that are to leave hosts that are up")
    story: list[HappeningInfo] = Field(description="oldest first")


class HostAsk(Model):
    """A host, by its address, or by its identity or the begin of that."""

    host: str = Field(min_length=1)


class RestartAsk(Model):
    """How processes are to be renewed."""

    rolling: bool = Field(True, description="one host after the other")


class RestartDone(Model):
    """The hosts that have new processes."""

    hosts: list[str]


def add_host_routes(app: FastAPI, board: JobStatus, handle: JobHandle) -> None:
    """Add the routes to an app."""

    @app.get("/v1/placement")
    def placement() -> PlacementInfo:
        """The hosts of the job, and what became of them lately."""
        state = group_state(board.states)
        return PlacementInfo(
            hosts=[_placement_info(view) for view in host_views(state)],
            moves_pending=pending_moves(state),
            story=[
                HappeningInfo(
                    time_ms=one.time_ms,
                    what=str(one.what),
                    host=one.host,
                    text=event_text(one, state),
                )
                for one in state.story
            ],
        )

    @app.post("/v1/drain")
    def drain(wanted: HostAsk) -> HostInfo:
        """Have a host be empty: its tasks and standbys move away, and none come."""
        return _drained(Drain(wanted.host))

    @app.post("/v1/undrain")
    def undrain(wanted: HostAsk) -> HostInfo:
        """Use a host again that was drained."""
        return _drained(Drain(wanted.host, undo=True))

    @app.post("/v1/restart")
    def restart(wanted: RestartAsk) -> RestartDone:
        """Renew the processes that run tasks; the driver stays."""
        return RestartDone(hosts=handle.restart(Restart(wanted.rolling), ANSWER_S))

    def _drained(command: Drain) -> HostInfo:
        host = handle.drain(command, ANSWER_S)
        views = host_views(group_state(board.states))
        return next(_placement_info(view) for view in views if view.host == host)


def _placement_info(view: HostView) -> HostInfo:
    return HostInfo(
        host=view.host,
        address=view.address,
        status=view.status,
        slots=view.slots,
        tasks=view.tasks,
        standbys=view.standbys,
        state_bytes=view.state_bytes,
        everywhere=view.everywhere,
    )


def add_savepoint_routes(app: FastAPI, board: JobStatus, handle: DriverHandle) -> None:
    """Add the routes to an app."""

    @app.post("/v1/savepoint")
    def savepoint(wanted: SavepointAsk) -> SavepointInfo:
        """Save the job between two epochs, with its own savepoints."""
        _ = board.state  # a job that is about to start is told so
        path, saved = handle.save(wanted.name, wanted.wait_s)
        return _savepoint_info(path, saved)

    @app.get("/v1/savepoints")
    def savepoints() -> list[SavepointInfo]:
        """The job's own savepoints that can be read."""
        folder = savepoints_dir(board.settings, board.job)
        found = list_savepoints(folder)
        return [_savepoint_info(one.path, one.saved) for one in found if one.saved is not None]


def _savepoint_info(path: Path, saved: Savepoint) -> SavepointInfo:
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


MAX_BUCKETS = 1_000
LAST_MS = 1 << 62


def add_status_routes(app: FastAPI, board: JobStatus) -> None:
    """Add the routes to an app."""

    @app.get("/v1/description")
    def description() -> JobDescription:
        """All that is told of the job at once, as of one epoch; `headrace jobs describe --json`."""
        return describe_live_job(board)

    @app.get("/v1/why")
    def why() -> list[JobDiagnosis]:
        """Who holds the watermarks of each part back, and where its rows went."""
        bus = board.bus
        readers = part_readers(board.settings, board.job, board.clock)
        return [diagnose(reader, saved_inputs(bus, reader.root)) for reader in readers]

    @app.get("/v1/history")
    def history(
        begin_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        end_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        lines: Annotated[int, Query(ge=1, le=MAX_BUCKETS)] = 12,
    ) -> JobHistory:
        """Rows, lag and state over time, of the samples that are kept, and of this moment."""
        return _history(board, begin_ms, max(end_ms, begin_ms + 1), lines)


def _history(board: JobStatus, begin_ms: int, end_ms: int, lines: int) -> JobHistory:
    log = SampleLog(job_storages(board.settings, board.job).storage)
    now = sample_of(board, board.clock.now_ms())
    kept = (one for one in log.read(begin_ms) if one.at_ms <= end_ms)
    latest = [now] if now.at_ms >= begin_ms else []
    found = job_history(chain(kept, latest), begin_ms, end_ms, lines)
    return replace(found, left_out=log.left_out, live=True)


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = 1_000_000

_BEARER = HTTPBearer(auto_error=False, description="the token in control.json of the job")
_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (InvalidInputError, 409),  # as the job is; what is wrong by itself is 422
    (NotOwnerError, 409),
    (UnavailableError, 503),
)


class _TokenOnly:
    """Lets nothing through without the token: no route, no description, no word of what there is.

    It looks before a body is read, and before anything says whether a path is known.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        kind, _, value = sent.partition(b" ")
        is_known = secrets.compare_digest(kind.title() + b" " + value.strip(), self._wanted)
        if scope["type"] == "lifespan" or is_known:
            await self._app(scope, receive, send)
        else:
            await _refused()(scope, receive, send)


def make_app(board: JobStatus, token: str, handle: DriverHandle) -> FastAPI:
    """Return the API over a board.

    Args:
        board: of the driver.
        token: what requests have to bring.
        handle: of the job that it drives.
    """
    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (401, 409, 422, 503)
    }
    app = FastAPI(
        title="Headrace",
        description=f"The driver of job {board.job}.",
        dependencies=[Depends(_BEARER)],  # for the description; the door is _TokenOnly
        responses=problems,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(_TokenOnly, token=token)
    app.exception_handler(HeadraceError)(_error_answer)
    app.exception_handler(RequestValidationError)(_malformed)
    app.exception_handler(HTTPException)(_unknown)
    _add_read_routes(app, board)
    _add_command_routes(app, handle)
    add_host_routes(app, board, handle)
    add_savepoint_routes(app, board, handle)
    add_status_routes(app, board)
    return app


def _error_answer(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, HeadraceError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    told = Problem(code=error.code, message=error.message, next=error.move)
    return JSONResponse(told.model_dump(), status)


def _refused() -> JSONResponse:
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


def _add_read_routes(app: FastAPI, board: JobStatus) -> None:
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
    def epochs(last: Annotated[int, Query(ge=1, le=SHOWN_EPOCHS)] = 100) -> list[EpochInfo]:
        """The last epochs of this driver, oldest first, with what each step took."""
        return [epoch_info(summary) for summary in board.epochs(last)]

    @app.get("/v1/hot-keys")
    def hot_keys(most: Annotated[int, Query(ge=1, le=REPORTED_KEYS)] = 10) -> list[HotKeysInfo]:
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


def _add_command_routes(app: FastAPI, handle: DriverHandle) -> None:
    @app.post("/v1/pause")
    def pause() -> Done:
        """Commit the epoch under way, and begin none until it is resumed."""
        return handle.do(Pause())

    @app.post("/v1/hold")
    def hold() -> Done:
        """Begin no epoch while a process merges into the job, whose lock tells when it is over."""
        return handle.do(Hold())

    @app.post("/v1/resume")
    def resume() -> Done:
        """Go on after a pause."""
        return handle.do(Resume())

    @app.post("/v1/accept-clock")
    def accept_clock() -> ClockDone:
        """Believe the clock of the driver's host as it is, which had jumped."""
        return handle.do(AcceptClock())

    @app.post("/v1/stop")
    def stop() -> StopDone:
        """End the epoch under way, and the driver; nothing is lost."""
        return handle.do(Stop())

    @app.post("/v1/finish")
    def finish() -> Done:
        """Read the inputs to their current ends, close all windows, and end for good."""
        return handle.do(Finish())

    @app.post("/v1/rescale")
    def rescale(wanted: RescaleAsk) -> RescaleDone:
        """Give the job another number of tasks, between two epochs."""
        answers = list(handle.ask(Rescale(wanted.tasks, wanted.stage or ""), ANSWER_S).values())
        if refused := "; ".join(one.error for one in answers if one.error):
            raise InvalidInputError(refused)
        counts = {name: count for one in answers for name, count in one.counts.items()}
        return RescaleDone(epoch=answers[0].epoch, tasks=counts)
