"""How commands fail: the message, the story in the log, the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import done, exit_code, record, refused

from headrace.errors import (
    ClosedError,
    CorruptDataError,
    GraphError,
    HeadraceError,
    InternalError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
)

SOURCE = Path(__file__).parents[3] / "src"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("x"), 1),
        (GraphError("job", ["x"]), 1),
        (UnavailableError("x"), 3),
        (NotOwnerError("x"), 4),
        (CorruptDataError("x"), 5),
        (ClosedError("x"), 70),
        (InternalError("x"), 70),
        (HeadraceError("x"), 70),
        (KeyError("x"), 70),
    ],
)
def test_each_kind_has_an_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_a_mistake_without_a_home_leaves_nothing_behind(home: Path) -> None:
    told = refused("bus", "tail", "s")

    assert told.startswith("error HR100: no stream 's'")
    assert "details:" not in told
    assert not home.exists()


def test_a_mistake_in_a_home_is_told_in_full_in_its_log(home: Path) -> None:
    done("bus", "create", "s", "--schema", "a:int64")

    told = refused("bus", "tail", "z")

    assert f"details: {home / 'logs' / 'headrace.log'}" in told
    log = (home / "logs" / "headrace.log").read_text()
    assert "Traceback" in log
    assert "no stream 'z'" in log


def test_a_wrong_setting_is_told_with_its_place(home: Path, tmp_path: Path) -> None:
    target = ("explain", "no.py")
    assert "--set job.task=3: unknown setting job.task; did you mean job.tasks?" in refused(
        *target, "--set", "job.task=3"
    )
    (tmp_path / "job.toml").write_text("[job]\ntasks = 'x'\n")
    assert f"{tmp_path}/job.toml:2: found 'x', expected integer" in refused(
        *target, "--config", tmp_path / "job.toml"
    )
    assert not home.exists()


def test_a_fault_of_ours_is_told_without_its_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("partition")

    monkeypatch.setattr("headrace.bus.file.FileBus.names", broken)

    told = refused("bus", "ls", code=70)

    assert "error HR900: an unexpected KeyError: 'partition'; this is a fault of headrace" in told
    assert "in broken" in (home / "logs" / "headrace.log").read_text()


def test_a_log_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")

    assert record(UnavailableError("x"), tmp_path) is None


def test_a_log_has_no_options_of_dataframes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "inputs.x.dataframe.options.password"
    words = ["headrace", "--set", f"{key}=hunter2", f"--set={key}=hunter2", "--set", "job.tasks=2"]
    words += ["--set", 'inputs.x.dataframe.options={password="hunter2"}']
    monkeypatch.setattr(sys, "argv", words)
    log = record(UnavailableError("away"), tmp_path)
    assert log is not None
    assert f"headrace --set {key}=... --set={key}=... --set job.tasks=2" in log.read_text()
    assert "hunter2" not in log.read_text()


def test_a_large_log_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "headrace.log"
    log.parent.mkdir()
    log.write_bytes(b"x" * (5 << 20))

    assert record(UnavailableError("the disk is gone"), tmp_path) == log

    assert "the disk is gone" in log.read_text()
    assert log.with_name("headrace.log.1").stat().st_size == 5 << 20


def test_the_command_loads_nothing_heavy() -> None:
    """--help has to answer at once, though it asks each command for a sentence."""
    heavy = ["pyspark", "pyarrow", "polars", "pandas", "numpy", "pydantic", "rocksdict"]
    code = (
        "import io, sys\nfrom contextlib import redirect_stdout, suppress\n"
        "from headrace.cli.main import app\nsys.argv = ['headrace', '--help']\n"
        "with suppress(SystemExit), redirect_stdout(io.StringIO()) as shown:\n    app()\n"
        "assert 'Measure Headrace' in shown.getvalue()\n"
        f"print([n for n in {heavy} if n in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert out.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (
            "bus ls",
            [
                *(".cli.jobs.commands", ".cli.cluster", ".graph", ".state", ".coordinator"),
                *("pyarrow.compute", "polars", "pandas", "rocksdict", "asyncio", "pydantic"),
            ],
        ),
        (
            "run word_job.py --standalone --bounded",
            [
                *("fastapi", "uvicorn", ".cli.cluster", ".sql", "pyspark", "py4j", "pydantic"),
                "prometheus_client",
            ],
        ),
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(
    words: str, unused: list[str], tmp_path: Path
) -> None:
    """A short run ends before anybody asks for its API."""
    (tmp_path / "word_job.py").write_text(
        'import headrace as hr\n\n@hr.job("words")\ndef words(g):\n'
        '    g.input("lines").send_to("copies")\n'
    )
    home = tmp_path / "home"
    done("bus", "create", "lines", "--schema", "line:string", "--home", home)
    names = [f"headrace{name}" if name.startswith(".") else name for name in unused]
    code = (
        "import sys\nfrom headrace.cli.main import app\n"
        f"sys.argv = ['headrace', *{[*words.split(), '--home', str(home)]}]\n"
        "try:\n    app()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"print([n for n in {names} if n in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert out.stdout.splitlines()[-1] == "[]"


ENDING = """
import atexit, sys, threading
from headrace.cli.main import main

atexit.register(print, "registered", flush=False)
if sys.argv.pop(1) == "waits":
    threading.Thread(target=lambda: threading.main_thread().join() or print("waited")).start()
main()
"""


@pytest.mark.parametrize(
    ("words", "code", "last"),
    [
        ("ends version", 0, ["registered"]),
        ("ends bus describe nothing", 1, ["registered"]),
        ("waits version", 0, ["waited", "registered"]),
    ],
)
def test_a_process_ends_when_all_is_done(
    words: str, code: int, last: list[str], tmp_path: Path
) -> None:
    """What is registered for the end is called, threads are waited for, and all is printed."""
    ran = subprocess.run(
        [sys.executable, "-c", ENDING, *words.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        timeout=60,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-len(last) :]) == (code, last), ran.stderr


def test_version_names_what_it_runs_on() -> None:
    out = done("version")

    assert all(name in out for name in ("headrace ", "pyspark 4", "python 3."))
    assert done("--version") == out, "as people type it"
