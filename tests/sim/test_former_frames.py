"""Inputs that were Spark DataFrames, and are streams since."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.homes import load_settings
from tests.support.runs import deployed

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    g.input("clicks", name="seen").send_to(g.output("copies"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A job that has read five rows, of a DataFrame by what its storage says."""
    with TestDriver(visits, home=tmp_path, memory_bus=False) as driver:
        driver.create("clicks", {"n": pa.int64()})
        driver.feed("clicks", [{"n": n} for n in range(5)])
        driver.run()
    note(tmp_path).parent.mkdir(parents=True)
    note(tmp_path).write_text("1 born ")
    return tmp_path


def note(home: Path) -> Path:
    return home / "jobs" / "visits" / "frames" / "seen" / "run"


def deploy(home: Path, *sets: str) -> None:
    deployed(visits, load_settings(None, [f"home={home}", *sets], {}))


def reset(home: Path, where: str) -> None:
    done("jobs", "reset", "visits", "--from", where, "--home", home)


def test_offsets_of_a_dataframe_are_not_taken_for_those_of_a_stream(home: Path) -> None:
    deploy(home)
    assert note(home).exists(), "in the middle of a run it may go on as it was"
    reset(home, "latest")
    with pytest.raises(InvalidInputError) as refused:
        deploy(home)
    assert refused.value.message == (
        "job 'visits' was reset to offsets of input 'seen' as it was, a Spark DataFrame, and now "
        "it is another: stream 'clicks'; begin without them: headrace jobs delete visits"
    )
    assert note(home).exists()


def test_from_the_first_row_a_stream_may_be_read_and_be_reset_as_any(home: Path) -> None:
    reset(home, "earliest")
    deploy(home)
    assert not note(home).exists()
    reset(home, "latest")
    deploy(home)
