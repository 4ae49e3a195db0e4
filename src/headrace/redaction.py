"""What may be a secret, and text without it: for all that is written down or shown.

Two things hide a secret. What it looks like: the login of an address, a value under a name such as
``password``. And what it is: values of settings that are secrets are remembered in the process that
read them, and go from any text, wherever it comes from: a client library, Spark, a traceback.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
_LEAST, _LONG = 4, 12
"""Shorter values are no secrets; of short words only whole words are hidden."""
_MOST_VALUES = 10_000

KEY_PATTERN = (
    r"pass(w|phrase|code)|(?-i:_PASS\b)|pwd|secret|token|credential|signature|\bsas\b|\bsig\b"
    r"|webhook|authorization|bearer\b"
    r"|(access|account|api|encryption|private|shared|storage)[._-]?key"
)
"""What the name of a secret has in it, whatever its case; Java reads it as Python does."""

_KEY = re.compile(KEY_PATTERN, re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_ANY_LOGIN = re.compile(r"://[^/@\s]*@")
_LOGIN = re.compile(r"(?P<begin>://[^\s/?#@:\"']*:)(?P<value>[^\s/@\"']+)(?=@)")
_BEARER = re.compile(r"(?P<begin>\b(?:Bearer|Basic) )(?P<value>[\w.+/=~-]{8,})")
_PAIR = re.compile(
    rf"(?P<begin>(?:{KEY_PATTERN})[\w.-]{{0,80}}[\"']?(?:\s{{0,3}}=\s{{0,3}}|:\s?(?=[\"'])))"
    r"(?P<value>\$\{\w+\}|\"[^\"]*\"|'[^']*'|[^\s&;,\"'\])}]+)",
    re.IGNORECASE,
)
_NO_SECRETS = {HIDDEN, "...", "none", "None", "unset"}

_known: dict[str, re.Pattern[str]] = {}
_ordered: tuple[tuple[str, re.Pattern[str]], ...] = ()
_lock = threading.Lock()


class SecretText(str):
    """An address with a secret in it: hidden where it is shown, and never in the plan of a job."""

    def __new__(cls, value: str) -> SecretText:
        """Remember what is to be hidden."""
        remember_setting("", value)
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        """Return it without its login."""
        return repr(without_login(self))

    @classmethod
    def of(cls, value: str | None) -> str | None:
        """Return a value as it is, or as one of these where it holds a secret."""
        return cls(value) if value is not None and secrets_of("", value) else value


def is_secret(key: str) -> bool:
    """Say whether the name of a setting or option is that of a secret; a file's name is none."""
    return _KEY.search(key) is not None and not key.endswith("_file")


def remember(value: str) -> None:
    """Hide a value from now on in all that this process writes or shows.

    One of less than four characters, and one that names a variable of the environment, stays.
    """
    global _ordered  # noqa: PLW0603 - what a process knows, as its environment
    for form in {value, quote(value, safe=""), unquote(value)}:
        if len(form) < _LEAST or _VARIABLE.fullmatch(form) or form in _NO_SECRETS:
            continue
        begin, end = ("", "")
        if len(form) < _LONG and form.isalnum():
            begin, end = r"(?<![^\W_])", r"(?![^\W_])"
        with _lock:
            if form not in _known and len(_known) < _MOST_VALUES:
                _known[form] = re.compile(f"{begin}{re.escape(form)}{end}")
                _ordered = tuple(sorted(_known.items(), key=lambda one: -len(one[0])))


def remember_setting(key: str, value: object) -> None:
    """Hide from now on what is secret in the value of a setting, an option or an address."""
    if isinstance(value, dict):
        for name, inner in value.items():
            remember_setting(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            remember_setting(key, inner)
    elif isinstance(value, str):
        for found in secrets_of(key, value):
            remember(found)


def secrets_of(key: str, value: str) -> list[str]:
    """Return what is secret in the value of a setting; empty where nothing is."""
    found = [one["value"].strip("\"'") for one in _PAIR.finditer(value)]
    if "://" in value:
        login = value.partition("://")[2].rpartition("@")[0]  # a password may have / and @
        found.append(login.partition(":")[2])
    if is_secret(key):
        found.append(value)
        with suppress(ValueError):  # such as a webhook, which its path makes one
            parts = urlsplit(value)
            found.append(f"{parts.path}?{parts.query}".strip("/?") if parts.scheme else "")
    return [one for one in found if one and not _VARIABLE.search(one)]


def redacted(text: str) -> str:
    """Return a text with ``***`` in the place of every secret that is known or looks like one."""
    if "://" in text:
        text = _LOGIN.sub(_hide, text)
    if "=" in text or ":" in text:
        text = _PAIR.sub(_hide, text)
    if "Bearer " in text or "Basic " in text:
        text = _BEARER.sub(_hide, text)
    for value, pattern in _ordered:
        if value in text:
            text = pattern.sub(HIDDEN, text)
    return text


def _hide(found: re.Match[str]) -> str:
    value = found["value"]
    mark = value[0] if value[0] in "\"'" else ""
    bare = value.strip("\"'")
    if not bare or bare in _NO_SECRETS or _VARIABLE.fullmatch(bare):
        return found[0]
    return f"{found['begin']}{mark}{HIDDEN}{mark}"


def shown(key: str, value: str) -> str:
    """Return the value of a setting as it may be shown: one with a secret is ``***``."""
    if value in _NO_SECRETS or not value:
        return value
    if is_secret(key) or _KEY.search(value) or _ANY_LOGIN.search(value):
        return HIDDEN
    return redacted(value)


def without_login(url: str) -> str:
    """Return an address without its password and query, for messages."""
    bare = url.partition("?")[0]
    scheme, mark, rest = bare.rpartition("://")
    login, at, place = rest.rpartition("@")
    user = login.partition(":")[0]
    return f"{scheme}{mark}{user}{at if user else ''}{place}"


def unset_variables(url: str, environment: Mapping[str, str]) -> list[str]:
    """Return the variables that an address names and the environment lacks, in order."""
    return sorted({name for name in _VARIABLE.findall(url) if name not in environment})


def with_variables(url: str, environment: Mapping[str, str]) -> str:
    """Return an address with variables of the environment put in, which are all set.

    Those of the login are quoted, so that a password may hold any character.
    """
    login, at, place = url.rpartition("@")
    login = _VARIABLE.sub(lambda found: quote(environment[found[1]], safe=""), login)
    return SecretText(login + at + _VARIABLE.sub(lambda found: environment[found[1]], place))
