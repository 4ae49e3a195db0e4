"""Tables ``[inputs.NAME]``: from a file, the environment and ``--set``; what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_settings
from headrace.errors import InvalidInputError

FILE = """
[inputs.flights]
files = ["/data/*.parquet", "s3://bucket/more"]
from = 2013-01-01
to = "2013-02-01T12:00"
partitions = 3

[inputs."shop.raw"]
table = "events"
days = "2013-01-01..2013-01-31"
"""


def test_a_file_and_words_on_the_command_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(FILE)
    words = [
        "inputs.flights.files=/data/*.parquet,s3://bucket/more",
        "inputs.flights.from=2013-01-01",
        "inputs.flights.to=2013-02-01T12:00",
        "inputs.flights.partitions=3",
        "inputs.shop.raw.table=events",
        "inputs.shop.raw.days=2013-01-01..2013-01-31",
    ]
    found = load_settings(file, environ={}).inputs
    assert found == load_settings(None, words, environ={}).inputs
    assert found["flights"].text == (
        "files /data/*.parquet, s3://bucket/more, from 2013-01-01, to 2013-02-01T12:00"
    )
    assert found["flights"].begin_ms == 1_356_998_400_000
    assert found["shop.raw"].text == "table events, days 2013-01-01..2013-01-31"


def test_offsets_are_one_for_all_or_one_for_each() -> None:
    environ = {"HEADRACE__INPUTS__FLIGHTS__FROM_OFFSET": "7"}
    settings = load_settings(None, ["inputs.flights.to_offset=8,9"], environ=environ)
    given = settings.inputs["flights"]
    assert (given.from_offset, given.to_offset) == ((7,), (8, 9))
    assert given.text == "from offset 7, to offset 8, 9"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "inputs.x.fils=1",
            r"unknown setting inputs\.x\.fils; of an input there are files",
        ),
        ("inputs=3", "expected a table of settings"),
        ("inputs.x.days=2013-01-01", r"setting inputs\.x: days goes with table, found stream"),
        ("inputs.x.from=soon", r"setting inputs\.x: from is 'soon'; expected"),
        ("inputs.x.from=latest", "from is 'latest'; expected an event time"),
        ("inputs.x.format=xml", r"setting inputs\.x\.format: .*'parquet', 'csv' or 'jsonl'"),
        ("inputs.x.partitions=0", r"setting inputs\.x\.partitions"),
        ("inputs.x.files=", r"setting inputs\.x: files has an empty path"),
        ("inputs.x.files=a.csv,", "files has an empty path"),
        ("inputs.x.to_offset=-1", "offsets begin at 0, found one below it"),
        ("inputs.x.from_offset=a", r"setting inputs\.x\.from_offset"),
    ],
)
def test_a_mistake_names_the_input(word: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_settings(None, [word], environ={})


def test_times_are_in_their_order() -> None:
    words = ["inputs.x.from=2013-02-01", "inputs.x.to=2013-01-01"]
    with pytest.raises(InvalidInputError, match=r"to is '2013-01-01'; expected a time after from"):
        load_settings(None, words, environ={})


def test_an_input_is_of_one_kind() -> None:
    with pytest.raises(InvalidInputError, match="files and table are given; expected one of them"):
        load_settings(None, ["inputs.x.files=a.csv", "inputs.x.table=t"], environ={})
