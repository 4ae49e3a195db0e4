"""What is said of inputs that a job does not read: refused where it was said for this run."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.bus.memory import MemoryBus
from headrace.config import load_settings
from headrace.errors import InvalidInputError
from headrace.sources.bounded_bus import preview_inputs


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    g.input("clicks", schema={"user": str}).send_to(g.output("out"))
    g.input("shop-*", name="shops", schema={"user": str}).send_to(g.output("out"), name="more")


def refusal(*words: str, file: Path | None = None) -> str:
    settings = load_settings(file, words, environ={})
    with pytest.raises(InvalidInputError) as refused:
        preview_inputs(visits.build(), MemoryBus(), settings)
    return refused.value.message


def test_an_input_of_the_command_that_the_job_has_not_is_refused() -> None:
    assert refusal("inputs.click.files=a.csv") == (
        "settings inputs.click are of no input; did you mean 'clicks'? "
        "job 'visits' reads clicks, shop-*"
    )
    assert "job 'visits' reads clicks, shop-*" in refusal("inputs.rates.from=2013-01-01")
    assert "which is a pattern" in refusal("inputs.shop-*.files=a.csv")


def test_a_file_of_settings_may_be_that_of_several_jobs(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[inputs.of_another_job]\nfiles = "a.csv"\n')
    bus = MemoryBus()
    assert preview_inputs(visits.build(), bus, load_settings(file, (), environ={})) is bus
