"""Runs with a secret in every place that takes one: none is in what they write or show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.canaries import CANARY, calls_below, canary, leaks, readable_by_others
from tests.support.processes import MODULES, Deadline, SystemClock, wait_until
from tests.support.servers import RedisServer
from tests.support.watching import API_FILE, ApiAddress

import headrace as hr
from headrace.bus import StreamSpec, open_bus

REDIS, SINK, STORE = canary("redis"), canary("sink"), canary("store")
JOB = """
import headrace as hr

class Seen:
    def process(self, m, context):
        far, near = context.store("far"), context.store("near")
        far.put(m.k, far.get(m.k, 0) + 1)
        if POISON and m.k == 7:
            raise RuntimeError("cannot reach " + FAR)
        context.emit({"k": m.k, "n": far.get(m.k)})

class Likes(hr.MonoidProcessor[int, int]):
    def process(self, event):
        yield event.k, 1
    def identity(self) -> int:
        return 0
    def combine(self, first: int, second: int) -> int:
        return first + second

@hr.job("watch")
def watch(g):
    events = g.input("events")
    far = hr.store("far", int, kind="remote")
    near = hr.store("near", int, kind="remote", url=FAR)
    made = events.partition_by("k").process(
        Seen, returns={"k": int, "n": int}, stores=[far, near]
    )
    made.send_to(g.output("out"))
    totals = events.monoid(Likes, {"k": int}, state=hr.sinks.redis_partials(FAR, "likes:"))
"""


ASK = """
import json, sys
from typer.testing import CliRunner
from headrace.cli.main import app
for words in json.loads(sys.argv[1]):
    print(CliRunner().invoke(app, words).output)
"""


class _Hook(BaseHTTPRequestHandler):
    """Refuses all, and so puts its path into errors."""

    def do_POST(self) -> None:
        self.send_error(403, self.path)

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def hook() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/services/{canary('hook')}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(own_server: RedisServer) -> RedisServer:
    return own_server


@pytest.fixture
def guarded(server: RedisServer, backdoor: Any) -> str:
    """The address of a server that wants a password."""
    backdoor.config_set("requirepass", REDIS)
    return server.url.replace("redis://", f"redis://:{REDIS}@")


class World:
    """A home, a job with a secret in its code, and settings with one in every place."""

    def __init__(self, folder: Path, redis: str, hook: str) -> None:
        self.folder, self.home, self.redis, self.hook = folder, folder / "home", redis, hook
        with open_bus(self.home / "bus") as bus:
            stream = bus.create(StreamSpec("events", 2, pa.schema([("k", pa.int64())])))
            for partition in range(2):
                stream.append(partition, pa.record_batch({"k": list(range(10))}))
        traces = hook.replace("http://", f"http://me:{canary('trace')}@")
        self.toml = folder / "settings.toml"
        self.toml.write_text(
            f'[remote]\nurl = "{redis}"\n'
            f'[tracing]\nendpoint = "{traces}"\n'
            "[[alerts.rules]]\n"
            'name = "quiet"\nkind = "lag"\nabove = 0\nto = ["log", "webhook"]\n'
        )
        self.sets = [
            f"spark.conf.spark.hadoop.fs.s3a.secret.key={canary('set')}",
            f"alerts.webhook={hook}",
            "job.bounded=true",
            "epoch.max_rows=4",
        ]
        self.environ = {
            "HEADRACE_HOME": str(self.home),
            "HEADRACE__SPARK__CONF__SPARK__SSL__KEYPASSWORD": canary("env"),
            "HEADRACE__INPUTS__OTHER__DATAFRAME__OPTIONS__PASSWORD": canary("frame"),
            "HEADRACE__INPUTS__OTHER__DATAFRAME__FORMAT": "jdbc",
            "HEADRACE__INPUTS__OTHER__DATAFRAME__OPTIONS__URL": (
                f"jdbc:x://db?password={canary('jdbc')}"
            ),
        }

    def write_job(self, far: str, *, poison: bool = False) -> Path:
        path = self.folder / "watch.py"
        path.write_text(f"FAR, POISON = {far!r}, {poison}\n{JOB}")
        return path

    def command(self, *words: str) -> tuple[str, str]:
        """Run a command in a process of its own; return what it shows, and the calls below it."""
        return self._run("-m", "headrace.cli.main", *words, *self._given)

    def ask(self, commands: Sequence[Sequence[str]]) -> str:
        """Run commands in another process; return what they show."""
        return self._run("-c", ASK, json.dumps([[*words, *self._given] for words in commands]))[0]

    @property
    def _given(self) -> list[str]:
        return ["--config", str(self.toml), *(part for one in self.sets for part in ("--set", one))]

    def _run(self, *words: str) -> tuple[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        environment |= {**self.environ, "PYTHONPATH": MODULES}
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment,
        )
        with calls_below(process.pid) as calls:
            shown, _ = process.communicate(timeout=120)
        return shown, "\n".join(calls.values())


@pytest.fixture
def world(tmp_path: Path, guarded: str, hook: str) -> World:
    return World(tmp_path, guarded, hook)


def check(world: World, *shown: str) -> None:
    assert leaks(world.home) == []
    assert [text for text in shown if CANARY in text] == []
    assert readable_by_others(world.home) <= {"collected"}


def test_a_run_by_the_command_that_succeeds(world: World, backdoor: Any) -> None:
    path = world.write_job(world.redis)
    shown, calls = world.command("run", f"{path}:watch", "--standalone", "--set", "job.slots=2")
    assert "ended in epoch" in shown, shown
    assert "headrace" in calls, "no child process was seen"
    assert backdoor.execute_command("AUTH", REDIS)
    assert backdoor.dbsize() > 10
    assert not (world.home / "jobs" / "watch" / "secrets.json").exists()
    words = (
        ("jobs", "describe", "watch"),
        ("jobs", "history", "watch", "--json"),
        ("explain", f"{path}:watch", "--json"),
        ("config", "ls", "--json"),
        ("config", "explain", "inputs"),
        ("alerts", "test"),
        ("state", "ls", "watch"),
    )
    asked = world.ask(words)
    assert (
        '"key": "remote.url", "type": "text, or none", "default": "none", "value": "***"' in asked
    )
    check(world, shown, calls, asked)


@pytest.mark.parametrize("what", ["code", "login", "setting", "unknown", "graph"])
def test_a_run_by_the_command_that_fails(world: World, what: str) -> None:
    far = world.redis.replace(REDIS, STORE) if what == "login" else world.redis
    path = world.write_job(far, poison=what == "code")
    if what == "setting":
        world.sets.append(f"alerts.webhook={world.hook.replace('http', 'htp')}")
    if what == "unknown":
        world.sets.append(f"spark.password={canary('unknown')}")
    if what == "graph":
        path.write_text(path.read_text() + '\n    raise RuntimeError(f"boom {FAR}")\n')
    shown, calls = world.command("run", f"{path}:watch", "--standalone")
    assert "error HR" in shown, shown
    assert (world.home / "logs" / "headrace.log").stat().st_mode & 0o777 == 0o600
    check(world, shown, calls)


def test_a_run_by_the_program_and_its_api(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in world.environ.items():
        monkeypatch.setenv(name, value)
    path = world.write_job(world.redis)
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    sets = dict(one.split("=", 1) for one in world.sets) | {
        "remote.url": world.redis,
        "job.bounded": False,
    }
    told = list[str]()
    with hr.start(space["watch"], sets, on_notice=told.append) as running:
        storage = world.home / "jobs" / "watch"
        soon = Deadline(SystemClock(), 60)
        wait_until(lambda: (storage / API_FILE).exists() and running.state, soon, "the API")
        secrets = storage / "secrets.json"
        assert secrets.stat().st_mode & 0o777 == 0o600
        assert REDIS in secrets.read_text()
        place = msgspec.json.decode((storage / API_FILE).read_bytes(), type=ApiAddress)
        described = fetched(place, "/openapi.json")
        paths = json.loads(described)["paths"]
        routes = [one for one, how in paths.items() if "get" in how and "{" not in one]
        shown = [fetched(place, one) for one in routes]
        assert len(shown) > 8
    assert not secrets.exists()
    out = capfd.readouterr()
    check(world, *told, *shown, described, out.out, out.err)


def fetched(place: ApiAddress, path: str) -> str:
    request = urllib.request.Request(
        place.url + path, headers={"Authorization": f"Bearer {place.token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:  # for want of what it has to be given
        with refused:
            return refused.read().decode()
