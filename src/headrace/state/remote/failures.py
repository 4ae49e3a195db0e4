"""What a server's errors mean: which are tried again, and what is told at the end."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any
from urllib.parse import quote

from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.graph.remote import Remote, shown_url

_VARIABLE = re.compile(r"\$\{(\w+)\}")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


def library(name: str = "redis") -> Any:
    """Return a module of the client library, which is loaded when it is first needed.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "stores of kind remote need the Redis client, which is not installed here; install "
            "it on every host with: pip install 'headrace[remote]'"
        ) from error


def real_url(remote: Remote, store: str) -> str:
    """Return the address to connect to, with variables of the environment put in.

    Those of the login are quoted, so that a password may hold any character.

    Raises:
        InvalidInputError: there is no address, or a variable is not set.
    """
    if remote.url is None:
        raise InvalidInputError(
            f"store {store!r} is remote but has no address; give hr.store(url=...), or the "
            "setting remote.url",
            store=store,
        )
    missing = sorted({name for name in _VARIABLE.findall(remote.url) if name not in os.environ})
    if missing:
        raise InvalidInputError(
            f"the url of store {store!r} names variables that are not set here: {missing}; set "
            "them in the environment of every executor",
            store=store,
        )
    login, at, place = remote.url.rpartition("@")
    login = _VARIABLE.sub(lambda found: quote(os.environ[found[1]], safe=""), login)
    return login + at + _VARIABLE.sub(lambda found: os.environ[found[1]], place)


def may_pass(error: Exception) -> bool:
    """Say whether the same request may work later: the server is away, starting or slow."""
    redis = library()
    refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
    lost = (redis.ConnectionError, redis.TimeoutError, ConnectionError, TimeoutError, OSError)
    return isinstance(error, lost) and not isinstance(error, refused)


def told(error: Exception, remote: Remote, store: str, tries: int) -> HeadraceError:
    """Return the error that says what failed and what to do."""
    redis = library()
    where = shown_url(remote.url or "")
    if may_pass(error):
        return UnavailableError(
            f"store {store!r}: the server at {where} did not answer, {tries} tries within "
            f"{remote.patience}: {_plain(error)}; check that it runs and can be reached from this "
            "host; the epoch is run again when the job is started again",
            store=store,
        )
    refused = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
    if isinstance(error, refused) or _plain(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
        return InvalidInputError(
            f"store {store!r}: the server at {where} refuses this login: {_plain(error)}; give "
            "user and password in the url, as redis://user:${PASSWORD}@host",
            store=store,
        )
    if _plain(error).startswith("WRONGTYPE"):
        return InvalidInputError(
            f"store {store!r}: a key at {where} holds a list, hash or set, expected a string; "
            "another program uses the same names: give hr.Remote(namespace=...)",
            store=store,
        )
    return UnavailableError(
        f"store {store!r}: the server at {where} refuses: {_plain(error)}; make room or let it "
        "take writes, then start the job again",
        store=store,
    )


def pause_s(tries: int) -> float:
    """Return how long to wait after so many tries."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries - 1, 10)))


def _plain(error: Exception) -> str:
    return str(error) or type(error).__name__
