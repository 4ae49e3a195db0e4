"""The page of the package index is README, with links and pictures that work outside of it."""

from __future__ import annotations

import re

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from tests.docs.pages import ROOT

REPOSITORY = "https://git.example/rivers/headrace"
TARGET = re.compile(r"\]\(([^)\s]+)\)")


def metadata(monkeypatch: pytest.MonkeyPatch, repository: str) -> tuple[str, dict[str, str]]:
    """The page and the addresses that a wheel has."""
    monkeypatch.setenv("HEADRACE_REPOSITORY", repository)
    made = ProjectMetadata(str(ROOT), PluginManager()).core
    assert made.readme_content_type == "text/markdown"
    return made.readme, made.urls


def test_links_and_pictures_lead_to_the_files_of_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, urls = metadata(monkeypatch, f"{REPOSITORY}/")
    version = ProjectMetadata(str(ROOT), PluginManager()).core.version
    for link in [*TARGET.findall(text), *urls.values()]:
        found = re.fullmatch(rf"{REPOSITORY}(?:/(?:raw|blob)/v{version}/(\S+)|/issues)?", link)
        assert found, link
        assert (ROOT / (found[1] or "")).exists(), link
    assert f"![make demo]({REPOSITORY}/raw/v{version}/docs/images/demo.svg)" in text
    assert len(TARGET.findall(text)) == len(TARGET.findall((ROOT / "README.md").read_text()))
    assert {"Repository", "Documentation", "Changelog", "Issues"} < set(urls)


def test_without_an_address_nothing_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text, urls = metadata(monkeypatch, "")
    assert TARGET.findall(text) == []
    assert urls == {}
    assert text.startswith("# Headrace\n")
    assert "Start with Headrace in ten minutes" in text
    assert "\n\n\n" not in text
