"""Pages and help texts are in plain English; lines of pages are short."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import GUIDE, ROOT
from tests.support.cli import ALL
from tests.support.homes import Settings, setting_keys
from tests.support.watching import TABLE

WIDTH = 120
MOST_WORDS = 30
"""Of a cell of a table."""
IDIOMS = (
    "told",
    "tells",
    "lets? go",
    "letting go",
    "mend(s|ed|ing)?",
    "anew",
    "whoever",
    "(of yours|of ours)",
    "(go|goes|going|gone) on",
    "put(s|ting)?( it| them| that| these| this)? right",
    "reign",
    "as a whole",
    "for ever",
    "by way of",
    "what becomes of",
    "what comes of",
    "is no more",
    "apart by",
    "as ever",
    "at the rate of now",
    "in the midst",
    "signs? of life",
    "(for|over for) good",
)
IDIOM = re.compile(rf"\b({'|'.join(IDIOMS)})\b", re.IGNORECASE)
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(DOCS / f"{name}.md" for name in ("architecture", "glossary", "not-doing", "benchmarks")),
    ROOT / "bench" / "README.md",
    ROOT / "tests" / "README.md",
    *sorted(GUIDE.rglob("*.md")),
    *sorted((DOCS / "decisions").glob("*.md")),
]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside code blocks, with their numbers."""
    is_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


PROSE = [*PAGES, *sorted((DOCS / "reference").glob("*.md"))]


@pytest.mark.parametrize("page", PROSE, ids=[str(page.relative_to(ROOT)) for page in PROSE])
def test_lines_are_short(page: Path) -> None:
    long = [
        n for n, line in prose(page) if not line.lstrip().startswith("|") and len(line) >= WIDTH
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_tables_hold_words_and_no_paragraphs(page: Path) -> None:
    rows = [(n, line) for n, line in prose(page) if line.startswith("|")]
    cells = [(n, cell.strip()) for n, line in rows for cell in line.split("|")]
    assert [(n, cell) for n, cell in cells if len(cell.split()) > MOST_WORDS] == []


OPENING = 25
"""Lines of a page that are seen first."""
TOPICS = [page for page in sorted(GUIDE.rglob("*.md")) if page.name != "README.md"]


@pytest.mark.parametrize("page", TOPICS, ids=[str(page.relative_to(ROOT)) for page in TOPICS])
def test_a_page_opens_with_what_it_is_for_and_an_example(page: Path) -> None:
    heading, blank, first, *opening = page.read_text(encoding="utf-8").splitlines()[:OPENING]

    assert heading.startswith("# ")
    assert blank == ""
    assert first[:1].isalnum() or first[:1] in "`*"
    assert any(line.startswith("```") for line in opening)


@pytest.mark.parametrize("page", PROSE, ids=[str(page.relative_to(ROOT)) for page in PROSE])
def test_no_private_idioms(page: Path) -> None:
    text = "\n".join(line for _, line in prose(page))
    assert [re.sub(r"\s+", " ", found[0]) for found in IDIOM.finditer(text)] == []


def test_fragments_of_changes_have_short_lines_and_no_private_idioms() -> None:
    texts = {page.name: page.read_text("utf-8") for page in (ROOT / "changes").glob("*.md")}

    assert [n for n, text in texts.items() if max(map(len, text.splitlines())) >= WIDTH] == []
    assert [(n, IDIOM.findall(text)) for n, text in texts.items() if IDIOM.search(text)] == []


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_docstrings_of_examples_have_no_private_idioms(example: Path) -> None:
    nodes = ast.walk(ast.parse(example.read_text(encoding="utf-8")))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    text = "\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds))
    assert IDIOM.findall(text) == []


SOURCES = sorted((ROOT / "src").rglob("*.py"))


def tokens(source: Path) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a file, which takes a while: look first whether its text may matter."""
    with tokenize.open(source) as lines:
        yield from tokenize.generate_tokens(lines.readline)


def test_comments_docstrings_and_messages_of_the_source_have_no_private_idioms() -> None:
    found = []
    for source in SOURCES:
        for token in tokens(source) if IDIOM.search(source.read_text("utf-8")) else ():
            if token.type in {tokenize.COMMENT, tokenize.STRING}:
                found += [
                    f"{source.name}:{token.start[0]}: {one[0]}"
                    for one in IDIOM.finditer(token.string)
                ]
    assert found == []


NAMES = re.compile(
    "_?(tell|told|telling)(_.*)?|.*(^|_)(reign|patien(t|ce)(_s)?|tenure|parcels?|ledger|bells?|"
    "ringing|ringer|letting_go|seats?|seated|homeless|untold|whoever|surroundings)",
    re.IGNORECASE,
)
"""Names by which the code once called what the field has words for."""
WORD = re.compile(r"[^\W\d]\w*")
ALLOWED = {"tell", "patience"}
"""``tell`` of a file is Python's; ``patience=`` is deprecated."""


def test_names_in_the_source_are_not_private_words() -> None:
    words = {source: set(WORD.findall(source.read_text("utf-8"))) for source in SOURCES}
    wrong = {word for word in set().union(*words.values()) - ALLOWED if NAMES.fullmatch(word)}
    found = [
        f"{source.name}:{token.start[0]}: {token.string}"
        for source in SOURCES
        if not wrong.isdisjoint(words[source])
        for token in tokens(source)
        if token.type == tokenize.NAME and token.string in wrong
    ]
    assert found == []


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield what commands, settings and metrics say of themselves, and where."""
    for name, command in ALL.items():
        yield name, command.help
        yield from ((f"{name} {param.opts[0]}", param.help) for param in command.params)
    yield from ((key, Settings().explain(key).description) for key in setting_keys())
    yield from ((one.name, one.text) for one in TABLE)


def test_help_has_no_private_idioms() -> None:
    found = [(where, IDIOM.findall(text)) for where, text in help_texts() if IDIOM.search(text)]
    assert found == []


def test_a_command_says_in_one_line_what_it_does() -> None:
    summaries = [command.help.partition("\n\n")[0] for command in ALL.values()]
    assert [line for line in summaries if "\n" in line or not line.endswith(".")] == []
