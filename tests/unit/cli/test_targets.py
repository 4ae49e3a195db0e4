"""``MODULE:JOB``: which job is meant, and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cli import load_job

from headrace.errors import InvalidInputError

Write = Callable[[str, str], Path]
JOB = """
import headrace as hr

@hr.job("{name}")
def {function}(g: hr.Graph) -> None:
    g.input("a").send_to(g.output("b"))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file below the working directory; what was imported is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before, paths = set(sys.modules), list(sys.path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield written
    sys.path[:] = paths
    for name in set(sys.modules) - before:
        del sys.modules[name]


def one(name: str, function: str) -> str:
    return JOB.format(name=name, function=function)


@pytest.mark.parametrize(
    "target",
    ["jobs_a", "jobs_a:radar", "jobs_a:delay-radar", "jobs_a.py", "./jobs_a.py:radar"],
)
def test_a_job_is_found_by_module_or_file(write: Write, target: str) -> None:
    write("jobs_a.py", one("delay-radar", "radar"))

    assert load_job(target).name == "delay-radar"


def test_a_file_elsewhere_finds_the_modules_beside_it(write: Write, tmp_path: Path) -> None:
    write("far/beside_b.py", "NAME = 'far'\n")
    write("far/jobs_b.py", "import beside_b\n" + one("far", "radar"))

    assert load_job("far/jobs_b.py").name == "far"
    assert str(tmp_path / "far") in sys.path


def test_a_file_of_a_package_is_imported_as_its_module(write: Write) -> None:
    write("pack_c/__init__.py", "")
    write("pack_c/inner/__init__.py", "")
    write("pack_c/names.py", "NAME = 'packed'\n")
    write("pack_c/inner/jobs.py", "from ..names import NAME\n" + one("packed", "radar"))

    job = load_job("pack_c/inner/jobs.py")

    assert (job.name, job.function.__module__) == ("packed", "pack_c.inner.jobs")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (":radar", "names no module; expected MODULE:JOB"),
        ("jobs_e.py:rader", "jobs_e.py has no job 'rader'; did you mean jobs_e.py:radar?"),
        ("jobs_e:zzz", "jobs_e has no job 'zzz'; expected jobs_e:radar or jobs_e:other"),
        ("jobs_e", "defines 2 jobs; say which: jobs_e:radar or jobs_e:other"),
        ("jobs_e:hr", "'hr' in jobs_e is a module, not a job"),
        ("jobs_f.py", "no file jobs_f.py; did you mean jobs_e.py?"),
        ("nowhere/x.py", "no file nowhere/x.py; check the path"),
        ("job_e", "no module 'job_e'; did you mean jobs_e?"),
        ("jobs_e.inner", "no module 'jobs_e.inner'"),
        ("zzzz", "no module 'zzzz'; the working directory has broken_e, empty_e, failing_e,"),
        ("empty_e", 'empty_e defines no job; write @hr.job("name") above'),
        ("missing_e", "it imports 'no_such_library', which is not installed"),
        ("missing_e", "missing_e.py:2)"),
        ("broken_e", "broken_e is not Python: '(' was never closed"),
        ("failing_e.py", "failed while it was loaded: ZeroDivisionError: division by zero"),
        ("failing_e.py", "failing_e.py:3)"),
        ("json.py", "cannot be imported as 'json': that name belongs to"),
    ],
)
def test_what_is_missing_is_told(write: Write, target: str, told: str) -> None:
    write("jobs_e.py", one("first", "radar") + one("second", "other"))
    write("empty_e.py", "")
    write("missing_e.py", "\nimport no_such_library\n")
    write("broken_e.py", "print(\n")
    write("failing_e.py", "\n\n1 / 0\n")
    write("json.py", one("first", "radar"))

    with pytest.raises(InvalidInputError) as caught:
        load_job(target)

    assert told in caught.value.message
