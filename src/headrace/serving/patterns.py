r"""Patterns of keys, as SCAN has them: ``*``, ``?``, ``[a-z]``, ``[^a]``, and a backslash."""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASS_PART = re.compile(rb"\\?.(?:-\\?.)?", re.DOTALL)


class KeyPattern(NamedTuple):
    """A pattern.

    Args:
        regex: that whole keys have to fit.
        head: what they begin with.
    """

    regex: re.Pattern[bytes]
    head: bytes

    def fits(self, key: bytes) -> bool:
        """Say whether a key is like it, in time that is linear in the key."""
        return self.regex.fullmatch(key) is not None


def key_pattern(text: bytes) -> KeyPattern:
    """Return the pattern that a text is."""
    parts, head = [b""], b""
    at, is_plain = 0, True
    while at < len(text):
        one, at = text[at : at + 1], at + 1
        if one == b"*":
            is_plain = False
            if parts[-1] or len(parts) == 1:
                parts.append(b"")
            continue
        if one == b"?":
            is_plain = False
            parts[-1] += b"."
            continue
        if one == b"[" and (end := _class_end(text, at)) >= 0:
            is_plain = False
            parts[-1] += _class(text[at:end])
            at = end + 1
            continue
        if one == b"\\" and at < len(text):
            one, at = text[at : at + 1], at + 1
        parts[-1] += re.escape(one)
        head += one if is_plain else b""
    first, *rest = parts
    # What is between two stars is taken where it first fits, so nothing is tried twice.
    middle = b"".join(b"(?>.*?%b)" % part for part in rest[:-1])
    last = b".*%b" % rest[-1] if rest else b""
    return KeyPattern(re.compile(first + middle + last, re.DOTALL), head)


def _class_end(text: bytes, at: int) -> int:
    while at < len(text):
        if text[at : at + 1] == b"]":
            return at
        at += 2 if text[at : at + 1] == b"\\" else 1
    return -1


def _class(inner: bytes) -> bytes:
    negated = b"^" if inner[:1] == b"^" else b""
    body = b"".join(_letters(part) for part in _CLASS_PART.findall(inner[len(negated) :]))
    if body:
        return b"[" + negated + body + b"]"
    return b"." if negated else b"(?!)"


def _letters(part: bytes) -> bytes:
    """Return a letter of a class, or a range of two, whichever way round they are."""
    plain = re.sub(rb"\\(.)", rb"\1", part, flags=re.DOTALL)
    if len(plain) == 3 and plain[1:2] == b"-":
        low, high = sorted((plain[:1], plain[2:]))
        return re.escape(low) + b"-" + re.escape(high)
    return b"".join(re.escape(plain[at : at + 1]) for at in range(len(plain)))
