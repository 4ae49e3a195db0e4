"""Spark DataFrames in ``[inputs.NAME]``: how they are written, what is wrong, what is not shown."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from headrace.config import load_settings
from headrace.config.inputs import FrameSettings
from headrace.errors import InvalidInputError
from headrace.spark.submission import settings_toml

FILE = """
[inputs.flights]
dataframe.format = "jdbc"
dataframe.options = { url = "jdbc:x", password = "hunter2", fetchsize = 10, "a.b" = true }
dataframe.select = ["at", "cast(price as double) price"]
dataframe.where = "price > 0"
time = "at"
partitions = 3
from = 2013-01-01

[inputs."shop.raw".dataframe]
table = "lake.db.events"
streaming = true
"""


def test_a_file_and_words_on_the_command_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(FILE)
    words = [
        "inputs.flights.dataframe.format=jdbc",
        "inputs.flights.dataframe.options.url=jdbc:x",
        "inputs.flights.dataframe.options.fetchsize=10",
        "inputs.flights.dataframe.options.a.b=true",
        "inputs.flights.dataframe.select=at, cast(price as double) price",
        "inputs.flights.dataframe.where=price > 0",
        "inputs.flights.time=at",
        "inputs.flights.partitions=3",
        "inputs.flights.from=2013-01-01",
        "inputs.shop.raw.dataframe.table=lake.db.events",
        "inputs.shop.raw.dataframe.streaming=true",
    ]
    environ = {"HEADRACE__INPUTS__FLIGHTS__DATAFRAME__OPTIONS__PASSWORD": "hunter2"}
    found = load_settings(file, environ={}).inputs
    assert found == load_settings(None, words, environ=environ).inputs
    assert found["flights"].text == (
        "Spark DataFrame of jdbc, where price > 0, select at, cast(price as double) price, "
        "from 2013-01-01"
    )
    assert found["shop.raw"].text == "streaming Spark DataFrame of table lake.db.events"


def test_what_says_which_rows_is_told_and_no_other_option() -> None:
    words = ["format=kafka", "options.subscribe=a,b", "options.kafka.sasl.jaas.config=hunter2"]
    settings = load_settings(None, [f"inputs.x.dataframe.{word}" for word in words], {})
    assert settings.inputs["x"].text == "Spark DataFrame of kafka, subscribe a,b"
    shown = settings.explain("inputs")
    assert shown.value == "x: Spark DataFrame of kafka, subscribe a,b"
    assert "--set inputs.x.dataframe.options.kafka.sasl.jaas.config=..." in shown.source
    for text in (str(shown), repr(settings), str(settings.sources)):
        assert "hunter2" not in text


def test_a_submitted_job_gets_them_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(FILE + '\n[[alerts.rules]]\nname = "a"\nkind = "no_output"\nfor = "10m"\n')
    before = load_settings(file, [], {})
    sent = tmp_path / "sent.toml"
    sent.write_text(settings_toml(before, "yarn"))
    after = load_settings(sent, [], {})
    assert (after.inputs, after.alerts) == (before.inputs, before.alerts)
    assert after.inputs["flights"].dataframe is not None
    assert after.inputs["flights"].dataframe.options["password"] == "hunter2"


def test_a_stream_may_be_called_like_an_internal_one() -> None:
    found = load_settings(None, ["inputs.job.rows.dataframe.files=a.csv"], {}).inputs
    assert found["job.rows.dataframe"].files == ("a.csv",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataframe=csv"], r"unknown setting inputs\.x\.dataframe; of an input there are files"),
        (["dataframe.fromat=csv"], r"unknown setting inputs\.x\.dataframe\.fromat; .*\.format"),
        (["dataframe.option.key=hunter2"], r"--set inputs\.x\.dataframe\.option\.key=\.\.\.: unkn"),
        (["dataframe.load=a"], r"inputs\.x\.dataframe: there is no format; expected one of Spark"),
        (
            ["dataframe.options=a"],
            r"--set inputs\.x\.dataframe\.options=\.\.\.: expected a table; giv",
        ),
        (["dataframe.options=a", "dataframe.options.sep=;"], r"by itself: .*\.options\.NAME=VALUE"),
        (["dataframe.format="], r"inputs\.x\.dataframe: format is empty"),
        (["dataframe.format=csv", "dataframe.table=t"], "format and table are given; expected one"),
        (["dataframe.table=t", "dataframe.load=a"], "load and table are given; expected one"),
        (["dataframe.format=csv", "files=a.csv"], "files and dataframe are given; expected one"),
        (["dataframe.format=csv", "days=2013-01-01"], "days goes with table, found dataframe"),
        (["dataframe.format=csv", "from_offset=1"], "from_offset goes with stream, found datafr"),
        (
            ["dataframe.format=csv", "dataframe.streaming=often"],
            r"x\.dataframe\.streaming: expected true or false",
        ),
        (["time=at", "from=2013-01-01"], "time goes with files or dataframe, found stream"),
    ],
)
def test_a_mistake_names_the_setting(words: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_settings(None, [f"inputs.x.{word}" for word in words], {})


def test_a_password_in_the_environment_is_there_for_commands_without_the_file(
    tmp_path: Path,
) -> None:
    environ = {"HEADRACE__INPUTS__FLIGHTS__DATAFRAME__OPTIONS__PASSWORD": "hunter2"}
    settings = load_settings(None, [], environ)
    assert (settings.inputs, settings.sources) == ({}, {})
    other = load_settings(None, ["inputs.flights.files=a.csv"], environ).inputs["flights"]
    assert (other.text, other.dataframe) == ("files a.csv", None)
    file = tmp_path / "job.toml"
    file.write_text('[inputs.flights]\ndataframe.format = "jdbc"\n')
    frame = load_settings(file, [], environ).inputs["flights"].dataframe
    assert frame is not None
    assert frame.options == {"password": "hunter2"}
    with pytest.raises(InvalidInputError, match="there is no format"):
        load_settings(None, ["inputs.flights.dataframe.options.user=me"], environ)


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["dataframe.options.password=hunter2"], {}),
        (["dataframe.format=csv", "dataframe.table=t", "dataframe.options.p=hunter2"], {}),
        (["dataframe.format=csv", "days=2013-01-01", "dataframe.options.p=hunter2"], {}),
        (['dataframe.options={password="hunter2"}'], {}),
        (['dataframe={options={password="hunter2"}}'], {}),
        (["dataframe.load=a"], {"HEADRACE__INPUTS__X__DATAFRAME__OPTIONS__PASSWORD": "hunter2"}),
        ([], {"HEADRACE__INPUTS__X__DATAFRAME__OPTIONS": "hunter2"}),
        ([], {"HEADRACE__INPUTS": "hunter2"}),
    ],
)
def test_no_story_of_a_mistake_has_a_password(words: list[str], environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_settings(None, [f"inputs.x.{word}" for word in words], environ)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_what_spark_says_is_told_without_values_of_options() -> None:
    options = {
        "url": "jdbc:x://db?password=hunter2",
        "password": "hunter2",
        "fetchsize": "10",
        "empty": "",
        "dbtable": "orders",
    }
    frame = FrameSettings(format="jdbc", options=options)
    said = "jdbc:x://db?password=hunter2: no orders of 'hunter2' in 100 places or 10"
    assert str(frame.redacted(ValueError(said))) == "...: no orders of '...' in 100 places or ..."
