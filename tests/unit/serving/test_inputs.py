"""The inputs that the fuzzer of the protocol has kept are still taken as they should be."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "fuzz_serving.py"


def fuzzer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_serving", TOOL)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_all_inputs_of_the_fuzzer_are_taken() -> None:
    tool = fuzzer()
    inputs = tool.kept_inputs()
    assert len(inputs) > 50
    for data in inputs:
        tool.one_input(data)


def test_a_wrong_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fuzzer()
    monkeypatch.setattr(tool.RedisSession, "feed", lambda _self, data: data)
    with pytest.raises(AssertionError, match="no reply"):
        tool.one_input(b"\0GET t:a\r\n")
