"""Count the source by layer: files, lines of code, and imports of other files of the package.

Lines are those of code, without blanks, comments, docstrings and imports. Plug-ins come last, with
a sum of their own:

    python tools/size.py            # of this tree
    python tools/size.py DIR        # of another one, such as an older commit
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

PLUGINS = (
    *("bench", "cloud", "demo", "explore", "kafka", "pipe", "serving", "sinks", "sql", "stores"),
    *("ui", "warehouse"),
)
SMALL = 60
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Size(NamedTuple):
    """What one file has; ``imports`` are of other files of the package."""

    lines: int
    imports: int


def _prose(tree: ast.Module) -> set[int]:
    """Return the lines of docstrings and imports."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(range(node.lineno, (node.end_lineno or 0) + 1))
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            first = body[0].value
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.update(range(first.lineno, (first.end_lineno or 0) + 1))
    return found


def _imported(tree: ast.Module, modules: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{one.name}" for one in node.names)
            found.update(name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
    return found & modules


def size_of(file: Path, modules: set[str]) -> Size:
    """Return the size of one file.

    Args:
        file: of the package.
        modules: the names of all its modules.
    """
    tree = ast.parse(file.read_bytes())
    lines: set[int] = set()
    with tokenize.open(file) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
    return Size(len(lines - _prose(tree)), len(_imported(tree, modules)))


def main() -> None:
    """Print a line for each layer, one for the core and one for the plug-ins."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    files = sorted((root / "src" / "headrace").rglob("*.py"))
    named = {
        ".".join(file.relative_to(root / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in files
    }
    sums: dict[str, Counter[str]] = {}
    for name, file in named.items():
        layer = name.split(".")[1] if name.count(".") and file.parent.name != "headrace" else "root"
        size = size_of(file, set(named) - {name})
        one = Counter(files=1, lines=size.lines, imports=size.imports, small=size.lines < SMALL)
        kind = "plug-ins" if layer in PLUGINS else "core"
        for key in (layer, kind):
            sums.setdefault(key, Counter()).update(one)
    order = sorted(sums, key=lambda key: (key in {"core", "plug-ins"}, key in PLUGINS, key))
    for layer in order:
        found = sums[layer]
        mean = found["imports"] / found["files"]
        print(
            f"{layer:12} {found['files']:4} files {found['lines']:6} lines "
            f"{mean:4.1f} imports a file  {found['small']:3} below {SMALL} lines"
        )


if __name__ == "__main__":
    main()
