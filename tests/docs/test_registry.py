"""Each operator of a graph has a node that runs it."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

from headrace.graph.operators import Input, Operator, PartitionBy, Reshape
from headrace.graph.operators.stateless import MessageFunction
from headrace.runtime.node_factory import NODES, load

_WITHOUT_NODE = {Input, PartitionBy, MessageFunction, Reshape}
"""A stage reads and exchanges by itself; the planner replaces ``Reshape``; one is a base."""


def _kinds(base: type[Operator]) -> set[type[Operator]]:
    below = {kind for one in base.__subclasses__() for kind in _kinds(one)}
    return below | set(base.__subclasses__())


def test_each_operator_is_registered() -> None:
    known = {kind for kind in _kinds(Operator) if kind.__module__.startswith("headrace.")}
    assert known - _WITHOUT_NODE == set(NODES)


def test_what_is_registered_is_there() -> None:
    for runtime in NODES.values():
        assert callable(load(runtime.node))
        assert not runtime.layouts or callable(load(runtime.layouts))


def test_an_operator_is_in_the_files_that_the_page_names() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = page[page.index("`sample` is the example") : page.index("## Style")]
    named = set(re.findall(r"`((?:graph|runtime)/[a-z_/]+\.py)`", part))

    package = ROOT / "src" / "headrace"
    own = re.compile(r"\b(Sample|SampleNode)\b|\bdef sample\(")
    layers = [
        file for name in ("graph", "runtime", "plan") for file in (package / name).rglob("*.py")
    ]
    found = {
        str(file.relative_to(package))
        for file in layers
        if own.search(file.read_text(encoding="utf-8"))
    }
    assert found == named
    for name in re.findall(r"`((?:tests|docs|changes)/[a-z_/]+\.(?:py|md))`", part):
        assert "sample" in (ROOT / name).read_text(encoding="utf-8"), name
