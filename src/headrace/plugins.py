"""Plug-ins: parts of Headrace and of other packages, found by their entry points when first used.

A package names them in its metadata: a group, the name that users write, and an object. The core
asks for a name of a group and imports no plug-in, so that packages can be added and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace import extras
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "headrace.commands"
"""Verbs of the command line: a ``typer.Typer`` for a group of commands, a function for one."""

SINKS = "headrace.sinks"
"""Names below ``hr.sinks``: what makes a ``Sink``, with the arguments that users give."""

STORES = "headrace.stores"
"""Schemes of the addresses of remote stores: what makes a ``RemoteClient``."""

TABLES = "headrace.tables"
"""Where ``g.output_table`` writes: a ``Warehouse``."""

LOGS = "headrace.logs"
"""Schemes of the addresses of inputs and outputs that are not on the bus: a ``LogConnector``."""

JOBS = "headrace.jobs"
"""Endings of files that are jobs, such as ``sql``: a function from the path to the ``Job``."""

QUERIES = "headrace.queries"
"""``sql`` returns the stream of a query over streams, ``where`` the expression of a condition."""

ROUTES = "headrace.routes"
"""Routes of the API of a driver: a function that adds them, of the app and the ``LiveJob``."""

STORAGES = "headrace.storages"
"""Schemes of the addresses of job storage: what makes an ``ObjectStorage``, of scheme, bucket."""

_KINDS = {
    COMMANDS: "command",
    SINKS: "sink",
    STORES: "remote store",
    LOGS: "kind of log",
    TABLES: "keeper of tables",
    JOBS: "kind of file",
    QUERIES: "compiler of queries",
    ROUTES: "group of routes",
    STORAGES: "object storage",
}


def names(group: str) -> list[str]:
    """Return the names that the plug-ins of a group have, sorted; loads none of them."""
    return sorted({one.name for one in _installed()[group]})


def mistake(group: str, name: str, own: Sequence[str] = ()) -> str | None:
    """Return why a name that users write cannot be used, without loading it; ``None``: it can.

    Args:
        group: such as ``SINKS``.
        name: as users write it.
        own: names that are known without plug-ins.
    """
    known = sorted({*names(group), *own})
    if name in known:
        return None
    if own or (hint := missing_own()) is None:
        near = get_close_matches(name, known, 1)
        listed = " or ".join(filter(None, (", ".join(known[:-1]), *known[-1:])))
        hint = f"did you mean {near[0]!r}?" if near else f"expected {listed or 'none'}"
        hint += f"{' P' if near else '; p'}ackages can add others"
    return f"no {_KINDS[group]} {name!r}; {hint}"


def load(group: str, name: str) -> Any:
    """Return what a plug-in gives, which is imported when it is first used.

    Args:
        group: such as ``STORES``.
        name: as users write it.

    Raises:
        InvalidInputError: no package gives that name, two do, or it cannot be imported.
    """
    if (text := mistake(group, name)) is not None:
        raise InvalidInputError(text)
    found = {one.value: one for one in _installed()[group] if one.name == name}
    if len(found) > 1:
        givers = ", ".join(sorted(map(_distribution, found.values())))
        raise InvalidInputError(
            f"{_KINDS[group]} {name!r} is given by several packages: {givers}; uninstall all but "
            "one of them"
        )
    [one] = found.values()
    try:
        return one.load()
    except Exception as error:
        if (missing := extras.missing(error, f"{_KINDS[group]} {name!r}")) is not None:
            raise missing from error
        raise InvalidInputError(
            f"{_KINDS[group]} {name!r} of package {_distribution(one)} cannot be loaded from "
            f"{one.value}: {type(error).__name__}: {error}; install what it needs, or uninstall it"
        ) from error


def missing_own() -> str | None:
    """Return what to do if the plug-ins of Headrace itself are not known here; else ``None``."""
    if any(_distribution(one).startswith("headrace ") for one in _installed()[COMMANDS]):
        return None
    return (
        "the metadata of headrace names none of its plug-ins, as where only its source is on the "
        "path: install it again, with pip install"
    )


def _distribution(one: EntryPoint) -> str:
    return "unknown" if one.dist is None else f"{one.dist.name} {one.dist.version}"


def _installed() -> Mapping[str, tuple[EntryPoint, ...]]:
    return _scanned(tuple(sys.path))


@lru_cache(maxsize=1)
def _scanned(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points by group: some milliseconds for a hundred packages."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - ten milliseconds more

    every = entry_points()
    return {group: tuple(every.select(group=group)) for group in _KINDS}
