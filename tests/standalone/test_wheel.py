"""The wheel in an empty environment: what works without any extra, and what names one."""

from __future__ import annotations

import json
import signal
import subprocess
from importlib import metadata

import pytest
from tests.support import wheels
from tests.support.processes import until
from tests.support.wheels import Environment

from headrace.extras import EXTRAS

JOB = """\
import headrace as hr


@hr.job("clicks")
def clicks(g):
    views = g.input("clicks", time="at").partition_by("page")
    views.window(hr.tumbling("1m"), views=hr.agg.count()).send_to(g.output("views"))
"""
ROWS = [{"page": "/", "at": f"2026-01-01T00:00:{second:02}Z"} for second in range(9)]
CORE_MB = 445
"""Of which Polars and Arrow take 340, and NumPy 60."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with what it cannot work without."""
    folder = tmp_path_factory.mktemp("wheel")
    made = wheels.install(wheels.made(folder), wheels.built(folder))
    (made.work / "clicks.py").write_text(JOB)
    (made.work / "clicks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return made


def refusal(core: Environment, *words: str) -> str:
    """Run a command that must fail as a user's mistake; return what it says."""
    ran = core.run("headrace", *words)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "fault of headrace" not in ran.stderr
    return " ".join(ran.stderr.split())


@pytest.mark.slow
def test_a_first_job_runs_without_an_extra(core: Environment) -> None:
    version = metadata.version("headrace")
    assert core.done("headrace", "--version").startswith(
        f"headrace {version}, pyspark not installed"
    )
    columns = ("--schema", "page:string,at:timestamp", "--time", "at", "--key", "page")
    core.done("headrace", "bus", "create", "clicks", *columns)
    core.done("headrace", "bus", "append", "clicks", "clicks.jsonl")
    core.done("headrace", "run", "clicks.py", "--standalone", "--bounded")
    assert "views=9" in core.done("headrace", "bus", "tail", "views")
    assert "views=9" in core.done(
        "headrace", "dev", "clicks.py", "--once", "--data", "clicks=clicks.jsonl"
    )
    assert "Measure Headrace" in core.done("headrace", "bench", "--help")


@pytest.mark.slow
def test_the_core_stays_small(core: Environment) -> None:
    installed = {path.name for path in core.site.iterdir()}
    assert {library for library in EXTRAS if library in installed} <= {"opentelemetry"}
    assert core.megabytes < CORE_MB


LACKING = {
    "run clicks.py": 'pip install "headrace[spark]", or run without Spark: --standalone',
    "bench idle": 'pip install "headrace[spark]"',
    "demo": 'pip install "headrace[demo]"',
    "warehouse sql select+1": 'pip install "headrace[sql]"',
    "warehouse sql --engine spark select+1": 'pip install "headrace[spark]"',
}
COMMANDS = """\
import sys
from headrace.cli.main import app

for words in sys.argv[1:]:
    try:
        app([word.replace("+", " ") for word in words.split()])
    except SystemExit as ended:
        print("ended with", ended.code, file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_command_names_the_extra_it_lacks(core: Environment) -> None:
    """The first by itself, the others in one process, which is quicker."""
    first, *others = LACKING
    assert LACKING[first] in refusal(core, *first.split())
    ran = core.run("python", "-c", COMMANDS, *others)
    assert "fault of headrace" not in ran.stderr
    *answers, rest = " ".join(ran.stderr.split()).split("ended with 1")
    assert rest == "", ran.stdout + ran.stderr
    for words, answer in zip(others, answers, strict=True):
        assert LACKING[words] in answer


ASKING = """\
import sys
from headrace.config import load_settings
from headrace.control.client import client_of
from headrace.errors import HeadraceError

client = client_of(load_settings(), "clicks", 60)
print(client.read("/v1/job").decode())
try:
    client.read("/v1/sql/tables")
except HeadraceError as error:
    print(str(error).replace("\\n", " "))
"""


@pytest.mark.slow
def test_the_api_of_a_driver_answers_without_an_extra(core: Environment) -> None:
    """What needs one says which, and ends neither the rest nor the run."""
    home = core.work / "asked"
    (core.work / "asking.py").write_text(ASKING)
    columns = ("--schema", "page:string,at:timestamp", "--time", "at", "--key", "page")
    core.done("headrace", "bus", "create", "clicks", *columns, "--home", home)
    told = core.work / "told"
    with told.open("w") as output:
        words = ("run", "clicks.py", "--standalone", "--home", home, "--json")
        running = subprocess.Popen(
            [core.programs / "headrace", *words],
            cwd=core.work, env=core.variables(), stdout=output, stderr=output,
        )  # fmt: skip
        try:
            until(lambda: any((home / "jobs").glob("clicks/control.json")), "the API of the driver")
            environ = {**core.variables(), "HEADRACE_HOME": str(home)}
            asking = [str(core.programs / "python"), "asking.py"]
            asked = subprocess.run(
                asking, cwd=core.work, env=environ, capture_output=True, text=True, check=True
            )
        finally:
            running.send_signal(signal.SIGINT)
            code = running.wait(60)
    job, refused = asked.stdout.splitlines()
    assert json.loads(job)["status"] == "running"
    assert 'pip install "headrace[sql]"' in refused
    assert (code, "Traceback" in told.read_text()) == (130, False), told.read_text()


NEEDING = """\
import headrace as hr
import headrace.spark
import headrace.sinks
from headrace.testing import TestDriver


def sinking(sink):
    @hr.job("sent")
    def sent(g):
        g.input("rows", schema={"id": int}).partition_by("id").send_to(sink())

    with TestDriver(sent) as driver:
        driver.create("rows", {"id": "int64"})
        driver.feed("rows", [{"id": 1}])
        driver.run()


@hr.job("counted")
def counted(g):
    rows = g.input("rows", schema={"id": int})
    rows.aggregate(n=hr.agg.approx_distinct("id")).send_to(g.output("n"))


def told(call):
    try:
        call()
    except hr.InvalidInputError as error:
        print(str(error).replace("\\n", " "))


told(lambda: headrace.spark.session)
told(counted.build)
told(lambda: sinking(lambda: hr.sinks.postgres("postgresql://here/db", "t")))
"""


@pytest.mark.slow
def test_a_program_is_told_the_extra_it_lacks(core: Environment) -> None:
    (core.work / "needing.py").write_text(NEEDING)
    lines = core.done("python", "needing.py").splitlines()
    for extra, line in zip(("spark", "sketches", "postgres"), lines, strict=True):
        assert f'pip install "headrace[{extra}]"' in line
