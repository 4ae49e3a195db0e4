"""Where values come from: the order of places, what each accepts, and how mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config import load_settings
from headrace.errors import InvalidInputError

WriteToml = Callable[[str], Path]


@pytest.fixture
def toml(tmp_path: Path) -> WriteToml:
    def write(text: str) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_later_places_win(toml: WriteToml) -> None:
    file = toml("[job]\ntasks = 2\n[epoch]\nmax_rows = 20\ntick_ms = 200\n")
    environ = {"HEADRACE__EPOCH__MAX_ROWS": "30", "HEADRACE__EPOCH__TICK_MS": "300"}

    settings = load_settings(file, ["epoch.tick_ms=400", "epoch.tick_ms=500"], environ)

    assert (settings.job.tasks, settings.epoch.max_rows, settings.epoch.tick_ms) == (2, 30, 500)


def test_each_value_knows_its_place(toml: WriteToml) -> None:
    file = toml('# a job\nhome = "here"\n\n[job]\ntasks = 2 # few\n')
    environ = {"HEADRACE__EPOCH__MAX_ROWS": "30"}

    settings = load_settings(file, ["bus.fsync=never"], environ)

    sources = {
        key: settings.explain(key).source
        for key in ("home", "job.tasks", "epoch.max_rows", "bus.fsync", "job.slots")
    }
    assert sources == {
        "home": f"{file}:2",
        "job.tasks": f"{file}:5",
        "epoch.max_rows": "environment HEADRACE__EPOCH__MAX_ROWS",
        "bus.fsync": "--set bus.fsync=never",
        "job.slots": "default",
    }


def test_home_has_a_short_name_in_the_environment(home: Path) -> None:
    assert load_settings().home == home


def test_the_full_name_of_home_wins_over_the_short_one() -> None:
    environ = {"HEADRACE_HOME": "/short", "HEADRACE__HOME": "/full"}

    assert load_settings(environ=environ).home == Path("/full")


def test_a_relative_home_becomes_absolute() -> None:
    settings = load_settings(environ={"HEADRACE_HOME": "deep/home"})

    assert settings.home == Path.cwd() / "deep" / "home"


def test_settings_of_spark_are_merged_from_all_places(toml: WriteToml) -> None:
    file = toml(
        "[spark.conf]\n"
        'spark.executor.memory = "2g"\n'
        '"spark.ui.enabled" = false\n'
        "spark.task.cpus = 1\n"
    )

    settings = load_settings(file, ["spark.conf.spark.executor.memory=3g"], {})

    assert settings.spark.conf == {
        "spark.executor.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.task.cpus": "1",
    }
    assert settings.explain("spark.conf.spark.ui.enabled").source == f"{file}:3"


def test_text_can_say_none() -> None:
    environ = {"HEADRACE__JOB__SLOTS": "4"}

    assert load_settings(overrides=["job.slots=none"], environ=environ).job.slots is None


def test_an_empty_section_changes_nothing(toml: WriteToml) -> None:
    assert load_settings(toml("[job]\n[spark.conf]\n"), environ={}) == load_settings(environ={})


def test_other_variables_of_the_environment_are_left_alone() -> None:
    assert load_settings(environ={"HEADRACE_LOG": "x", "PATH": "/bin"}) == load_settings(environ={})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("job.task=3", r"--set job\.task=3: unknown setting job\.task; did you mean job\.tasks\?"),
        ("tasks=3", r"did you mean job\.tasks\?"),
        ("epoch.tasks=3", r"did you mean job\.tasks\?"),
        (
            "zzz=1",
            r"known are home and those of alerts, bus, control, epoch, explore, inputs, job,",
        ),
        ("job=3", r"setting job from --set job=3: found '3', expected a table of settings"),
        ("spark.conf=x", r"expected a table of settings"),
        ("job.tasks=abc", r"found 'abc', expected integer"),
        ("job.tasks=none", r"found 'none', expected integer"),
        ("job.tasks=0", r"found '0', expected integer: it must be at least 1"),
        ("job.bounded=perhaps", r"expected true or false"),
        ("bus.fsync=sometimes", r"expected one of always, interval, never"),
        ("job.tasks", r"--set job\.tasks: expected section\.key=value"),
    ],
)
def test_a_wrong_override_says_what_was_found_and_expected(override: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_settings(overrides=[override], environ={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[job]\n\ntask = 3\n", r"job\.toml:3: unknown setting job\.task; .* job\.tasks\?"),
        ('[job]\ntasks = "3"\n', r"job\.tasks from .*job\.toml:2: found '3', expected integer"),
        ("[job]\nbounded = 1\n", r"found 1, expected true or false"),
        ("job = 3\n", r"job\.toml:1: found 3, expected a table"),
        ("[jobs]\n", r"job\.toml: unknown setting jobs"),
        ("[jobs]\ntasks = 1\n", r"job\.toml:2: unknown setting jobs\.tasks; .* job\.tasks\?"),
        ("[job]\ntasks = {a = 1}\n", r"unknown setting job\.tasks\.a"),
        ("[spark.conf]\na = [1]\n", r"found \[1\], expected text"),
        ("tasks = \n", r"is not TOML: .*line 1"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(toml: WriteToml, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_settings(toml(text), environ={})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"nowhere\.toml does not exist; .* --config"):
        load_settings(tmp_path / "nowhere.toml", environ={})


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"HEADRACE__JOB__TASK: .* job\.tasks\?") as caught:
        load_settings(environ={"HEADRACE__JOB__TASK": "3"})

    assert caught.value.fields == {"setting": "job.task"}


def test_a_setting_that_was_renamed_is_taken_under_its_old_name() -> None:
    settings = load_settings(overrides=["job.host_wait_s=2"], environ={})
    assert settings.placement.wait_s == 2.0
    source = settings.explain("placement.wait_s").source
    assert source == "--set job.host_wait_s=2 (job.host_wait_s)"
