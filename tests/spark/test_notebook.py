"""A notebook with one session: Spark reads and joins, a job processes, Spark SQL queries it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.processes import ROOT, WITH_FRAMES

pytestmark = pytest.mark.spark

BOOK = ROOT / "examples" / "notebooks" / "spark_session.ipynb"


def test_a_notebook_queries_the_result_of_a_job_that_runs_in_its_session(tmp_path: Path) -> None:
    """Its cells wait for what the job made of the sales, and would raise without it."""
    import nbclient  # for this test alone
    import nbformat

    kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADRACE_")}
    own = {**WITH_FRAMES, "JUPYTER_PLATFORM_DIRS": "1", "HOME": str(tmp_path)}
    book = nbformat.read(BOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, resources=resources).execute(env={**kept, **own})
    shown = {
        cell.id: cell.outputs[0].data["text/plain"]
        for cell in book.cells
        if cell.cell_type == "code" and cell.outputs and "data" in cell.outputs[0]
    }
    assert "Row(section='drinks', n=1, cents=300), Row(section='food', n=1" in shown["query"]
    assert "Row(section='drinks', n=3, cents=1000), Row(section='food', n=1" in shown["more"]
    assert shown["state"].replace("\n", "") == shown["more"].replace("\n", "")
