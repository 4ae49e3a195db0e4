"""The tree of settings: frozen, bounded, derived folders, and what ``explain`` says."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from headrace.config import JobSettings, Settings, load_settings, setting_keys
from headrace.errors import InvalidInputError


def test_defaults_stand_alone() -> None:
    settings = Settings()

    assert settings.home == Path.cwd() / ".headrace"
    assert settings.job.key_groups == 512
    assert settings == load_settings(environ={})


def test_folders_come_from_home(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)

    folders = (settings.bus_dir, settings.jobs_dir, settings.state_dir)
    assert folders == (tmp_path / "bus", tmp_path / "jobs", tmp_path / "state")


def test_state_can_live_on_another_disk_than_home(tmp_path: Path) -> None:
    settings = load_settings(overrides=[f"state.dir={tmp_path}/fast"], environ={})

    assert settings.state_dir == tmp_path / "fast"
    assert settings.bus_dir == Path.cwd() / ".headrace" / "bus"


def test_streams_and_jobs_in_a_bucket_have_prefixes_of_their_own(tmp_path: Path) -> None:
    """What stands for them on this host is below the folder of its state."""
    sets = [f"state.dir={tmp_path}", "bus.address=s3://b/x/bus", "storage.address=s3://b/x/jobs"]
    settings = load_settings(None, sets, {})
    assert settings.bus_dir == tmp_path / "_remote" / "s3" / "b" / "x" / "bus"
    assert settings.jobs_dir == tmp_path / "_remote" / "s3" / "b" / "x" / "jobs"
    with pytest.raises(InvalidInputError, match=r"is in bus\.address s3://b/x; give each a prefix"):
        load_settings(None, ["bus.address=s3://b/x/", "storage.address=s3://b/x/jobs"], {})
    with pytest.raises(InvalidInputError, match=r"found 'x//b': no storage at 'x//b'; expected s3"):
        load_settings(None, ["bus.address=x//b"], {})
    for other, reason in {
        "bus.address=s3://b/bus": "have no files to move",
        "storage.address=s3://b/old/jobs": "of its own",
        "storage.address=s3://b": "of its own",
    }.items():
        with pytest.raises(InvalidInputError, match=reason):
            load_settings(None, [other, "bus.offload_address=s3://b/old"], {})


def test_an_address_can_be_that_of_a_folder(tmp_path: Path) -> None:
    """With one slash or three, in one form; older segments go to object storages alone."""
    names = ("storage", "bus", "warehouse")
    sets = [f"{name}.address=file://{tmp_path}/x/../{name}" for name in names]
    settings = load_settings(None, [*sets, "bus.offload_address=s3://b/old"], {})
    folders = (settings.jobs_dir, settings.bus_dir, settings.warehouse_dir)
    assert folders == tuple(tmp_path / name for name in names)
    assert settings.storage.address == f"file://{tmp_path}/storage"
    assert load_settings(None, ["bus.address=file:/srv/bus"], {}).bus_dir == Path("/srv/bus")
    for wrong, reason in {
        "bus.address=file://srv/bus": "expected file:///PATH, from the root on",
        "storage.address=file:jobs": "expected file:///PATH, from the root on",
        "bus.offload_address=file:///srv/old": "no storage at 'file:///srv/old'; expected s3://",
    }.items():
        with pytest.raises(InvalidInputError, match=reason):
            load_settings(None, [wrong], {})


def test_a_setting_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        JobSettings().tasks = 3  # type: ignore[misc]


def test_a_task_needs_a_key_group() -> None:
    with pytest.raises(InvalidInputError, match=r"job\.tasks is 9 but job\.key_groups is 8"):
        load_settings(overrides=["job.tasks=9", "job.key_groups=8"], environ={})


def test_settings_and_their_sources_reach_another_process() -> None:
    settings = load_settings(overrides=["job.tasks=3"], environ={})

    arrived = pickle.loads(pickle.dumps(settings))

    assert arrived == settings
    assert arrived.explain("job.tasks").source == "--set job.tasks=3"


@pytest.mark.parametrize("key", setting_keys())
def test_every_setting_has_a_sentence_a_type_and_a_default(key: str) -> None:
    told = Settings().explain(key)

    assert told.description
    assert told.type
    assert told.source == "default"
    assert key == "home" or told.default == told.value


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("home", "path"),
        ("job.tasks", "integer"),
        ("job.slots", "integer, or none"),
        ("job.bounded", "true or false"),
        ("epoch.timeout_s", "number"),
        ("state.dir", "path, or none"),
        ("bus.fsync", "one of always, interval, never"),
        ("spark.conf", "table of text"),
        ("spark.conf.spark.ui.port", "text"),
    ],
)
def test_types_are_told_in_plain_words(key: str, expected: str) -> None:
    assert Settings().explain(key).type == expected


def test_explain_reads_as_a_short_table() -> None:
    settings = load_settings(overrides=["job.slots=2"], environ={})

    assert str(settings.explain("job.slots")) == (
        "job.slots: cores that run tasks at the same time; none: all of the master\n"
        "  type     integer, or none\n"
        "  default  none\n"
        "  value    2\n"
        "  source   --set job.slots=2"
    )


def test_explain_refuses_a_name_that_no_setting_has() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown setting job\.slot; .* job\.slots\?"):
        Settings().explain("job.slot")


def test_a_setting_in_the_environment_with_single_underscores_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="write HEADRACE__JOB__KEY_GROUPS"):
        load_settings(environ={"HEADRACE_JOB_KEY_GROUPS": "8"})
    fine = {"HEADRACE_STATE_DIR": "/fast", "HEADRACE_SLOT": "1", "HEADRACE__JOB__TASKS": "7"}
    assert load_settings(environ=fine).job.tasks == 7
