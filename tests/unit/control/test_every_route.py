"""Every route of the API: against its description, without a token, before the job has begun."""

from __future__ import annotations

from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest import SkipTest
from urllib.parse import urlsplit

import msgspec
import schemathesis
from fastapi import FastAPI
from fastapi.routing import APIRoute
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection
from tests.unit.control.shops import FILES, served

from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.control.app import make_app
from headrace.control.asking import PartsRequests
from headrace.control.board import Board
from headrace.control.client import Client
from headrace.control.server import ControlServer
from headrace.coordinator.loop import Control
from headrace.testing import TestDriver


def test_every_route_keeps_to_its_description(driver: TestDriver, board: Board) -> None:
    """Whatever is sent, the answer is one that OpenAPI declares, and never a fault."""
    files, clock = FILES, SystemClock()

    def ask(tasks: int, stage: str | None, wait_s: float) -> Any:
        del wait_s
        with served(driver):
            return PartsRequests(driver.storage, board, files, clock).ask(tasks, stage, 10.0)

    def save(name: str | None, wait_s: float) -> Any:
        del wait_s
        with served(driver):
            return PartsRequests(driver.storage, board, files, clock).save(name, 10.0)

    class Hosts(PartsRequests):
        def drain(self, named: str, wait_s: float, *, undo: bool) -> str:
            del wait_s
            with served(driver):
                return super().drain(named, 10.0, undo=undo)

        def restart(self, wait_s: float, *, rolling: bool) -> list[str]:
            del wait_s
            with served(driver):
                return super().restart(10.0, rolling=rolling)

    hosts = Hosts(driver.storage, board, files, clock)
    app = make_app(board, "t", ask, save, hosts)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # an error raises
        tried.add((operation.method.upper(), operation.path))
        for mode, count in ((GenerationMode.POSITIVE, 15), (GenerationMode.NEGATIVE, 5)):
            for case in _cases(operation, mode, count):
                # A name that is not known is passed over in a query, as usual.
                own = {"Authorization": "Bearer t"}
                case.call_and_validate(headers=own, excluded_checks=[negative_data_rejection])
    assert tried == set(ROUTES)
    assert len(ROUTES) > 20


BODIES: dict[str, dict[str, object]] = {
    "/v1/rescale": {"tasks": 2},
    "/v1/restart": {},
    "/v1/savepoint": {},
    "/v1/drain": {"host": "a"},
    "/v1/undrain": {"host": "a"},
}


def test_no_route_answers_who_has_no_token(client: Client, board: Board) -> None:
    for verb, path in ROUTES:
        assert sent(client, verb, path, token="wrong") == 401, path
    assert not board.control.stop.is_set()
    assert not board.control.finish.is_set()


def test_each_route_says_so_before_the_job_has_begun(driver: TestDriver) -> None:
    board = Board("shop", driver.settings, Control(), SystemClock())
    server = ControlServer(board, driver.storage, "127.0.0.1", 0, FILES, SystemClock())
    server.start()
    client = Client(driver.storage, "shop")
    done = {path: sent(client, verb, path, token=client.place.token) for verb, path in ROUTES}
    server.stop()
    assert set(done.values()) == {200, 409, 503}
    assert {path for path, status in done.items() if status == 503} == {
        *("/v1/description", "/v1/drain", "/v1/history", "/v1/inputs", "/v1/placement"),
        *("/v1/rescale", "/v1/restart", "/v1/savepoint", "/v1/stages", "/v1/tasks"),
        *("/v1/undrain", "/v1/why"),
    }


def sent(client: Client, verb: str, path: str, *, token: str) -> int:
    """Send a request that is as described; return the status of the answer."""
    body = msgspec.json.encode(BODIES[path]) if path in BODIES else None
    query = "?begin_ms=0&end_ms=1" if path == "/v1/history" else ""
    url = urlsplit(client.place.url)
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(verb, path + query, body, headers)
        return connection.getresponse().status


def _routes(app: FastAPI) -> set[tuple[str, str]]:
    found = [one for one in app.routes if isinstance(one, APIRoute)]
    return {(verb, one.path) for one in found for verb in one.methods or ()}


def _all_routes() -> list[tuple[str, str]]:
    board = Board("shop", Settings(), Control(), SystemClock())
    asks = PartsRequests(Path(), board, FILES, SystemClock())
    return sorted(_routes(make_app(board, "t", asks.ask, asks.save, asks)))


ROUTES = _all_routes()


def _cases(operation: Any, mode: GenerationMode, count: int) -> list[Any]:
    """Return requests that are as described, or not; none where all are as described."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable

    found: list[Any] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def collect(case: Any) -> None:
        found.append(case)

    with suppress(Unsatisfiable, SkipTest):
        collect()
    assert found or mode is GenerationMode.NEGATIVE
    return found
