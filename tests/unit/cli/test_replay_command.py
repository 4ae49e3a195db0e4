"""``headrace jobs replay``: what it writes is a test's input, and what it says how to use it."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.errors import UserFunctionError
from headrace.testing import TestDriver


def ratio(row: Any) -> dict[str, float]:
    return {"ratio": row.n / row.d}


@hr.job("ratios")
def ratios(g: hr.Graph) -> None:
    pairs = g.input("pairs", time="at")
    pairs.map(ratio, returns={"ratio": float}, name="divide").send_to(g.output("out"))
    pairs.partition_by("d").aggregate(n=hr.agg.sum("n"), name="sums")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    with TestDriver(ratios, tasks=2, home=home, memory_bus=False) as made:
        columns = {"n": pa.int64(), "d": pa.int64(), "at": pa.int64()}
        made.create("pairs", columns, partitions=2, time="at")
        made.feed("pairs", [{"n": 1, "d": 2, "at": 5}], partition=0)
        made.run()
        yield made


def fail(driver: TestDriver) -> None:
    driver.feed("pairs", [{"n": 3, "d": 4, "at": 6}, {"n": 1, "d": 0, "at": 7}], partition=1)
    with pytest.raises(UserFunctionError):
        driver.advance()


def test_the_epoch_that_fails_while_the_job_has_a_driver(driver: TestDriver) -> None:
    fail(driver)
    said = done("jobs", "replay", "ratios", "--home", driver.home)
    assert "2 of ratios, which failed" in said
    assert "HR102" in said
    assert "2 rows of pairs" in said
    assert "ratios-2.replay" in said
    assert 'with TestDriver.replay(ratios, "ratios-2.replay") as driver:' in said
    assert "raised UserFunctionError" in said
    path = Path("ratios-2.replay")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with TestDriver.replay(ratios, path) as replay:
        with pytest.raises(UserFunctionError, match="division by zero") as raised:
            replay.advance()
        assert 'return {"ratio": row.n / row.d}' in raised.value.__notes__[0]


def test_a_committed_epoch_as_json(driver: TestDriver) -> None:
    said = done(
        "jobs", "replay", "ratios", "--epoch", 1, "-o", "one", "--json", "--home", driver.home
    )
    found = json.loads(said)
    assert (found["job"], found["epoch"], found["kind"], found["error"]) == (
        *("ratios", 1, "committed"),
        None,
    )
    assert (found["rows"], found["streams"]) == (1, {"pairs": 1})
    assert found["bytes"] == Path("one").stat().st_size
    with TestDriver.replay(ratios, "one") as replay:
        replay.advance()
        assert replay.output("out") == [{"ratio": 0.5}]


def test_secrets_of_settings_stay_out(driver: TestDriver) -> None:
    secret = "remote.url=redis://user:hunter2@localhost:6379/0"
    more = ("--set", secret, "--set", "spark.conf.x.password=hunter2")
    done("jobs", "replay", "ratios", "--epoch", 1, "-o", "one", *more, "--home", driver.home)
    with zipfile.ZipFile("one") as archive:
        assert not any(b"hunter2" in archive.read(name) for name in archive.namelist())


def test_what_cannot_be_is_refused(driver: TestDriver) -> None:
    home = ("--home", driver.home)
    assert "is not there yet" in refused("jobs", "replay", "ratios", "--epoch", 7, *home)
    assert "no committed epoch of job 'nobody'" in refused("jobs", "replay", "nobody", *home)
    found = refused("jobs", "replay", "ratios", "--epoch", 1, "--task", "x/0", *home)
    assert "has no task 'x/0'; it has" in found
