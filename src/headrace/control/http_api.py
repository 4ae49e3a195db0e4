"""The HTTP API of a running driver: its routes, and who may call them.

Loaded in the server's thread, for it needs FastAPI. The answers about status are made by what
makes them of the files of a job that does not run.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import AliasPath, BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

import headrace.control.status_schema  # noqa: F401 - what the models' annotations name
from headrace import plugins
from headrace.config import Explanation
from headrace.control.alert_rules import RuleStatus
from headrace.control.history import JobHistory, SampleLog, job_history, sample_of
from headrace.control.job_handle import (
    COMMANDS_PATH,
    CONTROLS,
    MAX_WAIT_S,
    DriverHandle,
    JobHandle,
)
from headrace.control.job_status import (
    EventStatus,
    HeavyKeys,
    HostStatus,
    JobStatus,
    PartitionStatus,
    PlacementStatus,
    StageStatus,
    TaskStatus,
    placement_status,
)
from headrace.control.live_job import SHOWN_EPOCHS, LiveJob
from headrace.control.metrics import metrics_text
from headrace.coordinator.commands import COMMANDS, Drain, Rescale, Restart
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.inspection.diagnosis import JobDiagnosis, diagnose
from headrace.coordinator.inspection.job_reader import (
    StoreSummary,
    part_readers,
    reader_of,
    summarise_stores,
)
from headrace.coordinator.inspection.row_filters import find, json_ready, key_range, limited
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.operations.savepoint_format import (
    SavepointInfo,
    list_savepoints,
    savepoints_dir,
)
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.runtime.orders import REPORTED_KEYS
from headrace.sources.bounded_bus import saved_inputs

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.coordinator.inspection.store_view import StoreView


POLL_S = 0.02
KINDS = Literal["rescale", "savepoint", "drain", "restart"]
ANSWER_S = 30.0
"""For the answer of each part."""


class Model(BaseModel):
    """What all have: closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(Model):
    """Why a request was not done: the error's code, what was found, and the next move."""

    code: str
    message: str
    next: str


def shown(name: str, of: type[Any], fields: str) -> type[BaseModel]:
    """Return the model of an answer that shows fields of another, with their types.

    Args:
        name: in the description of the API.
        of: has the fields.
        fields: their names; ``NAME=FIELD`` where the answer has another name for one.
    """
    kinds: dict[str, Any] = {}
    for one in fields.split():
        wire, _, own = one.rpartition("=")
        path, kind = own.split("."), of
        for step in path:
            getter = getattr(getattr(kind, step, None), "fget", None)
            hints = get_type_hints(kind if getter is None else getter, include_extras=True)
            kind = hints[step if getter is None else "return"]
        kinds[wire or own] = kind, Field(validation_alias=AliasPath(*path), exclude=False)
    config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)
    return create_model(name, __doc__=of.__doc__, __config__=config, **kinds)


# Routes whose fields had names before the model that they show.
JOB = shown(
    "JobInfo",
    JobStatus,
    "job status process host began_ms epoch epoch_ms generation lineage durability lag=unread "
    "eta_s counts watermarks",
)
STAGE = shown(
    "StageInfo",
    StageStatus,
    "stage tasks state_bytes hosts standbys=copies.standbys standbys_wanted=copies.wanted "
    "standbys_filled=copies.filled standby_epochs_behind=copies.epochs "
    "standby_bytes_behind=copies.size",
)
PLACEMENT = shown("PlacementInfo", PlacementStatus, "hosts moves_pending=moves.pending story")
ALERT = shown("AlertInfo", RuleStatus, "rule kind text value since_ms fired_ms")
HOT_KEYS = shown("HotKeysInfo", HeavyKeys, "operator columns rows too_low tasks told_ms=at_ms keys")
EPOCH = shown(
    "EpochInfo",
    EpochSummary,
    "part=job epoch rows output_rows took_ms steps_ms=timings_ms slots_ms=slot_timings_ms lag "
    "state_bytes changelog_bytes",
)
SETTING = shown("SettingInfo", Explanation, "key value source")


def _list_of(model: type[BaseModel]) -> Any:
    return list.__class_getitem__(model)


def _each(model: type[BaseModel], found: Iterable[object]) -> list[BaseModel]:
    return [model.model_validate(one) for one in found]


class HostAsk(Model):
    """A host, by its address, or by its identity or the begin of that."""

    host: str = Field(min_length=1)


class RescaleAsk(Model):
    """Another number of tasks, of one keyed stage or of all."""

    tasks: int = Field(ge=1, le=1 << 15)
    stage: str | None = None


class RescaleDone(Model):
    """What became of it."""

    epoch: int
    tasks: dict[str, int]


class SavepointAsk(Model):
    """A savepoint of the job; without a name, it is made of the time."""

    name: str | None = Field(None, max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
    wait_s: float = Field(30.0, ge=0, le=3_600, description="for the epoch under way")


class CommandAsk(Model):
    """A command to one part of the job, with the fields of its request file."""

    part: str
    command: dict[str, Any]
    wait_s: float = Field(30.0, ge=0, le=MAX_WAIT_S, description="then it is taken back")


class RestartAsk(Model):
    """How processes are to be renewed."""

    rolling: bool = Field(True, description="one host after the other")


class RestartDone(Model):
    """The hosts that have new processes."""

    hosts: list[str]


def add_host_routes(app: FastAPI, live: LiveJob, handle: JobHandle) -> None:
    """Add the routes to an app."""

    @app.get("/v1/placement", response_model=PLACEMENT)
    def placement() -> BaseModel:
        """The hosts of the job, and what became of them lately."""
        return PLACEMENT.model_validate(placement_status(live.state))

    @app.post("/v1/drain")
    def drain(wanted: HostAsk) -> HostStatus:
        """Have a host be empty: its tasks and standbys move away, and none come."""
        return _drained(Drain(wanted.host))

    @app.post("/v1/undrain")
    def undrain(wanted: HostAsk) -> HostStatus:
        """Use a host again that was drained."""
        return _drained(Drain(wanted.host, undo=True))

    @app.post("/v1/restart")
    def restart(wanted: RestartAsk) -> RestartDone:
        """Renew the processes that run tasks; the driver stays."""
        return RestartDone(hosts=handle.restart(Restart(wanted.rolling), ANSWER_S))

    def _drained(command: Drain) -> HostStatus:
        host = handle.drain(command, ANSWER_S)
        return next(one for one in placement_status(live.state).hosts if one.host == host)


def add_savepoint_routes(app: FastAPI, live: LiveJob, handle: DriverHandle) -> None:
    """Add the routes to an app."""

    @app.post("/v1/savepoint")
    def savepoint(wanted: SavepointAsk) -> SavepointInfo:
        """Save the job between two epochs, with its own savepoints."""
        _ = live.state  # a job that is about to start says so
        path, saved = handle.save(wanted.name, wanted.wait_s)
        return SavepointInfo.of(path, saved)

    @app.get("/v1/savepoints")
    def savepoints() -> list[SavepointInfo]:
        """The job's own savepoints that can be read."""
        folder = savepoints_dir(live.settings, live.job)
        found = list_savepoints(folder)
        return [SavepointInfo.of(one.path, one.saved) for one in found if one.saved is not None]


MAX_BUCKETS = 1_000
LAST_MS = 1 << 62


def add_status_routes(app: FastAPI, live: LiveJob) -> None:
    """Add the routes to an app."""

    @app.get("/v1/description")
    def description() -> JobStatus:
        """All that is known about the job, as of one epoch; `headrace jobs describe --json`."""
        return live.status()

    @app.get("/v1/why")
    def why() -> list[JobDiagnosis]:
        """Who holds the watermarks of each part back, and where its rows went."""
        bus = live.bus
        readers = part_readers(live.settings, live.job)
        return [diagnose(reader, saved_inputs(bus, reader.root)) for reader in readers]

    @app.get("/v1/history")
    def history(
        begin_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        end_ms: Annotated[int, Query(ge=0, le=LAST_MS)],
        lines: Annotated[int, Query(ge=1, le=MAX_BUCKETS)] = 12,
    ) -> JobHistory:
        """Rows, lag and state over time, of the samples that are kept, and of this moment."""
        return _history(live, begin_ms, max(end_ms, begin_ms + 1), lines)


def _history(live: LiveJob, begin_ms: int, end_ms: int, lines: int) -> JobHistory:
    log = SampleLog(job_storages(live.settings, live.job).storage)
    now = sample_of(live, live.clock.now_ms())
    kept = (one for one in log.read(begin_ms) if one.at_ms <= end_ms)
    latest = [now] if now.at_ms >= begin_ms else []
    found = job_history(chain(kept, latest), begin_ms, end_ms, lines)
    return replace(found, left_out=log.left_out, live=True)


STORE = shown(
    "StoreInfo",
    StoreSummary,
    "stage store kind form tasks entries exact bytes snapshots segments changed",
)
MAX_ROWS = 10_000


class StateRows(Model):
    """Rows of a store as of one committed epoch, in order of key groups and keys."""

    job: str
    epoch: int
    rows: list[dict[str, Any]]
    more: bool = Field(description="whether there are more rows than asked for")


_Epoch = Annotated[
    int | None,
    Query(ge=-LAST_MS, le=LAST_MS, description="a kept epoch; -5: five before the last"),
]
_MessageKey = Annotated[
    list[str] | None,
    Query(description="the key of the messages, if a processor's own key is different"),
]


def add_state_routes(app: FastAPI, live: LiveJob) -> None:
    """Add the routes to an app."""
    missing: dict[int | str, dict[str, Any]] = {404: {"model": Problem}}

    @app.get("/v1/state", response_model=_list_of(STORE))
    def stores() -> list[BaseModel]:
        """The stores of the job, as of the last committed epoch."""
        _ = live.state  # a job that is about to start says so
        readers = part_readers(live.settings, live.job)
        return _each(STORE, (one for each in readers for one in summarise_stores(each)[2]))

    @app.get("/v1/state/{store}", response_model=StateRows, responses=missing)
    def scan(
        store: str,
        key: Annotated[list[str] | None, Query(description="all values of one key")] = None,
        prefix: Annotated[list[str] | None, Query(description="first values of keys")] = None,
        low: Annotated[list[str] | None, Query(alias="from", description="lowest key")] = None,
        high: Annotated[
            list[str] | None, Query(alias="before", description="key to stop before")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        epoch: _Epoch = None,
        message_key: _MessageKey = None,
    ) -> Response:
        """Rows of a store, as committed; of one key where `key` is given."""
        if key:
            return _rows_of_key(store, key, epoch, message_key)
        view = _view(store, epoch)
        keys = key_range(view, prefix or [], low or [], high or [])
        found = list(limited(view.batches(keys), limit + 1))
        return _answer(view, found, limit)

    @app.get("/v1/state/{store}/{key}", response_model=StateRows, responses=missing)
    def get(
        store: str, key: str, epoch: _Epoch = None, message_key: _MessageKey = None
    ) -> Response:
        """The rows of a key of one value, as committed; `?key=` of the store takes several."""
        return _rows_of_key(store, [key], epoch, message_key)

    def _view(store: str, epoch: int | None) -> StoreView:
        _ = live.state  # a job that is about to start says so
        readers = part_readers(live.settings, live.job)
        return reader_of(readers, store).view(store, epoch)

    def _rows_of_key(
        store: str, words: list[str], epoch: int | None, message_key: list[str] | None
    ) -> Response:
        view = _view(store, epoch)
        found = find(view, words, message_key or [])
        if found is None:
            raise HTTPException(404, f"store {view.entry.name!r} has nothing for key {words}")
        return _answer(view, [found], found.num_rows)

    def _answer(view: StoreView, found: list[pa.RecordBatch], limit: int) -> Response:
        rows = [json_ready(row) for batch in found for row in batch.to_pylist()]
        answer = {
            "job": live.job,
            "epoch": view.epoch,
            "rows": rows[:limit],
            "more": len(rows) > limit,
        }
        # Rows can hold NaN, which JSON does not know: it is null.
        return Response(msgspec.json.encode(answer), media_type="application/json")


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

    def __init__(self, app: ASGIApp, token: str, place: str) -> None:
        self._app, self._wanted, self._place = app, f"Bearer {token}".encode(), place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope.get("headers", ())).get(b"authorization", b"")
        kind, _, value = sent.partition(b" ")
        is_known = secrets.compare_digest(kind.title() + b" " + value.strip(), self._wanted)
        if scope["type"] == "lifespan" or is_known:
            await self._app(scope, receive, send)
        else:
            await _refused(self._place)(scope, receive, send)


def new_app(description: str, token: str, place: str = "control.json of the job") -> FastAPI:
    """Return an API without routes, which asks for a token and shows errors as all do.

    Args:
        description: of what it serves.
        token: what requests have to bring.
        place: where who may read it finds the token.
    """
    problems: dict[int | str, dict[str, Any]] = {
        code: {"model": Problem} for code in (401, 409, 422, 503)
    }
    app = FastAPI(
        title="Headrace",
        description=description,
        dependencies=[Depends(_BEARER)],  # for the description; the door is _TokenOnly
        responses=problems,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(_TokenOnly, token=token, place=place)
    app.exception_handler(HeadraceError)(_error_answer)
    app.exception_handler(RequestValidationError)(_malformed)
    app.exception_handler(HTTPException)(_unknown)
    return app


def make_app(live: LiveJob, token: str, handle: DriverHandle) -> FastAPI:
    """Return the API over a live.

    Args:
        live: the job of the driver.
        token: what requests have to bring.
        handle: of the job that it drives.
    """
    app = new_app(f"The driver of job {live.job}.", token)
    _add_read_routes(app, live)
    _add_command_routes(app, live, handle)
    add_host_routes(app, live, handle)
    add_savepoint_routes(app, live, handle)
    add_status_routes(app, live)
    add_state_routes(app, live)
    for name in plugins.names(plugins.ROUTES):
        try:
            add_routes = plugins.load(plugins.ROUTES, name)
        except InvalidInputError as error:  # such as an extra that is not installed
            _add_missing(app, name, error.message)
        else:
            add_routes(app, live)
    return app


def _add_missing(app: FastAPI, name: str, reason: str) -> None:
    """Say why the routes of a plug-in are not there; all others are."""

    def missing(rest: str = "") -> None:
        raise InvalidInputError(reason)

    for path in (f"/v1/{name}", f"/v1/{name}/{{rest:path}}"):
        app.add_api_route(path, missing, include_in_schema=False)


def _error_answer(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, HeadraceError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    problem = Problem(code=error.code, message=error.message, next=error.move)
    return JSONResponse(problem.model_dump(), status)


def _refused(place: str) -> JSONResponse:
    problem = Problem(
        code="HR100",
        message="the token is missing, or not that of this server",
        next=f"send 'Authorization: Bearer TOKEN' with the token in {place}",
    )
    return JSONResponse(problem.model_dump(), 401, {"WWW-Authenticate": "Bearer"})


def _malformed(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RequestValidationError)
    found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    problem = Problem(code="HR100", message=found, next="send what /openapi.json describes")
    return JSONResponse(problem.model_dump(), 422)


def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    problem = Problem(code="HR100", message=message, next="send what /openapi.json describes")
    status = 422 if error.status_code == 400 else error.status_code  # a body that is no JSON
    return JSONResponse(problem.model_dump(), status, error.headers)


def _add_read_routes(app: FastAPI, live: LiveJob) -> None:
    @app.get("/v1/job", response_model=JOB)
    def job() -> BaseModel:
        """The whole job."""
        return JOB.model_validate(live.summary())

    @app.get("/v1/stages", response_model=_list_of(STAGE))
    def stages() -> list[BaseModel]:
        """Its keyed stages."""
        return _each(STAGE, live.stages)

    @app.get("/v1/tasks")
    def tasks() -> list[TaskStatus]:
        """The tasks of these, then those that read inputs, as of the last epoch."""
        return list(live.tasks(live.partitions()))

    @app.get("/v1/inputs")
    def inputs() -> list[PartitionStatus]:
        """How far each partition of its inputs has been read."""
        return live.partitions()

    @app.get("/v1/epochs", response_model=_list_of(EPOCH))
    def epochs(last: Annotated[int, Query(ge=1, le=SHOWN_EPOCHS)] = 100) -> list[BaseModel]:
        """The last epochs of this driver, oldest first, with what each step took."""
        return _each(EPOCH, live.epochs(last))

    @app.get("/v1/hot-keys", response_model=_list_of(HOT_KEYS))
    def hot_keys(most: Annotated[int, Query(ge=1, le=REPORTED_KEYS)] = 10) -> list[BaseModel]:
        """The heaviest keys of each partition_by, by name, of a sample of their rows."""
        return _each(HOT_KEYS, live.heavy_keys(most))

    @app.get("/v1/alerts", response_model=_list_of(ALERT))
    def alerts() -> list[BaseModel]:
        """The rules of alerts, and how they stand."""
        return _each(ALERT, live.alerts())

    @app.get("/v1/events")
    def events(
        last: Annotated[int, Query(ge=1, le=EVENTS)] = 100,
        since_ms: Annotated[int, Query(ge=0, le=LAST_MS)] = 0,
    ) -> list[EventStatus]:
        """The last things that happened to drivers, hosts and workers of the job, oldest first."""
        return list(map(EventStatus.of, live.events(since_ms)[-last:]))

    @app.get("/v1/config", response_model=_list_of(SETTING))
    def config() -> list[BaseModel]:
        """Its settings; secrets are hidden."""
        return _each(SETTING, live.settings.explain_all())

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics_text(live), media_type=METRICS_TYPE)


def _add_command_routes(app: FastAPI, live: LiveJob, handle: DriverHandle) -> None:
    @app.post(f"{COMMANDS_PATH}/{{kind}}")
    async def command(kind: KINDS, wanted: CommandAsk, request: Request) -> dict[str, Any]:
        """Run a command on one part, for `headrace`; it is taken back when the caller goes."""
        of_kind = next(one for one in COMMANDS if one.kind == kind)
        try:
            asked = msgspec.convert(wanted.command, of_kind)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"command {kind}: {error}") from error
        root = next((one for one in handle.states() if one.name == wanted.part), None)
        if root is None:
            raise InvalidInputError(f"job {live.job!r} has no part {wanted.part!r}")
        answer = asyncio.create_task(asyncio.to_thread(handle.ask_part, root, asked, wanted.wait_s))
        while not (await asyncio.wait([answer], timeout=POLL_S))[0]:
            if await request.is_disconnected():
                live.commands(root.name).take_back(asked)
        found: dict[str, Any] = msgspec.to_builtins(await answer)
        return found

    for control in CONTROLS:
        app.post(
            control.path,
            response_model=control.answer,
            name=control.path.removeprefix("/v1/").replace("-", "_"),
            description=control.run.__doc__,
        )(partial(handle.do, control))

    @app.post("/v1/rescale")
    def rescale(wanted: RescaleAsk) -> RescaleDone:
        """Give the job another number of tasks, between two epochs."""
        answers = list(handle.ask(Rescale(wanted.tasks, wanted.stage or ""), ANSWER_S).values())
        if refused := "; ".join(one.error for one in answers if one.error):
            raise InvalidInputError(refused)
        counts = {name: count for one in answers for name, count in one.counts.items()}
        return RescaleDone(epoch=answers[0].epoch, tasks=counts)
