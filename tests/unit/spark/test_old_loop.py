"""The setting of a loop that drove epochs by a query, which has no effect any more."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.config import load_settings
from headrace.coordinator.job_storage import DriverLock
from headrace.errors import NotOwnerError
from headrace.spark.run import run_job


@hr.job("looped")
def looped(g: hr.Graph) -> None:
    g.input("rows", schema={"k": str}).send_to(g.output("out"))


@pytest.mark.parametrize("loop", ["query", "direct"])
def test_a_run_with_the_loop_that_has_gone_says_so(tmp_path: Path, loop: str) -> None:
    settings = load_settings(None, [f"home={tmp_path}", f"spark.loop={loop}"], {})
    said: list[str] = []

    # Refused by the lock of another driver: no Spark starts.
    with (
        DriverLock(settings.jobs_dir / "looped", "looped"),
        pytest.raises(NotOwnerError, match="already driven"),
    ):
        run_job(looped, settings, on_notice=said.append)

    wanted = ["spark.loop=query has no effect"] if loop == "query" else []
    assert [line.partition(":")[0] for line in said] == wanted
