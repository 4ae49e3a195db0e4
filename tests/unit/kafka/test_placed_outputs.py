"""Outputs that the settings put elsewhere, without a broker."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.runs import World

import headrace as hr
from headrace import Job
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver

TOPIC = "kafka://localhost:1/elsewhere"


def copying(target: Any = "copied") -> Job:
    @hr.job("copying")
    def job(g: hr.Graph) -> None:
        g.input("file:rows", schema={"id": int}).send_to(target)

    return job


def in_parts(via: str) -> Job:
    @hr.job("in-parts")
    def job(g: hr.Graph) -> None:
        rows = g.input("file:rows", schema={"id": int}).partition_by("id", via=via, name="by-id")
        rows.send_to("copied")

    return job


def copied(job: Job, outputs: dict[str, dict[str, str]], stream: str) -> list[int]:
    with TestDriver(job, outputs=outputs) as driver:
        driver.create("rows", {"id": pa.int64()})
        driver.feed("rows", [{"id": 7}])
        driver.run()
        return [row["id"] for row in driver.output(stream)]


def test_a_stream_takes_the_place_of_a_topic_or_of_another_stream() -> None:
    outputs = {"elsewhere": {"address": "file:kept"}}
    assert copied(copying(TOPIC), outputs, "kept") == [7]
    assert copied(copying("file:elsewhere"), outputs, "kept") == [7]


def test_outputs_that_are_not_named_stay_where_they_are() -> None:
    assert copied(copying(), {"other": {"address": TOPIC}}, "copied") == [7]


def test_a_backfill_keeps_what_would_go_to_a_topic() -> None:
    apart = dataclasses.replace(copying(), name="again", apart="again")
    outputs = {"copied": {"address": TOPIC}}
    assert copied(apart, outputs, "again.rows.to_copied") == [7]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("kafak://host:1/topic", r"setting outputs\.copied\.address: .*no kind of log 'kafak'"),
        ("kafka:///topic", r"setting outputs\.copied\.address: .*expected kafka://HOST"),
        ("file:no/name", r"setting outputs\.copied\.address: 'no/name' cannot name a stream"),
        (f"{TOPIC}?key=user", r"key column 'user' is not there; found \['id'\]"),
    ],
)
def test_a_mistake_names_the_setting(address: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        copied(copying(), {"copied": {"address": address}}, "copied")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("file:kept", r"setting outputs\.by-id\.address is 'file:kept', but the stream between"),
        (
            "kafka:///topic",
            r"setting outputs\.by-id\.address: via kafka:///topic: .*expected kafka://",
        ),
        (f"{TOPIC}?key=id", r"setting outputs\.by-id\.address: via kafka://"),
    ],
)
def test_a_mistake_between_two_parts_names_the_setting(address: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        copied(in_parts(TOPIC), {"by-id": {"address": address}}, "copied")


def test_the_bus_takes_the_place_of_a_topic_between_two_parts() -> None:
    assert copied(in_parts(TOPIC), {"by-id": {"address": "file:"}}, "copied") == [7]


def test_what_is_given_on_the_command_has_to_be_an_output(tmp_path: Path) -> None:
    settings = World(tmp_path / "home").settings(f"outputs.copid.address={TOPIC}")
    with pytest.raises(InvalidInputError, match=r"outputs\.copid are of no output; did you mean"):
        hr.run(copying(), settings)


def test_explain_shows_where_an_output_goes(tmp_path: Path) -> None:
    code = tmp_path / "placed_outputs.py"
    code.write_text(
        'import headrace as hr\n\n\n@hr.job("copying")\ndef job(g: hr.Graph) -> None:\n'
        '    g.input("rows", schema={"id": int}).send_to("copied")\n'
    )
    place = ["--home", str(tmp_path / "home")]
    word = ["--set", f"outputs.copied.address={TOPIC}?key=id"]
    shown = done("explain", f"{code}:job", *place, *word)
    assert "Kafka topic elsewhere, json, key id" in " ".join(shown.split())
