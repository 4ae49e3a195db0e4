"""A layer imports only from those above it, only ``spark`` imports PySpark, and no ring forms.

Plug-ins import layers and no other plug-in; no layer imports a plug-in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"

LAYERS = [
    "redaction", "errors", "extras", "plugins", "objects", "remote", "closeable", "clock",
    "durations", "faults", "files", "fencing", "fencing_objects",
    "config", "records", "queries",
    "graph", "bus", "sources", "state", "plan", "runtime",
    "coordinator",
    "control", "standalone", "spark",
    "testing", "cli",
]  # fmt: skip
PLUGINS = [
    "bench", "cloud", "demo", "explore", "kafka", "pipe", "serving", "sinks", "sql", "stores", "ui",
    "warehouse",
]  # fmt: skip
"""They import any of the layers, and nobody imports them: entry points name them."""
ABOVE = {name: set(LAYERS[:index]) | {name} for index, name in enumerate(LAYERS)}
ABOVE |= {name: {*LAYERS, name} for name in PLUGINS}
ABOVE["ui"].add("explore")  # the web application shows what that answers
# The root gathers the public names; the version and the entry point are no layers.
ROOT = "__init__"

MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports, wherever in the file, with its line."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            if isinstance(held := getattr(node, part, ()), list):  # that of a lambda is no list
                left += held
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def name_of(path: Path) -> str:
    parts = ["headrace", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("layer", sorted({layer_of(path) for path in MODULES} - {ROOT}))
def test_a_layer_imports_only_from_those_above(layer: str) -> None:
    assert layer in ABOVE, f"{layer} is no layer yet: give it its place in LAYERS, or in PLUGINS"
    wrong = []
    for path in MODULES:
        for name, line in imports(path) if layer_of(path) == layer else ():
            parts = name.split(".")
            if parts[0] == "headrace" and len(parts) > 1 and parts[1] not in ABOVE[layer]:
                wrong.append(f"{path}:{line} imports {name}")
            if parts[0] in ("pyspark", "py4j") and layer != "spark":
                wrong.append(f"{path}:{line} imports {name}; only headrace.spark may")
    assert wrong == []


def test_no_ring_of_imports() -> None:
    # A package gathers names from its modules, which do not import the package itself.
    TopologicalSorter(imports_of_modules()).prepare()


def test_no_ring_of_folders() -> None:
    """What lies in a folder, files and folders, each with all that is in it, imports one way."""
    rooms: dict[str, dict[str, set[str]]] = {}
    for module, targets in imports_of_modules().items():
        parts = module.split(".")
        for depth in range(1, len(parts)):
            folder, room = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
            others = {
                ".".join(target.split(".")[: depth + 1])
                for target in targets
                if target.startswith(f"{folder}.")
            }
            rooms.setdefault(folder, {}).setdefault(room, set()).update(others - {room})
    for graph in rooms.values():
        TopologicalSorter(graph).prepare()


def imports_of_modules() -> dict[str, set[str]]:
    known = {name_of(path): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        targets = (name if name in known else name.rpartition(".")[0] for name, _ in imports(path))
        graph[module] = {target for target in targets if target in known and target != module}
    return graph
