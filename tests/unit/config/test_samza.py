"""Samza's names for settings: what they mean, and what is said elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import Settings, load_settings, setting_keys
from headrace.config.samza import ALIASES, REPLACED, read_properties, replacement_of, setting_of
from headrace.errors import InvalidInputError

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "samza.md"


def test_every_alias_is_a_setting_and_on_the_page() -> None:
    page = PAGE.read_text()
    for alias in ALIASES:
        assert alias.setting in setting_keys()
        assert f"| `{alias.property}` | `{alias.setting}` |" in page
    for found in REPLACED:
        assert f"| `{found.property}` | {found.instead} |" in page


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("job.container.count", "job.slots"),
        ("stores.my-store.container.cache.size.bytes", "state.block_cache_bytes"),
        ("stores.a.b.container.cache.size.bytes", None),
        ("job.containers", None),
    ],
)
def test_a_name_means_a_setting(name: str, setting: str | None) -> None:
    assert setting_of(name) == setting


def test_what_is_elsewhere_is_told() -> None:
    assert replacement_of("task.checkpoint.factory") == "leave it out: every epoch is a checkpoint"
    assert replacement_of("task.checkpoint") is None
    assert "ttl" in (replacement_of("stores.s.rocksdb.ttl.ms") or "")


def test_a_properties_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text("# a job\n\njob.container.count = 3\ntask.commit.ms=60000\n")
    settings = load_settings(file, environ={})
    assert (settings.job.slots, settings.epoch.interval_ms) == (3, 60_000)
    assert settings.explain("job.slots").source == f"{file}:3 (job.container.count)"
    assert settings.explain("job.container.count").value == "3"


def test_all_that_is_elsewhere_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    file.write_text("job.name=x\njob.container.count=3\ntask.inputs=kafka.y\n")
    with pytest.raises(InvalidInputError, match="no settings here") as error:
        load_settings(file, environ={})
    assert f"1. job.name ({file}:1): name the job" in error.value.message
    assert f"2. task.inputs ({file}:3): read streams" in error.value.message


def test_names_stand_in_toml_and_the_environment_too(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[job]\ncontainer.count = 3\n")
    assert load_settings(file, environ={}).job.slots == 3
    environ = {"HEADRACE__TASK__COMMIT__MS": "5"}
    assert load_settings(environ=environ).epoch.interval_ms == 5
    with pytest.raises(InvalidInputError, match="expected integer"):
        load_settings(overrides=["job.container.count=many"], environ={})


def test_values_are_read_in_samzas_units_and_words(tmp_path: Path) -> None:
    file = tmp_path / "job.properties"
    timeout = "cluster-manager.container.request.timeout.ms"
    file.write_text(f"job.host-affinity.enabled=true\n{timeout}=2500\n")
    placement = load_settings(file, environ={}).placement
    assert (placement.affinity, placement.wait_s) == ("strict", 2.5)
    off = load_settings(overrides=["job.host-affinity.enabled=false"], environ={})
    assert off.placement.affinity == "none"
    toml = tmp_path / "job.toml"
    toml.write_text("[job]\nhost-affinity.enabled = false\n")
    assert load_settings(toml, environ={}).placement.affinity == "none"
    with pytest.raises(InvalidInputError, match="one of strict, best-effort, none"):
        load_settings(overrides=["job.host-affinity.enabled=perhaps"], environ={})


def test_an_unknown_setting_that_samza_has_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"read streams in the job.s code: g.input"):
        Settings().explain("task.inputs")


def test_properties_are_read_with_their_lines() -> None:
    assert read_properties("! x\na = b=c\n\nd\n") == [(2, "a", "b=c"), (4, "d", "")]
