"""The web application by HTTP: its door, its API, and charts that are live."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.exploring import Browser, UiServer, serving, write_token
from tests.support.homes import Home
from tests.support.processes import until

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"at": pa.int64(), "route": pa.string(), "n": pa.int64()}
TOKEN = "owner" * 8
ALL = {"from": "2000-01-01", "to": "2100-01-01"}
DASHBOARD = {
    "title": "Web",
    "charts": [{"title": "Routes", "query": {"stream": "web", "group_by": ["route"]}}],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with Home(tmp_path_factory.mktemp("ui")) as made:
        made.create("web", COLUMNS, time="at")
        made.create("private", COLUMNS, time="at")
        rows = [{"at": 1_700_000_000_000 + n, "route": f"/r{n % 3}", "n": n} for n in range(30)]
        made.send("web", rows, 0)
        made.send("private", rows[:5], 0)
        yield made


@pytest.fixture(scope="module")
def server(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UiServer]:
    folder = tmp_path_factory.mktemp("tokens")
    viewers = [
        {"name": "ann", "token_file": str(write_token(folder, "ann")), "streams": "web"},
        {"name": "bob", "token_file": str(write_token(folder, "bob")), "streams": "w*",
         "may_save": False},
    ]  # fmt: skip
    sets = [
        f"ui.token_file={write_token(folder, 'owner')}",
        f"ui.viewers={json.dumps(viewers)}",
        "ui.names=explore.example",
    ]
    with serving(home, *sets) as made:
        yield made


@pytest.fixture
def browser(server: UiServer) -> Browser:
    found = Browser(server.url)
    assert found.sign_in(TOKEN).status == 303
    return found


def signed_in(server: UiServer, name: str) -> Browser:
    found = Browser(server.url)
    found.sign_in(name * 8)
    return found


# The door.


def test_a_token_begins_a_session_and_leaves_the_address(server: UiServer) -> None:
    browser = Browser(server.url)
    found = browser.get(f"/?token={TOKEN}&next=/sql")
    assert (found.status, found.headers["Location"]) == (303, "/sql")
    cookie = found.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert TOKEN not in cookie
    assert browser.get(f"/?token={TOKEN}&next=//evil.example/").headers["Location"] == "/"
    assert browser.get(f"/?token={TOKEN}&next=https://evil.example/").headers["Location"] == "/"
    wrong = browser.get("/?token=wrong")
    assert (wrong.status, wrong.headers.get("Set-Cookie")) == (403, None)


def test_without_a_session_there_is_a_form_and_nothing_else(server: UiServer) -> None:
    browser = Browser(server.url)
    page = browser.get("/explore?q=1")
    assert page.status == 401
    assert b'value="/explore?q=1"' in page.body
    for path in ("/api/status", "/api/streams", "/api/sql/schema", "/api/views", "/api/live?q={}"):
        assert browser.get(path).status == 401
    assert browser.query(stream="web").status in (400, 401)
    assert browser.get("/openapi.json").status == 404


def test_the_form_signs_in_from_its_own_page_alone(server: UiServer) -> None:
    browser = Browser(server.url)
    body = urlencode({"token": TOKEN, "next": "/sql"})
    own = browser.ask("POST", "/session", body, Origin=f"http://{browser.host}")
    assert (own.status, own.headers["Location"]) == (303, "/sql")
    for origin in (None, "null", "http://evil.example"):
        assert browser.ask("POST", "/session", body, Origin=origin).status == 403


def test_a_session_ends_with_its_cookie_and_cannot_be_made_up(browser: Browser) -> None:
    assert browser.get("/api/status").status == 200
    real = browser.cookie
    name, _, value = real.partition("=")
    text, _, signature = value.partition(".")
    other = signature[:-1] + ("1" if signature.endswith("0") else "0")
    for forged in (f"{text}.{other}", f"{text}x.{signature}", text, ".", "", "é"):
        browser.cookie = f"{name}={quote(forged, safe='.=')}"
        assert browser.get("/api/status").status == 401
    browser.cookie = real
    assert browser.change("DELETE", "/session").status == 204


def test_a_name_that_is_not_the_servers_is_refused_whatever_it_brings(browser: Browser) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"):
        found = browser.get("/api/status", Host=host)
        assert found.status == 403, host
    for host in ("localhost", "explore.example", "EXPLORE.example:443", "[::1]:8517"):
        assert browser.get("/api/status", Host=host).status == 200, host


def test_another_site_can_neither_change_nor_read(browser: Browser) -> None:
    view = {"title": "x", "query": {"stream": "web"}}
    evil = "http://evil.example"
    assert browser.change("PUT", "/api/views/x", view, Origin=evil).status == 403
    assert browser.change("PUT", "/api/views/x", view, Origin="null").status == 403
    assert browser.change("PUT", "/api/views/x", view, Origin=None).status == 403
    assert browser.change("PUT", "/api/views/x", view, X_Headrace=None).status == 403
    assert browser.ask("POST", "/api/query", {"stream": "web"}, Origin=evil).status == 403
    assert browser.ask("POST", "/api/sql", {"sql": "select 1"}, Origin=evil).status == 403
    assert browser.get("/api/views/x").status == 404
    assert browser.get("/api/status").headers.get("Access-Control-Allow-Origin") is None


def test_every_answer_has_the_headers_that_keep_scripts_and_frames_out(browser: Browser) -> None:
    for path in ("/", "/api/status", "/nowhere", "/static/none.js"):
        found = browser.get(path)
        policy = found.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert found.headers["X-Content-Type-Options"] == "nosniff"
        assert found.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_files_of_the_page_never_change_and_are_compressed(browser: Browser) -> None:
    page = browser.get("/")
    assert page.headers["Cache-Control"] == "no-cache"
    [place] = set(re.findall(rb'"(/static/[0-9a-f]{16})/', page.body))
    path = f"{place.decode()}/page.js"
    plain, packed = browser.get(path), browser.get(path, Accept_Encoding="br, gzip;q=0.9")
    assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert plain.headers["Content-Type"].startswith("text/javascript")
    assert plain.headers.get("Content-Encoding") is None
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == "accept-encoding"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert browser.get(f"/static/{'0' * 16}/page.js").status == 404, "that of another version"


def test_files_of_the_page_are_those_of_its_folder_alone(browser: Browser) -> None:
    digest = re.findall(rb"/static/([0-9a-f]{16})/", browser.get("/").body)[0].decode()
    assert browser.get(f"/static/{digest}/page.css").status == 200
    for path in (
        "../app.py",
        "%2e%2e/app.py",
        "..%2fapp.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        ".",
    ):
        assert browser.get(f"/static/{path}").status == 404, path
        assert browser.get(f"/static/{digest}/{path}").status == 404, path


def test_a_body_that_is_too_large_is_not_read(browser: Browser) -> None:
    assert browser.ask("POST", "/api/query", b"x" * (2 << 20)).status == 413
    assert browser.ask("POST", "/api/query", b"{").status == 400


def test_for_other_hosts_a_token_must_have_been_chosen(home: Home) -> None:
    with (
        pytest.raises(InvalidInputError, match=r"ui.token_file is not set"),
        serving(home, "ui.host=0.0.0.0"),
    ):
        pass


# Who may see what.


def test_a_viewer_sees_their_streams_alone(server: UiServer) -> None:
    ann = signed_in(server, "ann")
    assert [one["name"] for one in ann.get("/api/streams").json["streams"]] == ["web"]
    assert [one["stream"] for one in ann.get("/api/status").json["tailers"]] == ["web"]
    assert [one["name"] for one in ann.get("/api/sql/schema").json["tables"]] == ["web"]
    assert ann.query(stream="web", **ALL).json["rows"] == [[30]]
    hidden, missing = ann.query(stream="private"), ann.query(stream="nowhere")
    assert (hidden.status, missing.status) == (404, 404)
    assert hidden.problem.replace("private", "nowhere") == missing.problem
    for path in ("/columns", "/values?column=route"):
        assert ann.get(f"/api/streams/private{path}").status == 404
    assert ann.get(f"/api/export?q={quote(json.dumps({'stream': 'private'}))}").status == 404
    sql = ann.ask("POST", "/api/sql", {"sql": "select * from private"})
    assert (sql.status, sql.json["error"]["line"], sql.json["error"]["column"]) == (400, 1, 15)


def test_what_shows_a_hidden_stream_is_hidden_and_a_reader_saves_nothing(
    server: UiServer, browser: Browser
) -> None:
    secret = {"title": "Orders", "query": {"stream": "private"}}
    assert browser.change("PUT", "/api/views/orders", secret).status == 200
    ann, bob = signed_in(server, "ann"), signed_in(server, "bob")
    assert ann.get("/api/views/orders").status == 404
    assert "orders" not in str(ann.get("/api/views").json)
    assert ann.change("PUT", "/api/views/orders", {"title": "x", "query": {"stream": "web"}}
                      ).status == 409  # fmt: skip
    assert ann.change("DELETE", "/api/views/orders").status == 404
    assert ann.change("PUT", "/api/views/mine", secret).status == 400
    assert bob.change("PUT", "/api/views/his", DASHBOARD).status == 403
    assert browser.change("DELETE", "/api/views/orders").status == 204


@hr.job("secret-job")
def secret_job(g: Any) -> None:
    g.input("secret", time="at").filter(lambda row: row.n > 0).send_to(g.output("chosen"))


@hr.job("web-job")
def web_job(g: Any) -> None:
    g.input("web", time="at").filter(lambda row: row.n > 0).send_to(g.output("few"))


def test_a_viewer_sees_the_jobs_of_their_streams_alone(tmp_path: Path) -> None:
    for job, stream in ((secret_job, "secret"), (web_job, "web")):
        with TestDriver(job, tasks=1, home=tmp_path / "home", memory_bus=False) as driver:
            driver.create(stream, COLUMNS, time="at")
            driver.feed(stream, [{"at": 1_700_000_000_000, "route": "a", "n": 1}])
            driver.run()
    viewer = {"name": "ann", "token_file": str(write_token(tmp_path, "ann")), "streams": "w*"}
    sets = [f"ui.token_file={write_token(tmp_path, 'owner')}", f"ui.viewers={json.dumps([viewer])}"]
    with Home(tmp_path / "home") as home, serving(home, *sets) as server:
        owner = Browser(server.url)
        owner.sign_in(TOKEN)
        everything, seen = (one.get("/api/status") for one in (owner, signed_in(server, "ann")))
        assert [one["name"] for one in everything.json["jobs"]] == ["secret-job", "web-job"]
        assert everything.json["home"] == str(home.home)
        assert [one["name"] for one in seen.json["jobs"]] == ["web-job"]
        assert b"secret" not in seen.body
        assert str(home.home).encode() not in seen.body


# The API.


def test_streams_and_their_columns_are_listed(browser: Browser) -> None:
    [private, web] = browser.get("/api/streams").json["streams"]
    assert (private["name"], web["name"], web["rows"], web["kept"]) == ("private", "web", 30, True)
    assert (web["time_column"], web["sample_rate"]) == ("at", 1)
    assert browser.get("/api/streams/web/columns").json["columns"] == web["columns"]
    path = f"/api/streams/web/values?column=route&prefix=/r&{urlencode(ALL)}&limit=2"
    assert browser.get(path).json == {
        "values": [{"value": "/r0", "count": 10}, {"value": "/r1", "count": 10}]
    }


def test_a_query_is_answered_and_a_mistake_explained(browser: Browser) -> None:
    found = browser.query(stream="web", group_by=["route"], **ALL).json
    assert found["rows"] == [["/r0", 10], ["/r1", 10], ["/r2", 10]]
    assert found["columns"][0] == {"name": "route", "type": "string", "role": "group"}
    assert (found["complete"], found["sampled"], found["rows_total"]) == (True, False, 30)
    wrong = browser.query(stream="web", group_by=["rote"])
    assert (wrong.status, wrong.problem) == (400, "no column 'rote'; did you mean 'route'?")


def test_sql_is_answered_and_a_mistake_has_its_place(browser: Browser) -> None:
    found = browser.ask("POST", "/api/sql", {"sql": "select max(n) m from web", "limit": 5}).json
    assert (found["view"], found["rows"]) == ("table", [[29]])
    wrong = browser.ask("POST", "/api/sql", {"sql": "select rote\nfrom web"})
    assert wrong.json["error"] == {
        "code": "HR100",
        "message": "no column 'rote'; did you mean 'route'?",
        "line": 1,
        "column": 8,
    }


def test_answers_are_exported_as_csv_and_parquet(browser: Browser, tmp_path: Path) -> None:
    query = quote(json.dumps({"stream": "web", "group_by": ["route"], **ALL}))
    found = browser.get(f"/api/export?q={query}&format=csv")
    assert found.body.decode() == "route,count\n/r0,10\n/r1,10\n/r2,10\n"
    assert found.headers["Content-Disposition"] == 'attachment; filename="web.csv"'
    sql = quote("select n, '=1+1' f from web order by n limit 2")
    assert browser.get(f"/api/export?sql={sql}&format=csv").body == b"n,f\n0,'=1+1\n1,'=1+1\n"
    path = tmp_path / "found.parquet"
    path.write_bytes(browser.get(f"/api/export?sql={sql}&format=parquet").body)
    assert pq.read_table(path).column("n").to_pylist() == [0, 1]
    assert browser.get(f"/api/export?q={query}&format=exe").status == 400


def test_what_nobody_waits_for_is_ended(home: Home, tmp_path: Path) -> None:
    """Two statements may run at once; when both that run are left, the next one is answered."""
    many = " , ".join(f"web w{n}" for n in range(12))
    sql = f"select count(*) from {many} where w0.n + w1.n = w3.n * w4.n"
    sets = [f"ui.token_file={write_token(tmp_path, 'owner')}", "explore.query_s=3600"]
    with serving(home, *sets) as server:
        browser = Browser(server.url)
        browser.sign_in(TOKEN)
        with browser.asking("POST", "/api/sql", {"sql": sql}):
            with browser.asking("GET", f"/api/export?sql={quote(sql)}&format=csv"):
                until(lambda: server.service.sql_running == 2, "two statements that run")
            until(lambda: server.service.sql_running == 1, "the end of the export")
        until(lambda: server.service.sql_running == 0, "the end of the statement")
        assert browser.ask("POST", "/api/sql", {"sql": "select 1 a"}).json["rows"] == [[1]]


def test_a_dashboard_is_saved_and_a_change_of_an_older_version_refused(browser: Browser) -> None:
    saved = browser.change("PUT", "/api/dashboards/web", DASHBOARD).json
    assert (saved["version"], saved["charts"][0]["width"]) == (1, 6)
    again = browser.change("PUT", "/api/dashboards/web", {**saved, "title": "Routes"})
    assert again.json["version"] == 2
    late = browser.change("PUT", "/api/dashboards/web", {**saved, "title": "Late"})
    assert late.status == 409
    assert browser.get("/api/dashboards/web").json["title"] == "Routes"
    [one] = browser.get("/api/dashboards").json["dashboards"]
    assert (one["name"], one["title"]) == ("web", "Routes")
    for name in ("..%2fx", ".hidden", "a%00b", "x" * 100):
        assert browser.change("PUT", f"/api/dashboards/{name}", DASHBOARD).status in (400, 404)
    twice = {**DASHBOARD, "variables": [{"column": "route"}, {"column": "route"}]}
    assert "'route' is there twice" in browser.change("PUT", "/api/dashboards/bad", twice).problem
    held = {**DASHBOARD, "variables": [{"column": "route", "title": "Route"}], "version": 0}
    saved = browser.change("PUT", "/api/dashboards/held", held).json
    assert saved["variables"] == [{"column": "route", "title": "Route"}]
    assert browser.change("DELETE", "/api/dashboards/held").status == 204
    bad = {**DASHBOARD, "charts": [{"title": "x", "query": {"stream": "web", "view": "heatmap"}}]}
    assert browser.change("PUT", "/api/dashboards/bad", bad).status == 400
    assert browser.change("DELETE", "/api/dashboards/web").status == 204
    assert browser.get("/api/dashboards/web").status == 404


# Live charts.


def test_a_live_chart_gets_rows_that_are_appended(home: Home, browser: Browser) -> None:
    home.create("beats", COLUMNS, time="at")
    home.send("beats", [{"at": 1_700_000_000_000, "route": "a", "n": 1}], 0)

    def is_known() -> bool:
        streams = browser.get("/api/streams").json["streams"]
        return any(one["name"] == "beats" and one.get("rows") for one in streams)

    until(is_known, "rows of beats")
    query = quote(json.dumps({"stream": "beats", **ALL}))
    with browser.events(f"/api/live?q={query}") as events:
        assert next(events)[1]["rows"] == [[1]]
        home.send("beats", [{"at": 1_700_000_000_001, "route": "a", "n": 2}], 0)
        name, found = next(events)
        assert (name, found["rows"]) == ("result", [[2]])


def test_charts_wait_for_streams_that_are_not_there_and_do_not_say_which_are_hidden(
    home: Home, server: UiServer
) -> None:
    wanted = [{"stream": one, **ALL} for one in ("private", "web", "weather")]
    path = "/api/live?" + "&".join(f"q={quote(json.dumps(one))}" for one in wanted)
    with signed_in(server, "bob").events(path) as events:
        first = {found["q"]: found for _, found in islice(events, 3)}
        hidden, missing = first[0]["error"]["message"], first[2]["error"]["message"]
        assert hidden.replace("private", "weather") == missing
        assert (first[0]["status"], first[2]["status"], first[1]["rows"]) == (404, 404, [[30]])
        home.create("weather", COLUMNS, time="at")
        home.send("weather", [{"at": 1_700_000_000_000, "route": "a", "n": 1}], 0)
        _, found = next(one for one in events if one[1]["q"] == 2 and one[0] == "result")
        assert found["rows"] == [[1]]


def test_many_viewers_of_a_chart_cost_one_query(home: Home, tmp_path: Path) -> None:
    path = f"/api/live?q={quote(json.dumps({'stream': 'web', 'group_by': ['n'], **ALL}))}"
    seen, all_here = [], threading.Barrier(100)
    # A server of its own, where charts of other tests do not run.
    with serving(home, f"ui.token_file={write_token(tmp_path, 'owner')}") as server:
        browser = Browser(server.url)
        browser.sign_in(TOKEN)

        def is_known() -> bool:
            streams = browser.get("/api/streams").json["streams"]
            return any(one["name"] == "web" and one.get("rows") for one in streams)

        def watch() -> None:
            with browser.events(path) as events:
                found = next(events)
                all_here.wait(60)  # so that nobody has left when the last one comes
                seen.append(found[1]["rows"])

        until(is_known, "rows of web")
        threads = [threading.Thread(target=watch) for _ in range(100)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(120)
        assert len(seen) == 100
        assert all(rows == seen[0] for rows in seen)
        assert server.app.state.hub.runs == 1


def test_a_live_chart_says_what_is_wrong(browser: Browser) -> None:
    query = quote(json.dumps({"stream": "web", "group_by": ["rote"]}))
    with browser.events(f"/api/live?q={query}") as events:
        [(name, found)] = islice(events, 1)
    assert (name, found["error"]["code"]) == ("problem", "HR100")
