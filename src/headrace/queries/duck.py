"""DuckDB in this process without files, network, settings or extensions, and limits of time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from headrace import extras
from headrace.clock import SystemClock
from headrace.errors import InvalidInputError
from headrace.queries.text import Place, SqlText, near

_CHECK_S, _IDLE_CHECKS = 0.05, 100
NO_ACCESS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}


def locked_duckdb(
    use: str,
    *,
    memory: str,
    threads: int,
    paths: Iterable[Path | str] = (),
    folders: Iterable[Path | str] = (),
    prepare: Callable[[Any], None] | None = None,
) -> Any:
    """Return a connection to a new DuckDB that can reach nothing but what is named here.

    Args:
        use: what needs it, for the error where DuckDB is not installed.
        memory: that all its queries may take, such as ``512MB``.
        threads: that its queries share.
        paths: files that it can read.
        folders: folders whose files it can read.
        prepare: called with the connection before it is locked.

    Raises:
        InvalidInputError: DuckDB is not installed.
    """
    duckdb = extras.load("duckdb", use)
    connection = duckdb.connect(
        ":memory:", config={**NO_ACCESS, "memory_limit": memory, "threads": threads}
    )
    for setting, named in (("allowed_paths", paths), ("allowed_directories", folders)):
        listed = ", ".join("'" + str(one).replace("'", "''") + "'" for one in named)
        if listed:
            connection.execute(f"SET {setting} = [{listed}]")
    connection.execute("SET TimeZone = 'UTC'")
    if prepare is not None:
        prepare(connection)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


class Watchdog:
    """Interrupts calls that take too long: one thread for all, as beginning one can take long."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers, self._clock = count(), SystemClock()
        self._changed, self._is_idle = threading.Condition(), False
        threading.Thread(target=self._run, name="headrace query limits", daemon=True).start()

    @contextmanager
    def limit(self, seconds: float, interrupt: Callable[[], None]) -> Iterator[None]:
        """Interrupt what is done within, if it takes longer; afterwards, it is left alone."""
        with self._changed:
            number = next(self._numbers)
            self._calls[number] = self._clock.monotonic() + seconds, interrupt
            if self._is_idle:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._calls.pop(number, None)

    def _run(self) -> None:
        checks = 0
        with self._changed:
            while True:
                checks = 0 if self._calls else checks + 1
                self._is_idle = checks > _IDLE_CHECKS  # to be woken delays a query by some ms
                self._changed.wait(None if self._is_idle else _CHECK_S)
                now = self._clock.monotonic()
                for number in [n for n, (due, _) in self._calls.items() if due <= now]:
                    self._calls.pop(number)[1]()


@cache
def watchdog() -> Watchdog:
    """Return the one of this process."""
    return Watchdog()


_UNKNOWN = {
    "column": r'column "([^"]+)" not found|not have a column named "([^"]+)"',
    "function": r"Function with name (\w+) does not exist",
}
"""What DuckDB says of names that it does not know; it then names the nearest ones."""


def refusal(source: SqlText, columns: set[str], error: Exception | str) -> InvalidInputError:
    """Return what DuckDB says, at the first place of the name that it is about."""
    said = str(error)
    message, found = f"DuckDB: {said.splitlines()[0]}", re.search(r'"([^"]+)"', said)
    for what, pattern in _UNKNOWN.items():
        if (unknown := re.search(pattern, said)) is not None:
            name = next(filter(None, unknown.groups()))
            nearest = re.findall(r'"([^"]+)"', said[unknown.end() :].partition("LINE")[0])
            known = {*nearest, *(columns if what == "column" else ())}
            message = f"no {what} {name!r}" + (f"; {near(name, known)}" if known else "")
            found = unknown
    name = "" if found is None else next(filter(None, found.groups()))
    at = re.search(rf"\b{re.escape(name)}\b", source.text, re.IGNORECASE) if name else None
    place = Place(0, len(source.text)) if at is None else Place(*at.span())
    return source.mistake(message, place)
