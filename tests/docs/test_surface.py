"""What ``headrace`` shows is what ``__all__`` says, and importing it stays light."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__)


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_all_is_sorted_and_says_what_is_visible() -> None:
    assert headrace.__all__ == sorted(set(headrace.__all__))
    shown = fresh("import headrace; print(*(n for n in dir(headrace) if not n.startswith('_')))")
    machinery = {"annotations", "importlib", "Any", "TYPE_CHECKING"}
    assert set(shown.split()) - machinery == set(headrace.__all__)


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(headrace, name)
    assert value.__doc__
    assert getattr(headrace, name) is value


def test_types_see_the_same_names_from_the_same_places() -> None:
    typed: dict[str, str] = {}
    for node in ast.parse(ROOT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):
            imports = [step for step in node.body if isinstance(step, ast.ImportFrom)]
            typed |= {alias.name: step.module or "" for step in imports for alias in step.names}
    found = {name: home.removesuffix(f".{name}") for name, home in headrace._HOMES.items()}
    assert typed == found
    assert sorted(found) == headrace.__all__


def test_a_name_that_is_not_there_is_told_with_the_nearest_or_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Strem'; did you mean 'Stream'\?"):
        _ = headrace.Strem
    with pytest.raises(AttributeError, match=r"no attribute 'qqqq'; it has \['AsyncProcessor',"):
        _ = headrace.qqqq


@pytest.mark.parametrize("package", ["graph", "plan"])
def test_packages_show_what_they_say(package: str) -> None:
    module = importlib.import_module(f"headrace.{package}")
    assert module.__all__ == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


def test_importing_headrace_loads_nothing_heavy() -> None:
    heavy = "('pyspark', 'py4j', 'pyarrow', 'polars', 'numpy', 'pandas', 'msgspec')"
    loaded = fresh(f"import sys, headrace; print(*(n for n in {heavy} if n in sys.modules))")
    assert loaded == ""


def test_building_and_planning_a_job_loads_no_spark() -> None:
    code = """
import sys
import headrace as hr
import headrace.plan

@hr.job("copy")
def copy(g: hr.Graph) -> None:
    g.input("a", schema={"x": int}).filter(hr.col("x") > 0).send_to(g.output("b"))

headrace.plan.explain(headrace.plan.plan(copy.build(), {}))
print(*(name for name in ("pyspark", "py4j") if name in sys.modules))
"""
    assert fresh(code) == ""
