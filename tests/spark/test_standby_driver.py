"""``headrace run --standby``: a driver that waits, warm, and follows one that dies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done
from tests.support.processes import is_alive, until
from tests.support.runs import WITHOUT_PAGES
from tests.support.shop import ROWS, Shop, ended

pytestmark = pytest.mark.spark

QUICK = [word for one in WITHOUT_PAGES for word in ("--set", one)]
RUN = ("run", "shop.py:counts", "--master", "local[2]", "--json", *QUICK)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Shop(tmp_path)
    yield made
    made.close()
    sys.modules.pop("shop", None)


def described() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done("jobs", "describe", "counts", "--json"))
    return found


@pytest.mark.timeout(300)
def test_a_standby_driver_follows_one_that_is_killed(shop: Shop) -> None:
    """It waits while the other lives, loses and doubles nothing, and ends with the job."""
    first = shop.start(*RUN)
    until(lambda: shop.counted().total() == ROWS, "the first rows")
    second = shop.start(*RUN, "--standby", "--supervise")
    until(lambda: any(one["warm"] for one in described()["standby_drivers"]), "a warm standby")
    (standby,) = described()["standby_drivers"]
    assert standby["process"] != second.pid  # its child is
    assert f"process {standby['process']} on {standby['host']}, warm" in done(
        "jobs", "describe", "counts"
    )
    assert described()["process"] == first.pid
    first.kill()
    shop.order()
    until(lambda: shop.counted().total() == ROWS + 1, "the row after the kill")
    assert all(count == 1 for count in shop.counted().values())
    found = described()
    assert (found["process"], found["standby_drivers"]) == (standby["process"], [])
    assert found["generation"] == 2
    done("jobs", "stop", "counts")
    assert ended(second)[0] == 130
    assert not is_alive(standby["process"])
