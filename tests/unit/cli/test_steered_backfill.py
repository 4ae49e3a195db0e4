"""A backfill while it runs: paused, gone on with, and how far it is."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import app, done
from tests.support.processes import until
from tests.support.watching import Client
from typer.main import get_command

import headrace as hr
from headrace.testing import TestDriver, each_at

USERS = "abcdefgh"
NAME = "sums-backfill"


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    rows = g.input("in", time="at").partition_by("user")
    rows.aggregate(n=hr.agg.sum("n")).send_to(g.output("out"), name="out")


class Asked:
    """Asks the driver to pause from its own thread, after its first epoch that read rows."""

    def __init__(self, home: Path) -> None:
        self._root, self.is_done = home / "jobs" / NAME, False

    def __call__(self) -> None:
        if not self.is_done:
            Client(self._root, NAME).post("/v1/pause")
            self.is_done = True


def top(home: Path) -> Any:
    return json.loads(done("jobs", "top", NAME, "--json", "--home", home))


def test_it_is_paused_tells_how_far_it_is_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TestDriver(sums, home=tmp_path, memory_bus=False) as live:
        live.create("in", {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
        live.feed("in", [{"user": user, "n": 1, "at": 0} for user in USERS])
        target = ("backfill", f"{__name__}:sums", "--from", "1970-01-01", "--standalone")
        words = [*target, "--set", "epoch.max_rows=3", "--home", str(tmp_path)]
        backfill = threading.Thread(
            target=lambda: get_command(app).main(words, standalone_mode=False), daemon=True
        )
        asked = Asked(tmp_path)
        with each_at("epoch.published", asked):
            backfill.start()
            until(lambda: asked.is_done, "the first epoch", 30)
            until(lambda: top(tmp_path)["lag"] == 5, "it to be told of", 30)
            assert (top(tmp_path)["status"], top(tmp_path)["eta_s"]) == ("paused", None)
            assert "5 rows behind" in done("jobs", "top", NAME, "--once", "--home", tmp_path)
            (shown,) = json.loads(f"[{done('jobs', 'ls', '--json', '--home', tmp_path)}]")
            assert (shown["job"], shown["status"]) == (NAME, "paused")
            done("jobs", "resume", NAME, "--home", tmp_path)
            backfill.join(30)
        assert not backfill.is_alive()
        assert {row["user"]: row["n"] for row in live.output("out.backfill")} == dict.fromkeys(
            USERS, 1
        )
    assert capsys.readouterr().out.startswith(f"{NAME}: 8 rows in ")
