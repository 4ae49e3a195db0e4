"""The page on the architecture names each file that a record comes to, and no other."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES, MOST_CALLS = 50, 800
MOST_IDLE_FILES, MOST_IDLE_CALLS = 12, 50


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_trace", ROOT / "tools" / "trace.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_names_each_file_that_a_record_comes_to(tool: ModuleType) -> None:
    warm, idle = tool.traces()

    assert [file for file in warm.files if f"`{file}`" not in PAGE] == []
    assert [file for file in idle.files if file not in warm.files] == []
    assert len(warm.files) <= MOST_FILES
    assert len(idle.files) <= MOST_IDLE_FILES
    assert warm.calls.total() <= MOST_CALLS
    assert idle.calls.total() <= MOST_IDLE_CALLS


def test_the_page_names_no_file_that_is_not_there(tool: ModuleType) -> None:
    named = re.findall(r"`([a-z_0-9/]+\.py)`", PAGE)

    assert len(named) > 50
    assert [file for file in named if not (tool.PACKAGE / file).exists()] == ["tools/trace.py"]
