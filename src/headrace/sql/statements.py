"""The statements of an SQL app, read from its text; queries stay trees of sqlglot.

The grammar of a query is DuckDB's, with a window in brackets behind a table or a query in
brackets: ``[5 minutes]``, ``[1 hour every 5 minutes]``, ``[sliding 1 hour]``,
``[session 30 minutes]``. The statements around it are those of Puma (seed 003, Figure 2),
``CREATE STREAM``, ``CREATE VIEW``, and ``INSERT INTO`` what ``CREATE SINK`` declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from headrace.durations import duration_ms
from headrace.errors import InvalidInputError
from headrace.queries.parsing import parse_words, tokens_of
from headrace.queries.text import Named, Place, SqlText, near, place_of
from headrace.redaction import SecretText

WINDOW = "window"
"""Of a table or query that is read: the ``WindowText`` behind it."""

TABLE, STREAM, VIEW, INSERT = "table", "stream", "view", "insert"

SIDE_OUTPUT = "side_output"
"""The option ``late`` of queries whose late rows go to a stream of their own."""

_NAMES = (TokenType.STRING, TokenType.IDENTIFIER)


@dataclass(frozen=True)
class WindowText:
    """The window behind a table: its kind, size and step in milliseconds."""

    kind: str
    size_ms: int
    step_ms: int | None
    place: Place


@dataclass(frozen=True)
class InputTable:
    """``CREATE INPUT TABLE``: columns of a stream, with types or without, and its event time.

    With a ``key``, the last row of each key counts; only then can it be without ``time``.
    ``is_proctime``: the event time is the clock of the epoch that reads a row.
    """

    name: Named
    columns: tuple[Named, ...]
    types: tuple[exp.DataType | None, ...]
    key: tuple[Named, ...]
    stream: Named
    time: Named | None
    lateness_ms: int | None
    is_proctime: bool = False


@dataclass(frozen=True)
class FunctionText:
    """``CREATE FUNCTION``: its name, and the module and name of what it calls."""

    name: Named
    target: Named


@dataclass(frozen=True)
class OptionText:
    """An option of a sink: a text, a number, a truth value, or a list of these."""

    name: Named
    value: Any


@dataclass(frozen=True)
class SinkText:
    """``CREATE SINK``: its columns, with types or without, or none, and its options."""

    name: Named
    columns: tuple[Named, ...]
    types: tuple[exp.DataType | None, ...]
    options: tuple[OptionText, ...]


@dataclass(frozen=True)
class Emit:
    """``EMIT``: when results are sent that are not final.

    Every so much event time, with so many rows, or so long after the last row. ``is_early`` is for
    windows; otherwise it is for totals without one.
    """

    place: Place
    is_early: bool = False
    every_ms: int | None = None
    rows: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True)
class Query:
    """``CREATE TABLE``, ``STREAM`` or ``VIEW``: a name and the query that makes its rows.

    Of ``INSERT INTO``, the name is that of the sink, and ``into`` has the columns that it names.
    ``options`` are those of the app, and its own.
    """

    name: Named
    kind: str
    tree: exp.Query
    emit: Emit | None
    options: Mapping[str, int | str]
    into: tuple[Named, ...] = ()


@dataclass(frozen=True)
class Statements:
    """What an app's text says, in its order.

    ``options`` are those of the app.
    """

    source: SqlText
    name: Named
    inputs: tuple[InputTable, ...] = ()
    queries: tuple[Query, ...] = ()
    options: Mapping[str, int | str] = field(default_factory=dict)
    functions: tuple[FunctionText, ...] = ()
    sinks: tuple[SinkText, ...] = ()

    def lines(self) -> list[tuple[int, str]]:
        """Return where each statement with rows is, and its first words, in the order of lines."""
        found = [(one.name, f"CREATE INPUT TABLE {one.name.text}") for one in self.inputs]
        for one in self.queries:
            verb = "INSERT INTO" if one.kind == INSERT else f"CREATE {one.kind.upper()}"
            found.append((one.name, f"{verb} {one.name.text}"))
        return sorted((self.source.line(name.place), text) for name, text in found)


def _window(source: SqlText, begin: Token, words: Sequence[Token]) -> WindowText:
    place = Place(begin.start, (words[-1] if words else begin).end + 1)
    texts = [word.text.lower() for word in words]
    kind = "tumbling"
    if texts and texts[0] in ("tumbling", "sliding", "session"):
        kind = texts.pop(0)
    size, _, step = " ".join(texts).partition(" every ")
    try:
        size_ms = duration_ms(size, "a window's size")
        step_ms = duration_ms(step, "a window's step") if step else None
    except InvalidInputError as error:
        raise source.mistake(
            f"{error.message}; write a window as [5 minutes], [1 hour every 5 minutes], "
            "[sliding 1 hour] or [session 30 minutes]",
            place,
        ) from error
    if step_ms is not None and kind != "tumbling":
        raise source.mistake(f"a {kind} window has no step", place)
    return WindowText("hopping" if step_ms else kind, size_ms, step_ms, place)


def parse_query(source: SqlText, tokens: Sequence[Token] | None = None) -> exp.Query:
    """Return the one query of a text: a ``SELECT``, or a ``UNION``.

    Raises:
        InvalidInputError: it is none; shows where.
    """
    words = list(tokens_of(source) if tokens is None else tokens)
    if not words:
        raise source.mistake("expected a query: SELECT ... FROM ...", Place(0, 1))
    words, windows = _without_windows(source, words)
    tree = parse_words(source, words)
    if not isinstance(tree, exp.Query):
        place = Place(words[0].start, words[0].end + 1)
        raise source.mistake("expected one query: SELECT ... FROM ...", place)
    for read in tree.find_all(exp.Table, exp.Subquery):
        name = read.args.get("alias") if isinstance(read, exp.Subquery) else read.this
        if name is not None:
            read.set(WINDOW, windows.get(place_of(name).begin))
    return tree


def _without_windows(
    source: SqlText, words: Sequence[Token]
) -> tuple[list[Token], dict[int, WindowText]]:
    """Take out the windows behind tables and queries.

    Returns:
        The other words, and the windows by where the name of the table begins, or the alias of the
        query; one without an alias gets one.
    """
    kept, windows, at = list[Token](), dict[int, WindowText](), 0
    while at < len(words):
        word = words[at]
        begin = _read_before(kept) if word.token_type is TokenType.L_BRACKET else None
        if begin is None:
            kept.append(word)
            at += 1
            continue
        end = at
        while end < len(words) and words[end].token_type is not TokenType.R_BRACKET:
            end += 1
        if end == len(words):
            raise source.mistake("the bracket has no end", Place(word.start, word.end + 1))
        window = _window(source, word, words[at + 1 : end])
        at = end + 1
        if kept[begin].token_type is not TokenType.L_PAREN:
            windows[kept[begin].start] = window
        elif kept[-1].token_type is not TokenType.R_PAREN:
            windows[kept[-1].start] = window
        else:
            rest = [w for w in words[at : at + 2] if w.token_type is not TokenType.ALIAS]
            if not rest or rest[0].token_type not in _ALIASES:
                name = Token(TokenType.VAR, "_query", word.line, word.col, word.start, word.end)
                kept.append(name)
                rest = [name]
            windows[rest[0].start] = window
    return kept, windows


_ALIASES = (TokenType.VAR, TokenType.IDENTIFIER)


def _read_before(words: Sequence[Token]) -> int | None:
    """Return where the table or query begins that the words end with, its alias included."""

    def begin_of(end: int) -> int | None:
        begin, depth = end, 0
        if end >= 0 and words[end].token_type is TokenType.R_PAREN:
            for begin in range(end, -1, -1):
                kind = words[begin].token_type
                depth += (kind is TokenType.R_PAREN) - (kind is TokenType.L_PAREN)
                if depth == 0:
                    break
        follows = begin > 0 and words[begin - 1].token_type in (TokenType.FROM, TokenType.JOIN)
        return begin if follows else None

    last = len(words) - 1
    found = begin_of(last)
    if found is None and last > 0 and words[last].token_type in _ALIASES:
        found = begin_of(last - 1 - (words[last - 1].token_type is TokenType.ALIAS))
    return found


def parse_app(source: SqlText) -> Statements:
    """Return the statements of an app.

    Raises:
        InvalidInputError: one is not known, or is not complete; shows where.
    """
    statements: list[list[Token]] = [[]]
    for token in tokens_of(source):
        if token.token_type is TokenType.SEMICOLON:
            statements.append([])
        else:
            statements[-1].append(token)
    reader = _Reader(source)
    for words in filter(None, statements):
        reader.read(words)
    return reader.finish()


STATE = "state"
"""The option that says on which server the state of a table is."""

STATE_SCHEMES = {
    "postgres": ("postgresql://", "postgres://"),
    "redis": ("redis://", "rediss://", "unix://"),
}
"""How addresses of servers begin that have state of tables."""

OPTIONS: dict[str, tuple[str, ...] | type] = {
    "topk": int,
    "allowed_lateness": str,
    "late": ("drop", "update", SIDE_OUTPUT),
    "updates": ("replace", "retract", "add"),
    STATE: SecretText,
}
"""Options of apps and queries: a number, a duration (``str``), an address, or one of some words."""


def parse_stream_query(source: SqlText) -> tuple[exp.Query, Emit | None]:
    """Return a query over streams, and the ``EMIT`` behind it.

    Raises:
        InvalidInputError: it is none; shows where.
    """
    return _Reader(source).query(tokens_of(source))


class _Reader:
    """Reads statements one after the other."""

    def __init__(self, source: SqlText) -> None:
        self._source = source
        self._name: Named | None = None
        self._inputs: list[InputTable] = []
        self._queries: list[Query] = []
        self._functions: list[FunctionText] = []
        self._sinks: list[SinkText] = []
        self._options: dict[str, int | str] = {}
        self._words: list[Token] = []
        self._at = 0

    def finish(self) -> Statements:
        """Return what was read."""
        if self._name is None:
            raise self._source.mistake(
                "an app begins with its name: CREATE APPLICATION name;", Place(0, 1)
            )
        return Statements(
            self._source,
            self._name,
            tuple(self._inputs),
            tuple(self._queries),
            self._options,
            tuple(self._functions),
            tuple(self._sinks),
        )

    def read(self, words: list[Token]) -> None:
        """Read one statement."""
        self._words, self._at = words, 0
        if self._takes("INSERT"):
            self._expect("INTO")
            self._query(INSERT)
            return
        self._expect("CREATE", "INSERT INTO")
        if self._takes("APPLICATION"):
            self._application()
        elif self._takes("INPUT"):
            self._expect("TABLE")
            self._input()
        elif self._takes("FUNCTION"):
            self._function()
        elif self._takes("SINK"):
            self._sink()
        elif kind := next(filter(self._takes, (TABLE.upper(), STREAM.upper(), VIEW.upper())), None):
            self._query(kind.lower())
        else:
            self._fail(
                "expected CREATE APPLICATION, FUNCTION, INPUT TABLE, SINK, TABLE, STREAM or VIEW"
            )

    def _application(self) -> None:
        if self._name is not None:
            self._fail(f"the app has a name already, {self._name.text!r}; a file is one app")
        self._name = self._named("the app")
        self._options = self._with()
        self._end()

    def _with(self) -> dict[str, int | str]:
        """Take options, if there are any."""
        found: dict[str, int | str] = {}
        if not self._takes("WITH"):
            return found
        self._expect("(")
        while True:
            key = self._named("an option")
            if key.text not in OPTIONS:
                raise self._source.mistake(
                    f"no option {key.text!r}; {near(key.text, OPTIONS)}", key.place
                )
            self._expect("=")
            found[key.text] = self._value(OPTIONS[key.text], self._next())
            if not self._takes(","):
                break
        self._expect(")")
        return found

    def _value(self, kind: tuple[str, ...] | type, word: Token) -> int | str:
        if isinstance(kind, tuple):
            if word.text.lower() not in kind:
                self._fail(f"expected {' or '.join(map(repr, kind))}", word)
            return word.text.lower()
        if kind is SecretText:
            known = [one for schemes in STATE_SCHEMES.values() for one in schemes]
            if not word.text.startswith(tuple(known)):
                self._fail(f"expected the address of a server, one of {', '.join(known)}", word)
            return SecretText.of(word.text) or ""
        if kind is int:
            if not word.text.isdigit() or int(word.text) < 1:
                self._fail("expected a whole number of at least 1", word)
            return int(word.text)
        return self._duration(word, least=0)

    def _duration(self, word: Token, least: int = 1) -> int:
        try:
            return duration_ms(word.text, "a duration", least=least)
        except InvalidInputError as error:
            self._fail(f"{error.message}, in quotes", word)

    def _input(self) -> None:
        name = self._named("a table")
        columns, types, key = list[Named](), list[exp.DataType | None](), list[Named]()
        self._expect("(")
        while True:
            if self._takes_key(key):
                key += self._names("a column of the key")
            else:
                columns.append(self._named("a column"))
                types.append(self._type())
                if self._takes_key(key):
                    key.append(columns[-1])
            if not self._takes(","):
                break
        self._expect(")")
        self._expect("FROM")
        self._expect("SCRIBE", "STREAM")
        self._expect("(")
        stream = self._next()
        if stream.token_type not in _NAMES:
            self._fail('expected the name of a stream in quotes, such as SCRIBE("clicks")', stream)
        self._expect(")")
        time: Named | None = None
        if not key or self._rest():
            self._expect("TIME")
            time = self._named("the column of the event time")
        is_proctime = time is not None and time.text.upper() == "PROCTIME" and self._takes("(")
        if is_proctime:
            self._expect(")")
            time = None
        lateness: int | None = None
        if self._takes("LATENESS"):
            if is_proctime:
                self._fail("rows by PROCTIME() are never late: no LATENESS", self._words[-1])
            lateness = self._duration(self._next(), least=0)
        self._end()
        known = [column.text for column in columns]
        for column in columns:
            if known.count(column.text) > 1:
                raise self._source.mistake(f"column {column.text!r} is there twice", column.place)
        for used in (*key, *([] if time is None else [time])):
            if used.text not in known:
                raise self._source.mistake(
                    f"table {name.text!r} has no column {used.text!r}; {near(used.text, known)}",
                    used.place,
                )
        if any(types) and not all(types):
            raise self._source.mistake(
                "give the types of all columns, or of none: then they are those of the stream",
                name.place,
            )
        self._inputs.append(
            InputTable(
                name,
                tuple(columns),
                tuple(types),
                tuple(key),
                Named(stream.text, Place(stream.start, stream.end + 1)),
                time,
                lateness,
                is_proctime,
            )
        )

    def _takes_key(self, known: Sequence[Named]) -> bool:
        """Take ``PRIMARY KEY``, which a table has once."""
        begin = self._words[self._at] if self._rest() else None
        if not self._takes("PRIMARY KEY"):
            if not self._takes("PRIMARY"):
                return False
            self._expect("KEY")
        if known:
            self._fail("a table has one PRIMARY KEY (column, ...)", begin)
        return True

    def _names(self, what: str) -> list[Named]:
        """Take names in brackets."""
        self._expect("(")
        found = [self._named(what)]
        while self._takes(","):
            found.append(self._named(what))
        self._expect(")")
        return found

    def _type(self) -> exp.DataType | None:
        begin, depth = self._at, 0
        while self._at < len(self._words):
            text = self._words[self._at].text
            if depth == 0 and text.upper() in (",", ")", "PRIMARY", "PRIMARY KEY"):
                break
            depth += (text == "(") - (text == ")")
            self._at += 1
        words = self._words[begin : self._at]
        if not words:
            return None
        text = self._source.text[words[0].start : words[-1].end + 1]
        try:
            return exp.DataType.build(text, dialect="duckdb")
        except (ParseError, ValueError) as error:
            raise self._source.mistake(
                f"no type {text!r}; expected one such as BIGINT, DOUBLE, VARCHAR or TIMESTAMP",
                Place(words[0].start, words[-1].end + 1),
            ) from error

    def _function(self) -> None:
        name = self._named("a function")
        self._expect("USING")
        word = self._next()
        target = Named(word.text, Place(word.start, word.end + 1))
        if word.token_type not in _NAMES or not all(word.text.partition(":")):
            self._fail("expected 'module:function' in quotes", word)
        self._end()
        self._functions.append(FunctionText(name, target))

    def _sink(self) -> None:
        name = self._named("a sink")
        columns, types = list[Named](), list[exp.DataType | None]()
        if self._takes("("):
            while True:
                columns.append(self._named("a column"))
                types.append(self._type())
                if not self._takes(","):
                    break
            self._expect(")")
        if any(types) and not all(types):
            raise self._source.mistake("give the types of all columns, or of none", name.place)
        self._expect("WITH")
        self._expect("(")
        options = []
        while True:
            key = self._named("an option")
            self._expect("=")
            options.append(OptionText(key, self._constant()))
            if not self._takes(","):
                break
        self._expect(")")
        self._end()
        self._sinks.append(SinkText(name, tuple(columns), tuple(types), tuple(options)))

    def _constant(self) -> Any:
        """Take a text, a number, a truth value, or a list of these in brackets."""
        word = self._next()
        if word.text == "(":
            found = [self._constant()]
            while self._takes(","):
                found.append(self._constant())
            self._expect(")")
            return found
        if word.token_type is TokenType.NUMBER:
            return int(word.text) if word.text.isdigit() else float(word.text)
        if word.text.upper() in ("TRUE", "FALSE"):
            return word.text.upper() == "TRUE"
        if word.token_type not in _NAMES:
            self._fail("expected a text in quotes, a number, TRUE, FALSE or a list", word)
        return word.text

    def _is_query(self) -> bool:
        """Say whether a query is next, in brackets or without."""
        words = self._words[self._at :]
        return any(word.text.upper() in ("SELECT", "WITH", "FROM") for word in words[:2])

    def _query(self, kind: str) -> None:
        name = self._named("a sink" if kind == INSERT else f"a {kind}")
        into: list[Named] = []
        if kind == INSERT:
            into = [] if self._is_query() else self._names("a column")
            options = self._options
        else:
            options = {**self._options, **self._with()}
            self._expect("AS")
        tree, emit = self._tree()
        self._queries.append(Query(name, kind, tree, emit, options, tuple(into)))

    def query(self, words: list[Token]) -> tuple[exp.Query, Emit | None]:
        """Return a query, and the ``EMIT`` behind it, of words that are nothing else."""
        self._words, self._at = words, 0
        return self._tree()

    def _tree(self) -> tuple[exp.Query, Emit | None]:
        end = next(
            (n for n in range(self._at, len(self._words)) if self._words[n].text.upper() == "EMIT"),
            len(self._words),
        )
        words, self._at = self._words[self._at : end], end
        if not words and self._words:
            self._fail("expected a query: SELECT ... FROM ...")
        return parse_query(self._source, words), self._emit()

    def _emit(self) -> Emit | None:
        """Take ``EMIT``, if it is there."""
        if not self._rest():
            return None
        begin = self._next()
        found: dict[str, Any] = {}
        if not self._takes("FINAL"):
            found["is_early"] = self._takes("EARLY")
            if found["is_early"] and self._takes("IDLE"):
                found["idle_ms"] = self._duration(self._next())
            elif self._takes("EVERY"):
                word = self._next()
                if found["is_early"] and word.text.isdigit() and self._takes("ROWS"):
                    found["rows"] = self._value(int, word)
                else:
                    found["every_ms"] = self._duration(word)
            else:
                self._fail("expected FINAL, EARLY EVERY, EARLY IDLE or EVERY")
        self._end()
        return Emit(Place(begin.start, self._words[-1].end + 1), **found)

    def _rest(self) -> bool:
        return self._at < len(self._words)

    def _next(self) -> Token:
        if not self._rest():
            self._fail("the statement ends too early")
        self._at += 1
        return self._words[self._at - 1]

    def _takes(self, word: str) -> bool:
        if self._rest() and self._words[self._at].text.upper() == word:
            self._at += 1
            return True
        return False

    def _expect(self, *words: str) -> None:
        if not any(self._takes(word) for word in words):
            self._fail(f"expected {' or '.join(words)}")

    def _named(self, what: str) -> Named:
        token = self._next()
        if not (token.text.replace("_", "a").isalnum() or token.token_type in _NAMES):
            self._fail(f"expected the name of {what.removeprefix('the ')}", token)
        return Named(token.text, Place(token.start, token.end + 1))

    def _end(self) -> None:
        if self._rest():
            self._fail("expected a semicolon")

    def _fail(self, message: str, token: Token | None = None) -> NoReturn:
        at = token or (self._words[self._at] if self._rest() else None)
        if at is None:
            end = self._words[-1].end + 1
            raise self._source.mistake(
                f"{message}; found the end of the statement", Place(end, end)
            )
        raise self._source.mistake(f"{message}; found {at.text!r}", Place(at.start, at.end + 1))
