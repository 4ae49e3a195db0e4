"""Writes docs/reference from the docstrings of what users import.

python tools/reference.py            writes the pages
python tools/reference.py --check    reports stale pages, and exits with 1 if there are any
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
MODULES = {
    "headrace": "jobs, graphs, streams, processors, windows",
    "headrace.agg": "aggregates of `aggregate` and `window`",
    "headrace.sinks": "files and databases, and the contract of a sink",
    "headrace.serving": "the client of served tables",
    "headrace.stores": "the contract of a client of remote stores",
    "headrace.sql": "apps in SQL as jobs",
    "headrace.warehouse": "read tables that jobs write by day",
    "headrace.bus": "streams from Python",
    "headrace.spark": "streams as DataFrames, and state for PySpark programs",
    "headrace.testing": "run a whole job in one thread",
}
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Examples?):$")
_TITLES = {"Args": "Arguments", "Attributes": "Attributes"}
_ENTRY = re.compile(r"^(\*{0,2}[\w., *]+): (.*)$", re.DOTALL)
_OWN = ("headrace.", "headrace")


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    made = {f"{name}.md": page(name) for name in MODULES}
    rows = [f"| [`{name}`]({name}.md) | {what} |" for name, what in MODULES.items()]
    head = "# Reference\n\nEvery public name. Generated from docstrings by `make docs`.\n\n"
    table = "\n".join(["| module | holds |", "|---|---|", *rows])
    guide = (
        "Settings, commands and errors have pages of the guide:\n[settings](../guide/settings.md), "
        "[commands](../guide/cli.md), [errors](../guide/errors.md).\n"
    )
    return {"README.md": f"{head}{table}\n\n{guide}", **made}


def page(name: str) -> str:
    """Return the page of a module."""
    module = module_of(name)
    parts = [f"# {name}\n\n{prose(inspect.getdoc(module) or '')}"]
    parts += [part for each in module.__all__ for part in described(name, module, each)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def module_of(name: str) -> ModuleType:
    """Import a module, also one that another shows under a name of its own."""
    package, _, last = name.rpartition(".")
    shown = getattr(importlib.import_module(package), "__all__", ()) if package else ()
    if last in shown:
        found: ModuleType = getattr(importlib.import_module(package), last)
        return found
    return importlib.import_module(name)


def described(home: str, module: ModuleType, name: str) -> Iterator[str]:
    """Yield the parts of one public name."""
    value = getattr(module, name)
    yield f"## {name}"
    if isinstance(value, ModuleType):
        yield f"A module: [`{home}.{name}`]({home}.{name}.md)."
    elif str(getattr(value, "__module__", None) or type(value).__module__).startswith("polars"):
        yield f"From Polars: `polars.{name}`."
    elif not str(getattr(value, "__module__", "")).startswith(_OWN):
        yield f"Data: a `{type(value).__name__}`."
    elif inspect.isclass(value):
        yield from class_parts(name, value)
    else:
        yield from function_parts(name, value)


def class_parts(name: str, value: type) -> Iterator[str]:
    """Yield a class: its call, its text, its public members."""
    is_plain = issubclass(value, BaseException | Enum) or getattr(value, "_is_protocol", False)
    call = name if is_plain or inspect.isabstract(value) else name + signature(value)
    yield code(call)
    yield prose(inspect.getdoc(value) or "")
    for member in sorted(members(value)):
        found = inspect.getattr_static(value, member)
        if isinstance(found, property):
            yield f"### {name}.{member}"
            yield prose(inspect.getdoc(found.fget) or "")
        elif callable(getattr(value, member)):
            yield f"### {name}.{member}"
            yield from function_parts(member, getattr(value, member))


def members(value: type) -> set[str]:
    """Return the public members with a docstring that a class has from code of ours."""
    return {
        name
        for base in value.__mro__
        if base.__module__.startswith(_OWN)
        for name, found in vars(base).items()
        if not name.startswith("_")
        and (isinstance(found, property | classmethod | staticmethod) or inspect.isfunction(found))
        and inspect.getdoc(getattr(value, name) if not isinstance(found, property) else found.fget)
    }


def function_parts(name: str, value: Any) -> Iterator[str]:
    """Yield a function: its call and its text."""
    yield code(name + signature(value))
    yield prose(inspect.getdoc(value) or "")


def signature(value: Any) -> str:
    """Return how something is called, without what differs from run to run."""
    found = inspect.signature(value)
    parameters = [
        each.replace(default=_Shown(each.default))
        if each.default is not inspect.Parameter.empty
        else each
        for each in found.parameters.values()
        if each.name not in {"self", "cls"}
    ]
    parameters = [each.replace(annotation=_text(each.annotation)) for each in parameters]
    told = str(found.replace(parameters=parameters))
    return re.sub(r"(: |-> )(['\"])(.*?)\2(?=[,)= ]|$)", r"\1\3", told)  # annotations are text


def _text(annotation: Any) -> Any:
    """Return an annotation as it is written; those of a named tuple are references."""
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


class _Shown:
    """A default as its own words: a function by its name, a setting by its value."""

    def __init__(self, value: Any) -> None:
        text = getattr(value, "__name__", repr(value))
        if isinstance(value, Enum):
            text = f"{type(value).__name__}.{value.name}"
        self._text = "..." if " at 0x" in text or text == "<factory>" else text

    def __repr__(self) -> str:
        """Return the words."""
        return self._text


def code(call: str) -> str:
    """Return a call as a block, an argument a line where it is long."""
    if len(call) > 96 and "(" in call:
        begin, _, rest = call.partition("(")
        inside, _, end = rest.rpartition(")")
        inner = "".join(f"    {part},\n" for part in split(inside))
        call = f"{begin}(\n{inner}){end}"
    return f"```text\n{call}\n```"


def split(arguments: str) -> list[str]:
    """Cut arguments at the commas between them."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(arguments[begin:at].strip())
            begin = at + 1
    return [*parts, arguments[begin:].strip()]


def prose(text: str) -> str:
    """Return a docstring of Google's form as Markdown."""
    parts: list[str] = []
    section, body = "", []
    for line in [*text.replace("``", "`").splitlines(), "End:"]:
        matched = _SECTION.match(line)
        if matched or line == "End:":
            parts += [as_section(section, body)] if section else ["\n".join(body).strip()]
            section, body = (matched[1] if matched else "End"), []
        else:
            body.append(line)
    return "\n\n".join(part for part in parts if part)


def as_section(section: str, lines: list[str]) -> str:
    """Return a section as a list: an entry a line."""
    text = textwrap.dedent("\n".join(lines)).strip()
    if section.startswith("Example"):
        return f"```pycon\n{text}\n```"
    title = f"**{_TITLES.get(section, section)}**"
    if section in {"Returns", "Yields"}:
        return wrapped(f"{title}: {' '.join(text.split())}")
    entries = re.split(r"\n(?! )", text)
    rows = []
    for entry in entries:
        plain = " ".join(entry.split())
        matched = _ENTRY.match(plain)
        rows.append(wrapped(f"- `{matched[1]}`: {matched[2]}" if matched else f"- {plain}", "  "))
    return "\n".join([title, "", *rows])


def wrapped(text: str, indent: str = "") -> str:
    """Return text in short lines."""
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 110, subsequent_indent=indent, **options)


def main(words: list[str]) -> int:
    """Write the pages, or say which are stale."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if words == ["--check"]:
        stale = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
        if stale:
            print(f"docs/reference is not as docstrings are: {', '.join(stale)}; run make docs")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
