"""Redis's protocol, RESP2 and RESP3: requests out of bytes, and replies as bytes.

Most requests are whole and plain, so a buffer is cut at its line ends in one step and checked
afterwards. What does not pass is read byte by byte, which is the definition of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

END = b"\r\n"
OK = b"+OK\r\n"
NULL_2, NULL_3 = b"$-1\r\n", b"_\r\n"
_LONGEST = 4096
_LENGTHS = {size: b"$%d" % size for size in range(_LONGEST)}
_COUNTS = {b"*%d" % count: count for count in range(1, _LONGEST)}
_GETS = frozenset((b"GET", b"get", b"Get"))
_GET_PARTS = 5
"""Lines of a GET: two of numbers before two of text, and the count before these."""

_SIZES = {line: size for size, line in _LENGTHS.items()}
_GET_HEADS = (b"*2\r\n$3\r\nGET\r\n", b"*2\r\n$3\r\nget\r\n")
_MGETS = (b"\r\n$4\r\nMGET\r\n", b"\r\n$4\r\nmget\r\n")
_GET_BYTES, _MGET_BYTES, _COMMAND_BYTES = len(_GET_HEADS[0]), len(_MGETS[0]), len(b"MGET")

INLINE_BYTES = 65_536
ARGUMENT_BYTES = 40
"""What an argument takes in memory besides its bytes, about."""


@dataclass(frozen=True)
class RequestLimits:
    """What a client may ask for at once.

    Args:
        request_bytes: of one request.
        arguments: of one request, so keys of an MGET.
    """

    request_bytes: int = 16 << 20
    arguments: int = 1 << 20


class EqualKeys(NamedTuple):
    """Keys of a buffer, all of a size: so often is ``lead``, then a key, in ``body``.

    Args:
        body: what was received, without what comes before and after that.
        lead: stands before each key.
        number: of keys.
        size: of each key.
        is_array: they are of one MGET; else of GETs.
    """

    body: bytes
    lead: bytes
    number: int
    size: int
    is_array: bool

    def encoded(self, space: bytes, before: bytes, after: bytes, unfit: bytes) -> list[bytes]:
        """Return the keys in another form, by one replacement; none: these are not equal keys.

        Args:
            space: that each key begins with; it is left out.
            before: comes before each key.
            after: comes after it.
            unfit: bytes that keys must not have; the line feed is one.
        """
        body, lead, count, size, _ = self
        if len(body.translate(None, unfit)) != len(body) - count * _unfit_bytes(lead, unfit):
            return []
        # What comes after a key ends the part before its neighbour's; the first one is of no key.
        moved = body.replace(lead + space, after + b"\n" + before) + after
        found = moved.split(b"\n")[1:]
        wanted = size - len(space) + len(before) + len(after)
        is_equal = len(found) == count and set(map(len, found)) == {wanted}
        return found if is_equal else []


@lru_cache(64)
def _unfit_bytes(lead: bytes, unfit: bytes) -> int:
    return len(lead) - len(lead.translate(None, unfit))


def equal_keys(data: bytes, limits: RequestLimits) -> EqualKeys | None:
    """Return the keys of a buffer that is GETs, or an MGET, of keys that seem to be of a size.

    Only ``EqualKeys.encoded`` says whether they are.

    Args:
        data: that was received.
        limits: of a request.
    """
    if not data.endswith(END):
        return None
    if data.startswith(_GET_HEADS):
        at = data.find(END, _GET_BYTES) + 2
        size, lead = _SIZES.get(data[_GET_BYTES : at - 2]), END + data[:at]
        if size is None or size + _COMMAND_BYTES > limits.request_bytes:
            return None
        count, rest = divmod(len(data), len(lead) + size)
        return None if rest else EqualKeys(END + data[:-2], lead, count, size, False)
    begin = data.find(END)
    named = begin + _MGET_BYTES
    if data[begin:named] not in _MGETS:
        return None
    at = data.find(END, named) + 2
    size, count = _SIZES.get(data[named : at - 2]), _COUNTS.get(data[:begin], 0) - 1
    lead = data[named - 2 : at]
    if size is None or len(data) != named + count * (len(lead) + size):
        return None
    if not 0 < count < limits.arguments or count * size + _COMMAND_BYTES > limits.request_bytes:
        return None
    return EqualKeys(data[named - 2 : -2], lead, count, size, True)


def plain_gets(data: bytes) -> list[bytes] | None:
    """Return the keys of a buffer that is nothing but GETs; ``None``: it is something else."""
    parts = data.split(END)
    count, rest = divmod(len(parts), _GET_PARTS)
    if rest != 1 or not count or parts[-1]:
        return None
    keys = parts[4::_GET_PARTS]
    if count == 1:
        is_plain = (
            parts[0] == b"*2"
            and parts[1] == b"$3"
            and parts[2] in _GETS
            and parts[3] == _LENGTHS.get(len(keys[0]))
        )
    else:
        is_plain = (
            parts[0:-1:_GET_PARTS].count(b"*2") == count
            and parts[1::_GET_PARTS].count(b"$3") == count
            and _GETS.issuperset(parts[2::_GET_PARTS])
            and parts[3::_GET_PARTS] == list(map(_LENGTHS.get, map(len, keys)))
        )
    return keys if is_plain else None


class RequestReader:
    """Cuts what a client sends into requests, however it arrives.

    Args:
        limits: beyond them the client is refused.

    Attributes:
        error: why nothing more is read; empty: all is well.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._arguments: list[bytes] = []
        self._missing = 0
        self._size = -1
        self._bytes = 0
        self.error = ""

    @property
    def is_between(self) -> bool:
        """Whether no request has begun."""
        return not self._buffer and not self._missing

    @property
    def held_bytes(self) -> int:
        """What a request that is not complete takes, about."""
        return len(self._buffer) + self._bytes + ARGUMENT_BYTES * len(self._arguments)

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Return the requests that are complete now; after an error none that follow it."""
        if self.error:
            return []
        if self.is_between:
            found, rest = _plain_requests(data, self._limits)
            if not rest:
                return found
            self._buffer += rest
            return found + self._slowly()
        self._buffer += data
        return self._slowly()

    def _slowly(self) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        at, buffer = 0, self._buffer
        while not self.error:
            before = at
            at = self._argument(at) if self._missing else self._begin(at, found)
            if at == before:
                break
            if self._arguments and not self._missing:
                found.append(self._arguments)
                self._arguments, self._bytes = [], 0
        del buffer[:at]
        return found

    def _begin(self, at: int, found: list[list[bytes]]) -> int:
        """Read the count of a request, or a request on one line; return where it ends."""
        line, behind = self._line(at)
        if line is None:
            return at
        if not line.startswith(b"*"):
            words = line.split()
            if words:
                found.append(words)
            return behind
        count = _number(line[1:])
        if count is None or count > self._limits.arguments:
            self.error = "Protocol error: invalid multibulk length"
            return at
        self._missing = max(0, count)
        return behind

    def _argument(self, at: int) -> int:
        """Read the length of an argument, or the argument; return where it ends."""
        if self._size < 0:
            line, behind = self._line(at)
            if line is None:
                return at
            if not line.startswith(b"$"):
                shown = line[:1].decode("ascii", "replace")
                self.error = f"Protocol error: expected '$', got '{shown}'"
                return at
            size = _number(line[1:])
            if size is None or size < 0 or self._bytes + size > self._limits.request_bytes:
                self.error = "Protocol error: invalid bulk length"
                return at
            self._size = size
            return behind
        end = at + self._size
        if len(self._buffer) < end + 2:
            return at
        if self._buffer[end : end + 2] != END:
            self.error = "Protocol error: an argument is longer than its length says"
            return at
        self._arguments.append(bytes(self._buffer[at:end]))
        self._bytes += self._size
        self._missing -= 1
        self._size = -1
        return end + 2

    def _line(self, at: int) -> tuple[bytes | None, int]:
        end = self._buffer.find(END, at, at + INLINE_BYTES)
        if end >= 0:
            return bytes(self._buffer[at:end]), end + 2
        if len(self._buffer) - at >= INLINE_BYTES:
            self.error = "Protocol error: too big inline request"
        return None, at


def _number(text: bytes) -> int | None:
    digits = text.removeprefix(b"-")
    return int(text) if digits.isdigit() and len(digits) <= 10 else None


def _plain_requests(data: bytes, limits: RequestLimits) -> tuple[list[list[bytes]], bytes]:
    """Return the requests at the begin that are whole and have no line ends in them, and the rest.

    A line that its length describes holds no line end, so it is what the protocol says.
    """
    parts = data.split(END)
    found, at, last = list[list[bytes]](), 0, len(parts) - 1
    while at < last:
        count = _COUNTS.get(parts[at])
        if count is None or count > limits.arguments:
            break
        end = at + 1 + 2 * count
        if end > last:
            break
        words = parts[at + 2 : end : 2]
        sizes = list(map(len, words))
        if parts[at + 1 : end : 2] != list(map(_LENGTHS.get, sizes)):
            break
        if sum(sizes) > limits.request_bytes:
            break
        found.append(words)
        at = end
    return found, END.join(parts[at:]) if at < last or parts[last] else b""


def bulk(value: bytes) -> bytes:
    """Return a reply of one value."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def bulks(values: Iterable[bytes]) -> list[bytes]:
    """Return a reply of each of many values."""
    return [b"$%d\r\n%b\r\n" % (len(value), value) for value in values]


def bulks_or(null: bytes, values: Iterable[bytes | None]) -> list[bytes]:
    """Return a reply of each of many values; of ``None`` it is ``null``."""
    return [null if value is None else b"$%d\r\n%b\r\n" % (len(value), value) for value in values]


def bulk_value(reply: bytes) -> bytes:
    """Return the value of a reply that ``bulk`` made."""
    return reply[reply.index(b"\n") + 1 : -2]


def error(text: str) -> bytes:
    """Return a reply that says what is wrong, in one line; it begins with a word in capitals."""
    line = " ".join(text.split())
    return f"-{line}\r\n".encode(errors="replace")


def integer(value: int) -> bytes:
    """Return a reply of a number."""
    return b":%d\r\n" % value


def reply(value: Any, protocol: int) -> bytes:
    """Return a reply of what Python has: None, bool, int, float, text, bytes, lists and dicts.

    Args:
        value: what to send; a dict is a map in RESP3, and keys and values in turn in RESP2.
        protocol: 2 or 3.
    """
    match value:
        case None:
            return NULL_3 if protocol == 3 else NULL_2
        case bytes():
            return bulk(value)
        case str():
            return bulk(value.encode())
        case bool():
            return integer(int(value))
        case int():
            return integer(value)
        case float():
            return bulk(repr(value).encode())
        case Mapping():
            head = b"%%%d\r\n" % len(value) if protocol == 3 else b"*%d\r\n" % (2 * len(value))
            return head + b"".join(reply(one, protocol) for pair in value.items() for one in pair)
    return array([reply(one, protocol) for one in value])


def array(replies: Iterable[bytes]) -> bytes:
    """Return a reply of several."""
    found = replies if isinstance(replies, (list, tuple)) else list(replies)
    return b"*%d\r\n%b" % (len(found), b"".join(found))
