"""``headrace run`` in a process of its own: watched, paused, stopped and gone on from."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done, headrace, refused
from tests.support.processes import until
from tests.support.shop import CUSTOMERS, EXPECTED, ROWS, Shop, ended, next_line, objects

RUN = ("run", "shop.py:counts", "--standalone")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Shop(tmp_path)
    yield made
    made.close()
    sys.modules.pop("shop", None)


def one(*words: object) -> dict[str, Any]:
    (found,) = objects(done(*words, "--json"))
    return found


def test_a_wrong_job_is_told_before_anything_starts(shop: Shop) -> None:
    for where in ((), ("--standalone",)):
        told = refused("run", "shop.py:count", "--bounded", *where)
        assert "shop.py has no job 'count'; did you mean shop.py:counts?" in told
    assert not (shop.folder / ".headrace" / "jobs").exists()


def test_a_second_driver_is_refused(shop: Shop) -> None:
    process = shop.start(*RUN, "--json")
    next_line(process.stdout)
    assert f"is already driven by process {process.pid}" in refused(*RUN, code=4)
    on_spark = ("run", "shop.py:counts", "--master", "local[2]")
    assert f"is already driven by process {process.pid}" in refused(*on_spark, code=4)


def test_a_running_job_is_watched_paused_and_resumed(shop: Shop) -> None:
    def has(rows: int) -> bool:
        return shop.counted().total() == rows

    def told() -> list[str]:
        return [event["state"] for event in one("alerts", "ls", "counts")["events"]]

    rule = 'alerts.rules=[{"name": "behind", "kind": "lag", "above": 0}]'
    running = shop.start(*RUN, "--json", "--set", rule)
    until(lambda: has(ROWS), "the first rows")

    found = one("jobs", "top", "counts")
    assert (found["status"], found["counts"]["in"]) == ("running", ROWS)
    assert found["epochs"][-1]["steps_ms"]["level 0"] > 0
    for words in (("ls",), ("describe", "counts"), ("why", "counts"), ("history", "counts")):
        assert one("jobs", *words)["live"] is True, words
    assert done("jobs", "pause", "counts") == "counts is paused\n"
    shop.order()
    assert done("jobs", "top", "counts").startswith("counts is paused:")
    assert has(ROWS)
    until(lambda: told()[-1:] == ["firing"], "the alert")

    assert done("jobs", "resume", "counts") == "counts is running\n"
    until(lambda: has(ROWS + 1), "the last row")
    done("jobs", "stop", "counts")
    assert ended(running)[0] == 130
    assert "no driver of job 'counts' answers" in refused("jobs", "top", "counts")
    assert told()[-1] == "over"  # it looks once more when it ends
    (keys,) = one("jobs", "hot-keys", "counts")["hot_keys"]
    assert (keys["columns"], len(keys["keys"])) == (["customer"], 10)
    assert 0 < keys["rows"] <= ROWS + 1  # what is older counts less


def test_another_job_goes_on_from_a_savepoint(shop: Shop) -> None:
    """Of the running job, and of the one that it was stopped with: the counts go on."""
    running = shop.start(*RUN, "--json")
    until(lambda: shop.counted().total() == ROWS, "the first rows")
    made = one("jobs", "savepoint", "counts", "--name", "live")
    assert (made["live"], made["epoch"] >= 1) == (True, True)
    stopped = one("jobs", "stop", "counts", "--savepoint")
    assert ended(running)[0] == 130
    assert (stopped["by"], stopped["goes_on_in"]) == ("api", [])
    assert stopped["savepoint"]["epoch"] == stopped["epoch"]
    shop.order()

    for name, word in (("one", "live"), ("two", stopped["savepoint"]["path"])):
        ran = headrace(*RUN, "--name", name, "--from-savepoint", word, "--bounded")
        begins = f"job {name} begins with epoch" in ran.err
        assert (ran.code, name in ran.out, begins) == (0, True, True), ran.err

    assert shop.counted() - EXPECTED == Counter({(1, ROWS // CUSTOMERS + 1): 2})
