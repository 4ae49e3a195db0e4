"""Commands and slots run jobs without pandas where it is installed; what wants it gets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from typer.testing import CliRunner
from headrace.arrow_without_pandas import keep_pandas_out

keep_pandas_out()
keep_pandas_out()
from headrace.cli.main import app

def done(words):
    ran = CliRunner().invoke(app, words.split())
    assert ran.exit_code == 0, ran.output

done("bus create rows --schema page:string,n:int64,at:timestamp --time at --key page")
done("bus append rows rows.jsonl")
done("run counts.py --standalone --bounded")
assert "pandas" not in sys.modules
{way}
assert "pandas" in sys.modules
import pandas as pd, pyarrow as pa
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
assert pd.DataFrame({{"n": [1]}}).equals(pa.table({{"n": [1]}}).to_pandas())
done("run counts.py --standalone --bounded")
"""
JOB = """\
import headrace as hr


def shown(page) -> str:
    {body}
    return str(page)


@hr.job("counts")
def counts(g):
    rows = g.input("rows", time="at").map(lambda m: {{"page": shown(m.page), "n": m.n}},
                                          returns={{"page": str, "n": int}})
    counted = rows.partition_by("page").window(hr.tumbling("1m"), n=hr.agg.sum("n"))
    counted.send_to(g.output("counted"))
"""
ROWS = [{"page": "/", "n": n, "at": f"2026-01-01T00:00:{n:02}Z"} for n in range(9)]
WAYS = [
    "import pandas",
    "from importlib import import_module; import_module('pandas.api.types')",
    "import pyarrow as pa; assert pa.table({'n': [1]}).to_pandas()['n'].sum() == 1",
    "import polars as pl; assert pl.DataFrame({'n': [1]}).to_pandas()['n'].sum() == 1",
    "import headrace as hr; assert len(hr.read('counted').to_pandas()) == 1",
]


def made(folder: Path, body: str = "") -> None:
    (folder / "counts.py").write_text(JOB.format(body=body))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))


def ran(folder: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_job_runs_without_pandas_and_what_asks_for_it_gets_it(way: str, tmp_path: Path) -> None:
    """Arrow then knows its values, as where it was loaded first."""
    made(tmp_path)
    ran(tmp_path, PROGRAM.format(way=way))


@pytest.mark.parametrize(
    "body",
    [
        "import pandas as pd; assert str(pd.Timestamp(0)) == '1970-01-01 00:00:00'",
        "import polars as pl; assert pl.DataFrame({'n': [1]}).to_pandas().shape == (1, 1)",
        "import pyarrow as pa; assert pa.table({'n': [1]}).to_pandas().shape == (1, 1)",
    ],
)
def test_a_function_of_a_job_gets_pandas(body: str, tmp_path: Path) -> None:
    made(tmp_path, body)
    ran(tmp_path, PROGRAM.replace('assert "pandas" not in sys.modules\n', "").format(way=""))
