"""``headrace init`` makes a project that works; ``headrace dev`` runs it whenever it changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import done, headrace, refused
from tests.support.processes import LEAN, end_group

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "next: cd my-shop && headrace dev my_shop_job.py" in done("init", "my-shop")
    yield tmp_path / "my-shop"
    sys.modules.pop("my_shop_job", None)


def process(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{LEAN}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_test_of_a_new_project_passes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it needs none of our plugins
    with process("-m", "pytest", "-q", "-p", "no:cacheprovider") as ran:
        assert ran.stdout is not None
        out = ran.stdout.read()
    assert ran.returncode == 0, out
    assert "2 passed" in out


def test_the_job_runs_on_its_sample_data(project: Path) -> None:
    out = done("dev", project / "my_shop_job.py", "--once", "-n", 2, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["stream"] for row in rows] == ["spending", "spending"]
    assert "the last 2" in done("dev", project / "my_shop_job.py", "--once", "-n", 2)


def test_the_notebook_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    book = json.loads((project / "notebook.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec(cell["source"], names)
    assert len(names["spending"]) == 30  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [("my-shop", "is not empty; give another name"), ("1st", "'1st' cannot name a project")],
)
def test_a_name_that_cannot_be_is_refused(project: Path, name: str, message: str) -> None:
    assert message in refused("init", name)


def test_what_is_wrong_with_sample_data_is_told(project: Path) -> None:
    job = project / "my_shop_job.py"
    data = project / "data" / "orders.jsonl"
    csv = project / "o.csv"
    csv.write_text("customer,cents\nada,5\n")
    told = refused("dev", job, "--once", "--data", f"orders={csv}")
    assert "has no column 'at', the event time of 'orders'" in told
    assert "no file none.csv; check --data" in refused(
        "dev", job, "--once", "--data", "orders=none.csv"
    )
    data.unlink()
    assert f"no sample data of stream 'orders'; expected {data.parent}/orders.jsonl" in refused(
        "dev", job, "--once"
    )
    assert headrace("dev", job, "--once", "--data", "orders").code == 2


def test_a_change_runs_it_again(project: Path) -> None:
    """Also a change that is no Python; also one that Python takes for what it compiled before."""
    job, draft = project / "my_shop_job.py", project / "draft"

    def save(text: str) -> None:
        """Write the job within the second of what it was, whenever that is."""
        before = job.stat().st_mtime_ns
        draft.write_text(text)
        os.utime(draft, ns=(before, before + (1 if before % 10**9 < 10**9 - 1 else -1)))
        draft.replace(job)

    running = process("-m", "headrace.cli.main", "dev", str(job), "-n", "1")
    try:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, "")

        def until(text: str, but: str = "error") -> str:
            """The line with a text; a mistake that nobody waits for is not waited out."""
            line = next(line for line in lines if text in line or but in line)
            assert text in line, line
            return line

        until("done in")
        good = job.read_text()
        save(good.replace("cents=hr", "spent=hr"))
        assert "spent=" in until("customer=")
        save("no python")
        assert "error HR100" in until("error")
        save(good)
        assert "cents=" in until("customer=")
    finally:
        end_group(running)
        if running.stdout is not None:
            running.stdout.close()
