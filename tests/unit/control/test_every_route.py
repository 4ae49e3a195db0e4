"""Every route of the API: against its description, without a token, before the job has begun."""

from __future__ import annotations

from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest import SkipTest
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route
from tests.support.homes import Settings
from tests.support.soak import examples
from tests.support.watching import (
    Client,
    DriverHandle,
    LiveJob,
    api_server,
    asking,
    make_app,
    new_live_job,
    serving,
)
from tests.unit.control.shops import FILES

from headrace.testing import TestDriver


def test_every_route_keeps_to_its_description(driver: TestDriver, live: LiveJob) -> None:
    """Whatever is sent, the answer is one that OpenAPI declares, and never a fault."""
    import schemathesis  # as tests of other files need not
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import negative_data_rejection

    class Served(DriverHandle):
        def ask_part(self, root: Path, command: Any, wait_s: float) -> Any:
            del wait_s
            with serving(driver):
                return super().ask_part(root, command, 10.0)

    handle = Served(driver.storage, live, FILES)
    app = make_app(live, "t", handle)
    own = {"Authorization": "Bearer t"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=own)
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # an error raises
        tried.add((operation.method.upper(), operation.path))
        for mode, count in ((GenerationMode.POSITIVE, 3), (GenerationMode.NEGATIVE, 1)):
            for case in _cases(operation, mode, examples(count)):
                # A name that is not known is passed over in a query, as usual.
                case.call_and_validate(headers=own, excluded_checks=[negative_data_rejection])
    assert tried == set(ROUTES)
    assert len(ROUTES) > 20


BODIES: dict[str, dict[str, object]] = {
    "/v1/rescale": {"tasks": 2},
    "/v1/restart": {},
    "/v1/savepoint": {},
    "/v1/drain": {"host": "a"},
    "/v1/undrain": {"host": "a"},
    "/v1/commands/{kind}": {"part": "shop", "command": {"tasks": 2}},
}


def test_no_route_answers_who_has_no_token(client: Client, live: LiveJob) -> None:
    paths = {path for _, path in EVERY_ROUTE}
    assert "/openapi.json" in paths
    unknown = {("GET", path) for path in ("/", "/docs", "/redoc", "/v1", "/v2/job", "//v1/job")}
    for verb, path in {*EVERY_ROUTE, *unknown}:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
            status, said = answered(client, verb, path, headers)
            assert status == 401, (verb, path)
            assert "shop" not in said
            assert len(said) < 300
    assert not live.control.stop.is_set()
    assert not live.control.finish.is_set()


def test_a_body_is_not_even_read_without_a_token(client: Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": str(1 << 40)}
    assert answered(client, "POST", "/v1/rescale", headers, b"{")[0] == 401


def test_the_description_comes_with_the_token(client: Client) -> None:
    assert set(client.get("/openapi.json")["paths"]) == {path for _, path in ROUTES}


def answered(
    client: Client, verb: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, str]:
    """Send a request as it is; return status and text of the answer."""
    url = urlsplit(client.place.url)
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        connection.request(verb, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_each_route_says_so_before_the_job_has_begun(driver: TestDriver) -> None:
    live = new_live_job("shop", driver.settings)
    server = api_server(live, driver.storage)
    server.start()
    client = Client(driver.storage, "shop")
    done = {path: sent(client, verb, path, token=client.place.token) for verb, path in ROUTES}
    server.stop()
    assert set(done.values()) == {200, 409, 503}
    assert {path for path, status in done.items() if status == 503} == {
        *("/v1/description", "/v1/drain", "/v1/history", "/v1/inputs", "/v1/placement"),
        *("/v1/commands/{kind}", "/v1/rescale", "/v1/restart", "/v1/savepoint", "/v1/stages"),
        *("/v1/tasks", "/v1/undrain", "/v1/why"),
        *("/v1/state", "/v1/state/{store}", "/v1/state/{store}/{key}"),
        *("/v1/sql", "/v1/sql/changes", "/v1/sql/tables"),
    }


def sent(client: Client, verb: str, path: str, *, token: str) -> int:
    """Send a request that is as described; return the status of the answer."""
    body = msgspec.json.encode(BODIES[path]) if path in BODIES else None
    query = "?begin_ms=0&end_ms=1" if path == "/v1/history" else ""
    query = "?query=SELECT%201" if path in ("/v1/sql", "/v1/sql/changes") else query
    url = urlsplit(client.place.url)
    with closing(HTTPConnection(url.hostname or "", url.port, timeout=30)) as connection:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(
            verb, path.format(kind="rescale", store="spent", key="ann") + query, body, headers
        )
        return connection.getresponse().status


def _routes(app: FastAPI) -> set[tuple[str, str]]:
    found = [one for one in app.routes if isinstance(one, APIRoute)]
    return {(verb, one.path) for one in found for verb in one.methods or ()}


def _app() -> FastAPI:
    live = new_live_job("shop", Settings())
    return make_app(live, "t", asking(Path(), live))


APP = _app()
ROUTES = sorted(_routes(APP))
EVERY_ROUTE = {
    (verb, one.path) for one in APP.routes if isinstance(one, Route) for verb in one.methods or ()
}
"""Those that describe the others included."""


def _cases(operation: Any, mode: Any, count: int) -> list[Any]:
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
    assert found or mode == "negative"
    return found
