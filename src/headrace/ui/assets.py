"""The files of the page as browsers get them: few, small, and asked for once.

What is written as many modules and style sheets is sent as one of each, compressed, under an
address that names their content: a browser asks for them once, and again after an upgrade. There
is no build step: this is done when the server starts, from files that a browser could read as they
are.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from headrace.errors import InvalidInputError

STYLES = ("style/tokens.css", "style/frame.css", "style/parts.css", "style/pages.css",
          "vendor/uplot.css")  # fmt: skip
"""In the order in which their rules count."""

FIRST = "app/main.js"
ALONE = {"theme.js": "app/theme.js"}
"""What the form to sign in has of the page, which is not shown there."""

SCRIPT, STYLE = "page.js", "page.css"
PLACE = "{files}"
"""What stands in ``index.html`` for the address of the files."""

_TYPES = {
    ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png",
    ".woff2": "font/woff2", ".LICENSE": "text/plain", ".NOTICE": "text/plain",
}  # fmt: skip
_IMPORT = re.compile(r'^import (?:(\w+)|\{ ([^{}]+) \}) from "([^"]+)";\n', re.MULTILINE)
_LATER = re.compile(r'\bimport\("([^"]+)"\)')
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+)\b)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class Asset(NamedTuple):
    """One file; ``packed`` is the same by gzip, where that is smaller."""

    type: str
    data: bytes
    packed: bytes | None


class Assets:
    """The page and its files, in memory.

    Args:
        folder: with ``index.html``, modules in ``app``, ``style`` and ``vendor``.

    Raises:
        InvalidInputError: a module has an import or an export of a form that is not known here.
        FileNotFoundError: the folder has no page.
    """

    def __init__(self, folder: Path) -> None:
        index = (folder / "index.html").read_text("utf-8")
        files = {SCRIPT: one_script(folder).encode(), STYLE: _one_style(folder)}
        files |= {name: (folder / path).read_bytes() for name, path in ALONE.items()}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            is_own = path.suffix in _TYPES and not name.startswith("app/") and name not in STYLES
            if path.is_file() and is_own:
                files[name] = path.read_bytes()
        digest = hashlib.sha256()
        for name, data in files.items():
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        self.digest = digest.hexdigest()[:16]
        self.place = f"/static/{self.digest}"
        self.index = index.replace(PLACE, self.place).encode()
        self._files = {name: _asset(name, data) for name, data in files.items()}

    def names(self) -> list[str]:
        """Return what there is beside the page itself."""
        return sorted(self._files)

    def find(self, digest: str, name: str) -> Asset | None:
        """Return a file; ``None``: there is none of this name, or not as it was then."""
        return self._files.get(name) if digest == self.digest else None


def _asset(name: str, data: bytes) -> Asset:
    packed = gzip.compress(data, 9, mtime=0)
    kind = _TYPES[PurePosixPath(name).suffix]
    return Asset(kind, data, packed if len(packed) < len(data) else None)


def _one_style(folder: Path) -> bytes:
    return "\n".join((folder / name).read_text("utf-8") for name in STYLES).encode()


def one_script(folder: Path) -> str:
    """Return all modules of the page as one: each is a function that returns what it exports.

    A module comes behind those that it imports, now or later. What is vendored stays a module of
    its own, which browsers load with the page, or when it is imported later.
    """
    ordered: dict[str, str] = {}
    outside: dict[str, str] = {}
    for name in _in_order(folder, FIRST, ()):
        if name not in ordered:
            ordered[name] = _module(folder, name, outside)
    imports = [f'import {_name(name)} from "./{name}";' for name in outside]
    return "\n".join([*imports, *ordered.values(), ""])


def _in_order(folder: Path, name: str, above: tuple[str, ...]) -> Iterator[str]:
    if name in above:
        raise InvalidInputError(
            f"modules of the page import each other in a circle: {' > '.join((*above, name))}; "
            "move what they share into a module of its own"
        )
    text = (folder / name).read_text("utf-8")
    for other in _imported(name, text):
        if other.startswith("app/"):
            yield from _in_order(folder, other, (*above, name))
    yield name


def _imported(name: str, text: str) -> Iterable[str]:
    found = [place for _, _, place in _IMPORT.findall(text)] + _LATER.findall(text)
    return [_resolved(name, place) for place in found]


def _resolved(name: str, place: str) -> str:
    """Return the path, from the folder of the page, of what a module calls ``./other.js``."""
    parts = list(PurePosixPath(name).parent.parts)
    for part in PurePosixPath(place).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _later(path: str) -> str:
    """Return how a module is got when it is needed: a vendored one is asked for only then."""
    is_own = path.startswith("app/")
    return f"Promise.resolve({_name(path)})" if is_own else f'import("./{path}")'


def _name(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _module(folder: Path, name: str, outside: dict[str, str]) -> str:
    text = (folder / name).read_text("utf-8")
    exported = _EXPORT.findall(text)

    def imported(found: re.Match[str]) -> str:
        whole, names, place = found.groups()
        path = _resolved(name, place)
        if not path.startswith("app/"):
            outside[path] = path
        held = whole or "{ " + re.sub(r"\b(\w+) as (\w+)\b", r"\1: \2", names) + " }"
        return f"const {held} = {_name(path)};\n"

    body = _EXPORT.sub("", _IMPORT.sub(imported, text))
    body = _LATER.sub(lambda found: _later(_resolved(name, found[1])), body)
    if left := _LEFT.search(body):
        raise InvalidInputError(
            f"module {name} of the page has {left[0][:100]!r}; write import {{ names }} from, or "
            "export before a function, a class or a constant"
        )
    given = f"return {{ {', '.join(exported)} }};"
    return f"// {name}\nconst {_name(name)} = (() => {{\n{body}{given}\n}})();"
