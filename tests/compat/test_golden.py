"""Homes that earlier code has written are read and carried on by this code.

Each archive under ``golden/`` is named by the commit whose code wrote it, see ``make_golden``.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.compat.golden_jobs import JOBS, create, feed, open_job
from tests.compat.make_golden import STEPS, committed, headrace
from tests.support.homes import unpack

from headrace.testing import TestDriver

ARCHIVES = sorted((Path(__file__).parent / "golden").glob("[0-9a-f]*.tar.xz"))
GOLDEN = pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.split(".")[0])


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """What an archive holds, for all tests: to look into it takes as long as to unpack it."""

    @cache
    def unpacked(archive: Path) -> Path:
        folder = tmp_path_factory.mktemp("golden")
        unpack(archive, folder)
        return folder / "golden"

    return unpacked


def _home(golden: Path, name: str, place: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of the home of one job, and what its readers saw when it was written."""
    expected = json.loads((golden / "expected.json").read_text())
    return shutil.copytree(golden / name, place / name), expected[name]


def _rows(streams: Mapping[str, Any]) -> dict[str, Counter[str]]:
    return {name: Counter(row for part in parts for row in part) for name, parts in streams.items()}


@GOLDEN
@pytest.mark.parametrize("name", JOBS)
def test_what_is_there_is_seen_and_the_job_continues_as_one_that_never_stopped(
    golden: Callable[[Path], Path], archive: Path, name: str, tmp_path: Path
) -> None:
    home, expected = _home(golden(archive), name, tmp_path)
    with (
        open_job(JOBS[name], home) as driver,
        TestDriver(JOBS[name], tasks=1, slots=1) as other,
    ):
        assert committed(driver) == expected
        create(other)
        for step in range(STEPS):
            feed(other, step)
        for each in (driver, other):
            feed(each, STEPS)
            each.finish()
        found, wanted = committed(driver), committed(other)
    assert _rows(wanted["streams"]) == _rows(found["streams"])
    assert wanted["counts"] == found["counts"]
    assert wanted["stores"] == found["stores"]


@GOLDEN
def test_a_savepoint_begins_another_job(
    golden: Callable[[Path], Path], archive: Path, tmp_path: Path
) -> None:
    """It sends the windows that were open when the other one was saved."""
    home, before = _home(golden(archive), "windows", tmp_path)
    module = Path(__file__).parent / "golden_jobs.py"
    begin = ("run", f"{module}:windows", "--name", "second", "--from-savepoint", "golden")
    headrace(home, *begin, "--standalone", "--bounded")
    with open_job(JOBS["windows"], home) as driver:
        sent = _rows(committed(driver)["streams"])["w.tumbling"]
        driver.finish()
        both = _rows(committed(driver)["streams"])["w.tumbling"]
    old = _rows(before["streams"])["w.tumbling"]
    assert sent > old
    assert sent - old == both - sent  # the one that was saved sends them, too
