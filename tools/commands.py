"""Writes the commands into docs/guide/cli.md: a section for each, from its help.

python tools/commands.py            writes the page
python tools/commands.py --check    reports whether the page is stale, and exits with 1 if so

What stands before and after the two marks of the page is written by hand.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from headrace.cli.main import app

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
PAGE = GUIDE / "cli.md"
BEGIN, END = "<!-- commands -->\n", "<!-- end of commands -->\n"
COMMON = {"--help", "--home", "--json"}
"""Options that the top of the page explains."""
_EXAMPLE = re.compile(r"\n\nFor example:\n\n {4}(headrace .+)\Z")
WIDTH = 100
_CODE = re.compile(r"\bHR\d{3}\b")
_TOGETHER = re.compile(r"`[^`]+`|\[[^\]]+\]\([^)]+\)")
_GUIDE = re.compile(r"\n\nGuide: ([\w, \n-]+)\.(?=\n|\Z)")


def commands(command: Any = None, words: str = "headrace") -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, in the order of --help."""
    found = command or get_command(app)
    if not hasattr(found, "list_commands"):
        yield words, found
        return
    for name in found.list_commands(None):
        yield from commands(found.get_command(None, name), f"{words} {name}")


def written() -> str:
    """Return the page as it has to be."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    every = list(commands())
    rows = [f"| [`{words}`](#{anchor(words)}) | {summary(found)} |" for words, found in every]
    table = "\n".join(["| command | does |", "|---|---|", *rows])
    sections = "\n\n".join(section(words, found) for words, found in every)
    return f"{head}{BEGIN}\n{table}\n\n{sections}\n\n{END}{tail}"


def anchor(words: str) -> str:
    """Return where a command's section is."""
    return words.replace(" ", "-")


def summary(command: Any) -> str:
    """Return the first sentence of the help."""
    return str(command.help).partition("\n\n")[0].replace("\n", " ")


def section(words: str, command: Any) -> str:
    """Return the section of a command: usage, text, arguments, options, example."""
    text, example = text_and_example(words, command)
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each.opts[0].startswith("-")]
    own = [each for each in options if not COMMON & set(each.opts)]
    usage = " ".join([words, "[OPTIONS]", *(value(each) for each in arguments)])
    parts = [f"## {words}", f"```text\n{usage}\n```", linked(text)]
    for title, params in (("argument", arguments), ("option", own)):
        if params:
            rows = [f"| `{in_cell(shown(each))}` | {in_cell(meaning(each))} |" for each in params]
            parts.append("\n".join([f"| {title} | meaning |", "|---|---|", *rows]))
    return "\n\n".join([*parts, f"```sh\n{example}\n```"])


def text_and_example(words: str, command: Any) -> tuple[str, str]:
    """Return the help without its example, and the example.

    Raises:
        ValueError: the help does not end with one of this command.
    """
    help_text = str(command.help)
    found = _EXAMPLE.search(help_text)
    if found is None:
        raise ValueError(f"the help of {words} does not end with an example")
    if not found[1].startswith(words):
        raise ValueError(f"the example of {words} is {found[1]!r}")
    return help_text[: found.start()], found[1]


def linked(text: str) -> str:
    """Return a help text with links to pages of the guide and to errors, in lines of the page."""
    pages = _GUIDE.search(text)
    if pages is not None:
        links = ", ".join(f"[{title(name)}]({name}.md)" for name in re.split(r",\s+", pages[1]))
        text = f"{text[: pages.start()]}\n\nSee {links}.{text[pages.end() :]}"
    text = _CODE.sub(lambda code: f"[{code[0]}](errors.md#{code[0].lower()})", text)
    return "\n\n".join(filled(part) for part in text.split("\n\n"))


def title(name: str) -> str:
    """Return the title of a page of the guide."""
    return (GUIDE / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def filled(paragraph: str) -> str:
    """Return a paragraph in shorter lines, if links have made one too long."""
    if paragraph.startswith("- ") or max(map(len, paragraph.splitlines())) <= WIDTH:
        return paragraph
    glued = _TOGETHER.sub(lambda found: found[0].replace(" ", "\0"), paragraph)
    lines = textwrap.fill(glued, WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def shown(param: Any) -> str:
    """Return an argument or an option with its value, as it is typed."""
    if not param.opts[0].startswith("-"):
        return value(param)
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {value(param)}"


def value(param: Any) -> str:
    """Return the name of a value, or the choices."""
    annotation = param.type_descriptor.annotation
    if choices := [str(one) for one in get_args(annotation) if isinstance(one, str)]:
        return "|".join(choices)
    name = param.metavar or ("N" if annotation is int else param.name.upper())
    is_list = not param.opts[0].startswith("-") and param.nargs != 1 and "..." not in name
    return f"{name}..." if is_list else str(name)


def meaning(param: Any) -> str:
    """Return the help of an argument or an option, with its default."""
    parts = [param.help]
    is_option = param.opts[0].startswith("-")
    if is_option and param.required:
        parts.append("Required.")
    if is_option and param.multiple:
        parts.append("Repeatable.")
    if param.show_default and param.default is not None and not getattr(param, "is_flag", False):
        parts.append(f"Default: {param.default:,}." if is_number(param.default) else "")
        parts[-1] = parts[-1] or f"Default: {param.default}."
    return " ".join(parts)


def in_cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", r"\|")


def is_number(found: object) -> bool:
    """Say whether a default is shown with commas."""
    return isinstance(found, int) and not isinstance(found, bool)


def main(words: list[str]) -> int:
    """Write the page, or report that it is stale."""
    wanted = written()
    if words == ["--check"]:
        if wanted == PAGE.read_text(encoding="utf-8"):
            return 0
        print("docs/guide/cli.md is not as the commands are; run make docs")
        return 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
