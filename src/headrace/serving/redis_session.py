"""What one client asks for over Redis's protocol, and what it is answered.

A replica that nobody writes to: commands that would change something are refused as a read-only
Redis replica does. Commands of Headrace's own begin with ``HR.``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.serving.patterns import KeyPattern, key_pattern
from headrace.serving.resp import (
    NULL_2,
    NULL_3,
    OK,
    EqualKeys,
    RequestLimits,
    RequestReader,
    array,
    bulk,
    bulks_or,
    equal_keys,
    error,
    integer,
    plain_gets,
    reply,
)
from headrace.serving.rows import field_text
from headrace.serving.table import (
    LoadingError,
    MovedError,
    ServedTable,
    StaleError,
    Tables,
    is_text,
)

VERSION = "7.2.0"
"""Of Redis whose commands these are; clients ask."""

FEW_BYTES = 160
"""A buffer up to this size has few keys, which are as quick one by one."""

LOGIN_BYTES = 65_536
"""A client that has not given the password may send a request of so many bytes in several parts."""

SCANNED = 10
MOST_SCANNED = 10_000
CURSORS = 10_000
_KINDS: dict[type[HeadraceError], str] = {
    LoadingError: "LOADING",
    StaleError: "HRSTALE",
    MovedError: "HRMOVED",
}


@dataclass
class ServerFacts:
    """What all clients of a server share.

    Args:
        tables: that are served.
        clock: for the time it has been running.
        password: that clients have to give; empty: none.
        limits: of one request.
        port: that it listens on.
    """

    tables: Tables
    clock: Clock
    password: str = ""
    limits: RequestLimits = field(default_factory=RequestLimits)
    port: int = 0
    began_s: float = 0.0
    clients: int = 0
    most_clients: int = 0
    connections: int = 0
    refused: int = 0
    cut: int = 0
    commands: int = 0
    keys: int = 0
    misses: int = 0
    cursors: dict[int, tuple[ServedTable, bytes]] = field(default_factory=dict)


class _RefusedError(Exception):
    """A reply of an error, which begins with a word in capitals."""


class RedisSession:
    """One client: requests in, replies out.

    Args:
        facts: of the server.
        number: of the client.

    Attributes:
        is_over: the connection is to be closed once all replies are sent.
        is_known: it has given the password, if there is one.
    """

    def __init__(self, facts: ServerFacts, number: int = 0) -> None:
        self._facts, self._tables, self._number = facts, facts.tables, number
        self._reader = RequestReader(facts.limits)
        self.is_known = not facts.password
        self._protocol, self._null = 2, NULL_2
        self._name = b""
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """Return the replies to what was received, in order; to all or, where it ends, the first.

        Never raises: whatever bytes come are answered, if only by an error.
        """
        if self.is_known and self._reader.is_between:
            if len(data) > FEW_BYTES:
                equal = equal_keys(data, self._facts.limits)
                replies = None if equal is None else self._equal(equal)
                if replies is not None:
                    return replies
            keys = plain_gets(data)
            if keys is not None:
                return self._gets(keys)
        answers = []
        for request in self._reader.feed(data):
            answers.append(self._answer(request))
            if self.is_over:
                break
        refusal = self._reader.error
        if not self.is_known and self._reader.held_bytes > LOGIN_BYTES:
            refusal = refusal or "Protocol error: a request of this size needs a login"
        if refusal and not self.is_over:
            answers.append(error(f"ERR {refusal}"))
            self.is_over = True
        return b"".join(answers)

    def _equal(self, keys: EqualKeys) -> bytes | None:
        """Return the replies to GETs or an MGET of keys of one size; ``None``: one by one."""
        facts = self._facts
        try:
            found = self._tables.equal_replies(keys, self._null)
        except HeadraceError:
            return None
        if found is None:
            return None
        facts.keys += keys.number
        facts.misses += found[1]
        facts.commands += 1 if keys.is_array else keys.number
        return array(found[0]) if keys.is_array else b"".join(found[0])

    def _gets(self, keys: list[bytes]) -> bytes:
        self._facts.commands += len(keys)
        try:
            return b"".join(self._replies(keys))
        except HeadraceError:  # one of them may be of another server, or table
            return b"".join([self._answer([b"GET", key]) for key in keys])

    def _replies(self, keys: list[bytes]) -> Sequence[bytes]:
        found, misses = self._tables.replies(keys, self._null)
        facts = self._facts
        facts.keys += len(keys)
        facts.misses += misses
        return found

    def _values(self, keys: list[bytes]) -> list[bytes | None]:
        found = self._tables.get_many(keys)
        self._facts.keys += len(keys)
        if None in found:
            self._facts.misses += found.count(None)
        return found

    def _answer(self, request: list[bytes]) -> bytes:
        self._facts.commands += 1
        name = request[0].upper()
        known = _COMMANDS.get(name)
        try:
            if known is None:
                return self._unknown(name, request)
            if not self.is_known and name not in _BEFORE_LOGIN:
                return error("NOAUTH Authentication required.")
            least, most, handler, _ = known
            if not least <= len(request) - 1 <= most:
                text = name.decode("ascii", "replace").lower()
                return error(f"ERR wrong number of arguments for '{text}' command")
            answer: bytes = getattr(self, handler)(request[1:])
        except _RefusedError as refused:
            return error(str(refused))
        except HeadraceError as failed:
            kind = next((word for of, word in _KINDS.items() if isinstance(failed, of)), "ERR")
            return error(f"{kind} {failed.message}")
        return answer

    def _unknown(self, name: bytes, request: Sequence[bytes]) -> bytes:
        if not self.is_known:
            return error("NOAUTH Authentication required.")
        if name in _WRITES:
            return error("READONLY You can't write against a read only replica.")
        shown = request[0][:64].decode("ascii", "backslashreplace")
        return error(f"ERR unknown command '{shown}'; headrace serves keys that are read")

    def _table(self, name: bytes) -> ServedTable:
        return self._tables.named(name.decode(errors="replace"))

    # Keys.

    def _get(self, words: list[bytes]) -> bytes:
        return self._replies(words)[0]

    def _mget(self, words: list[bytes]) -> bytes:
        return array(self._replies(words))

    def _exists(self, words: list[bytes]) -> bytes:
        return integer(sum(one is not None for one in self._values(words)))

    def _strlen(self, words: list[bytes]) -> bytes:
        return integer(len(self._values(words)[0] or b""))

    def _type(self, words: list[bytes]) -> bytes:
        return b"+none\r\n" if self._values(words)[0] is None else b"+string\r\n"

    def _pttl(self, words: list[bytes]) -> bytes:
        return integer(self._left_ms(words[0]))

    def _ttl(self, words: list[bytes]) -> bytes:
        left = self._left_ms(words[0])
        return integer(left if left < 0 else -(-left // 1000))

    def _left_ms(self, key: bytes) -> int:
        owner = self._tables.of(key)
        return -2 if owner is None else owner[0].ttl_ms(owner[1])

    # Columns of a value.

    def _fields(self, key: bytes) -> dict[str, Any]:
        value = self._values([key])[0]
        owner = self._tables.of(key)
        if value is None or owner is None:
            return {}
        return {k: v for k, v in owner[0].shape.fields(value).items() if v is not None}

    def _hget(self, words: list[bytes]) -> bytes:
        found = self._fields(words[0]).get(words[1].decode(errors="replace"))
        return self._null if found is None else bulk(field_text(found))

    def _hmget(self, words: list[bytes]) -> bytes:
        found = self._fields(words[0])
        values = [found.get(name.decode(errors="replace")) for name in words[1:]]
        return array([self._null if one is None else bulk(field_text(one)) for one in values])

    def _hgetall(self, words: list[bytes]) -> bytes:
        found = {name: field_text(value) for name, value in self._fields(words[0]).items()}
        return reply(found, self._protocol)

    def _hkeys(self, words: list[bytes]) -> bytes:
        return reply(list(self._fields(words[0])), self._protocol)

    def _hvals(self, words: list[bytes]) -> bytes:
        return array([bulk(field_text(one)) for one in self._fields(words[0]).values()])

    def _hlen(self, words: list[bytes]) -> bytes:
        return integer(len(self._fields(words[0])))

    def _hexists(self, words: list[bytes]) -> bytes:
        return integer(words[1].decode(errors="replace") in self._fields(words[0]))

    # Ranges.

    def _scan(self, words: list[bytes]) -> bytes:
        cursor, match, count = _scan_options(words)
        if cursor:
            place = self._facts.cursors.pop(cursor, None)
            if place is None:
                raise _RefusedError("ERR this cursor is over; begin again with cursor 0")
        else:
            first = next(iter(self._tables), None)
            place = None if first is None else (first, b"")
        keys: list[bytes] = []
        while place is not None and len(keys) < count:
            table, low = place
            begin, end = _range_of(table, match)
            _, rows, after = table.scan(max(low, begin), end, count)
            keys += [table.namespace + key for key, _ in rows]
            place = self._next_table(table) if after is None else (table, after)
        if match is not None:
            keys = [key for key in keys if self._matches(match, key)]
        return array([bulk(b"%d" % self._kept(place)), array(map(bulk, keys))])

    def _matches(self, match: KeyPattern, key: bytes) -> bool:
        """Say whether a key is like a pattern, as it is or, where it is one text, as text."""
        if match.fits(key):
            return True
        owner = self._tables.of(key)
        if owner is None:
            return False
        table, bare = owner
        if bare[:1] != b"\x30" or bare.find(b"\0\0") != len(bare) - 2:
            return False
        return match.fits(table.namespace + bare[1:-2])

    def _next_table(self, table: ServedTable) -> tuple[ServedTable, bytes] | None:
        rest = islice(iter(self._tables), list(self._tables.by_name).index(table.name) + 1, None)
        following = next(rest, None)
        return None if following is None else (following, b"")

    def _kept(self, place: tuple[ServedTable, bytes] | None) -> int:
        """Return the cursor of a place; 0: the end. The oldest are forgotten."""
        if place is None:
            return 0
        cursors = self._facts.cursors
        while len(cursors) >= CURSORS:
            del cursors[next(iter(cursors))]
        number = secrets.randbits(48) + 1
        cursors[number] = place
        return number

    def _dbsize(self, words: list[bytes]) -> bytes:
        del words
        return integer(sum(table.count() for table in self._tables))

    def _range(self, words: list[bytes]) -> bytes:
        table, options = self._table(words[0]), _RangeOptions.of(words[3:])
        low, high = (options.bound(table, word) for word in words[1:3])
        return self._rows(table, low or b"", high, options.limit)

    def _prefix(self, words: list[bytes]) -> bytes:
        table, options, begin = self._table(words[0]), _RangeOptions.of(words[2:]), words[1]
        if begin and is_text(begin) and not options.is_raw:
            found = table.shape.prefix(begin)
            if found is None:
                raise _RefusedError("ERR the first column of the key is no text; use HR.RANGE")
            begin = found
        return self._rows(table, begin, _after_prefix(begin), options.limit)

    def _rows(self, table: ServedTable, low: bytes, high: bytes | None, most: int) -> bytes:
        version, rows, after = table.scan(low, high, most)
        pairs = array([bulk(one) for row in rows for one in row])
        more = self._null if after is None else bulk(after)
        stale = integer(table.staleness_ms)
        return array([integer(version.number), stale, pairs, more])

    # Versions.

    def _read(self, words: list[bytes]) -> bytes:
        table, least = self._table(words[0]), _integer(words[1])
        version, values = table.read(words[2:], least if least >= 0 else None)
        replies = array(bulks_or(self._null, values))
        return array([integer(version.number), integer(table.staleness_ms), replies])

    def _version(self, words: list[bytes]) -> bytes:
        table = self._table(words[0])
        version = table.version
        return array([integer(version.number), integer(version.at_ms), integer(table.staleness_ms)])

    def _describe(self, words: list[bytes]) -> bytes:
        del words
        return reply([table.describe() for table in self._tables], self._protocol)

    # The connection.

    def _ping(self, words: list[bytes]) -> bytes:
        return bulk(words[0]) if words else b"+PONG\r\n"

    def _echo(self, words: list[bytes]) -> bytes:
        return bulk(words[0])

    def _auth(self, words: list[bytes]) -> bytes:
        self._log_in(words[-1], words[0] if len(words) > 1 else b"default")
        return OK

    def _log_in(self, password: bytes, user: bytes) -> None:
        wanted = self._facts.password.encode()
        if not wanted:
            raise _RefusedError(
                "ERR AUTH <password> called without any password configured for the default "
                "user. Are you sure your configuration is correct?"
            )
        if not secrets.compare_digest(password, wanted) or user != b"default":
            self._facts.refused += 1
            raise _RefusedError("WRONGPASS invalid username-password pair or user is disabled.")
        self.is_known = True

    def _hello(self, words: list[bytes]) -> bytes:
        rest = list(words)
        wanted = self._protocol
        if rest:
            wanted = int(rest[0]) if rest[0] in (b"2", b"3") else 0
            if not wanted:
                raise _RefusedError("NOPROTO unsupported protocol version")
            rest = rest[1:]
        while rest:
            option = rest[0].upper()
            if option == b"AUTH" and len(rest) > 2:
                self._log_in(rest[2], rest[1])
                rest = rest[3:]
            elif option == b"SETNAME" and len(rest) > 1:
                self._name, rest = rest[1], rest[2:]
            else:
                raise _RefusedError("ERR Syntax error in HELLO option")
        if not self.is_known:
            raise _RefusedError(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
                "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client "
                "and select the RESP protocol version at the same time"
            )
        self._protocol, self._null = wanted, NULL_2 if wanted == 2 else NULL_3
        facts = {
            "server": "redis",
            "version": VERSION,
            "proto": wanted,
            "id": self._number,
            "mode": "standalone",
            "role": "replica",
            "modules": [],
        }
        return reply(facts, self._protocol)

    def _select(self, words: list[bytes]) -> bytes:
        if words[0] != b"0":
            raise _RefusedError("ERR DB index is out of range")
        return OK

    def _client(self, words: list[bytes]) -> bytes:
        match words[0].upper():
            case b"ID":
                return integer(self._number)
            case b"GETNAME":
                return bulk(self._name) if self._name else self._null
            case b"SETNAME" if len(words) == 2:
                self._name = words[1]
                return OK
            case b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH":
                return OK
        raise _RefusedError("ERR unknown subcommand of CLIENT")

    def _config(self, words: list[bytes]) -> bytes:
        if words[0].upper() != b"GET":
            raise _RefusedError("ERR headrace serve is configured by its options")
        return reply({}, self._protocol)

    def _command(self, words: list[bytes]) -> bytes:
        match words[0].upper() if words else b"":
            case b"":
                return array([_described(name, self._protocol) for name in _COMMANDS])
            case b"COUNT":
                return integer(len(_COMMANDS))
            case b"INFO":
                named = [one.upper() for one in words[1:]] or list(_COMMANDS)
                return array(
                    [
                        _described(one, self._protocol) if one in _COMMANDS else self._null
                        for one in named
                    ]
                )
            case b"LIST":
                return reply([name.decode().lower() for name in _COMMANDS], self._protocol)
            case b"DOCS":
                return reply({}, self._protocol)
        raise _RefusedError("ERR unknown subcommand of COMMAND")

    def _info(self, words: list[bytes]) -> bytes:
        wanted = {word.decode(errors="replace").lower() for word in words}
        lines = []
        for title, facts in self._sections():
            if not wanted or wanted & {title.lower(), "all", "everything", "default"}:
                lines += [f"# {title}", *(f"{name}:{value}" for name, value in facts), ""]
        return bulk("\r\n".join(lines).encode())

    def _sections(self) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        facts = self._facts
        up_s = round(facts.clock.monotonic() - facts.began_s)
        yield (
            "Server",
            [
                ("redis_version", VERSION),
                ("redis_mode", "standalone"),
                ("server_name", "headrace"),
                ("process_id", os.getpid()),
                ("tcp_port", facts.port),
                ("uptime_in_seconds", up_s),
            ],
        )
        counts = [("connected_clients", facts.clients), ("maxclients", facts.most_clients)]
        yield "Clients", counts
        yield (
            "Stats",
            [
                ("total_connections_received", facts.connections),
                ("total_commands_processed", facts.commands),
                ("keyspace_hits", facts.keys - facts.misses),
                ("keyspace_misses", facts.misses),
                ("clients_cut", facts.cut),
                ("logins_refused", facts.refused),
            ],
        )
        tables = list(self._tables)
        loading = int(any(not table.is_loaded for table in tables))
        yield "Persistence", [("loading", loading)]
        yield "Replication", [("role", "slave")]
        keys = sum(table.count() for table in tables)
        yield "Keyspace", [("db0", f"keys={keys},expires=0,avg_ttl=0")] if keys else []
        shown = []
        for at, table in enumerate(tables):
            text = ",".join(
                f"{name}={value}" for name, value in table.describe().items() if name != "groups"
            )
            shown.append((f"table{at}", text.replace("\r", " ").replace("\n", " ")))
        yield "Headrace", shown

    def _quit(self, words: list[bytes]) -> bytes:
        del words
        self.is_over = True
        return OK

    def _reset(self, words: list[bytes]) -> bytes:
        del words
        self._protocol, self._null, self._name = 2, NULL_2, b""
        self.is_known = not self._facts.password
        return b"+RESET\r\n"


def _scan_options(words: list[bytes]) -> tuple[int, KeyPattern | None, int]:
    cursor, match, count = _integer(words[0], "ERR invalid cursor"), None, SCANNED
    rest = words[1:]
    while rest:
        if len(rest) == 1:
            raise _RefusedError("ERR syntax error")
        option, value, rest = rest[0].upper(), rest[1], rest[2:]
        if option == b"MATCH":
            match = key_pattern(value)
        elif option == b"COUNT":
            count = _integer(value)
            if count < 1:
                raise _RefusedError("ERR syntax error")
        elif option != b"TYPE":
            raise _RefusedError("ERR syntax error")
    return cursor, match, min(count, MOST_SCANNED)


def _range_of(table: ServedTable, match: KeyPattern | None) -> tuple[bytes, bytes | None]:
    """Return the range of keys of a table that can be like a pattern."""
    if match is None:
        return b"", None
    head = match.head
    if not head.startswith(table.namespace):
        is_part = table.namespace.startswith(head)
        return (b"", None) if is_part else (b"\xff" * 16, None)
    rest = head[len(table.namespace) :]
    if not rest or not is_text(rest):
        return rest, _after_prefix(rest)
    begin = table.shape.prefix(rest) if table.shape.key_schema.names else None
    return (b"", None) if begin is None else (begin, _after_prefix(begin))


def _after_prefix(begin: bytes) -> bytes | None:
    stripped = begin.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


class _RangeOptions(NamedTuple):
    """``LIMIT n``, and ``RAW``: bounds are encoded keys, whatever they look like."""

    limit: int
    is_raw: bool

    @classmethod
    def of(cls, words: list[bytes]) -> _RangeOptions:
        limit, is_raw, rest = SCANNED * 10, False, list(words)
        while rest:
            option = rest.pop(0).upper()
            if option == b"RAW":
                is_raw = True
            elif option == b"LIMIT" and rest:
                limit = min(max(_integer(rest.pop(0)), 1), MOST_SCANNED)
            else:
                raise _RefusedError("ERR syntax error")
        return cls(limit, is_raw)

    def bound(self, table: ServedTable, word: bytes) -> bytes | None:
        """Return the bound of a range: encoded, or as text; an empty one is none."""
        if not word:
            return None
        if self.is_raw or not is_text(word):
            return word
        meant = table.shape.candidates(word)
        if not meant:
            raise _RefusedError("ERR this is no key of the table's columns")
        return meant[0]


def _integer(word: bytes, refusal: str = "ERR value is not an integer or out of range") -> int:
    with suppress(ValueError):
        if len(word) <= 20 and b"_" not in word:
            return int(word)
    raise _RefusedError(refusal)


def _described(name: bytes, protocol: int) -> bytes:
    """Return what COMMAND says: name, arity, flags, and where the keys are."""
    least, most, _, (first, last, step) = _COMMANDS[name]
    arity = least + 1 if least == most else -(least + 1)
    flags = array([b"+readonly\r\n", b"+fast\r\n"] if first else [b"+fast\r\n"])
    flags = flags if protocol == 2 else b"~" + flags[1:]  # a set
    places = [integer(first), integer(last), integer(step)]
    nothing = array(())
    return array(
        [bulk(name.lower()), integer(arity), flags, *places, nothing, nothing, nothing, nothing]
    )


_MANY = 1 << 30
_NO_KEYS, _ONE, _ALL = (0, 0, 0), (1, 1, 1), (1, -1, 1)

_COMMANDS: dict[bytes, tuple[int, int, str, tuple[int, int, int]]] = {
    b"GET": (1, 1, "_get", _ONE),
    b"MGET": (1, _MANY, "_mget", _ALL),
    b"EXISTS": (1, _MANY, "_exists", _ALL),
    b"TTL": (1, 1, "_ttl", _ONE),
    b"PTTL": (1, 1, "_pttl", _ONE),
    b"TYPE": (1, 1, "_type", _ONE),
    b"STRLEN": (1, 1, "_strlen", _ONE),
    b"HGET": (2, 2, "_hget", _ONE),
    b"HMGET": (2, _MANY, "_hmget", _ONE),
    b"HGETALL": (1, 1, "_hgetall", _ONE),
    b"HKEYS": (1, 1, "_hkeys", _ONE),
    b"HVALS": (1, 1, "_hvals", _ONE),
    b"HLEN": (1, 1, "_hlen", _ONE),
    b"HEXISTS": (2, 2, "_hexists", _ONE),
    b"SCAN": (1, 7, "_scan", _NO_KEYS),
    b"DBSIZE": (0, 0, "_dbsize", _NO_KEYS),
    b"PING": (0, 1, "_ping", _NO_KEYS),
    b"ECHO": (1, 1, "_echo", _NO_KEYS),
    b"AUTH": (1, 2, "_auth", _NO_KEYS),
    b"HELLO": (0, 7, "_hello", _NO_KEYS),
    b"SELECT": (1, 1, "_select", _NO_KEYS),
    b"CLIENT": (1, _MANY, "_client", _NO_KEYS),
    b"CONFIG": (1, _MANY, "_config", _NO_KEYS),
    b"COMMAND": (0, _MANY, "_command", _NO_KEYS),
    b"INFO": (0, _MANY, "_info", _NO_KEYS),
    b"QUIT": (0, _MANY, "_quit", _NO_KEYS),
    b"RESET": (0, 0, "_reset", _NO_KEYS),
    b"HR.TABLES": (0, 0, "_describe", _NO_KEYS),
    b"HR.VERSION": (1, 1, "_version", _NO_KEYS),
    b"HR.READ": (3, _MANY, "_read", _NO_KEYS),
    b"HR.RANGE": (3, 6, "_range", _NO_KEYS),
    b"HR.PREFIX": (2, 5, "_prefix", _NO_KEYS),
}
"""By name: fewest and most arguments, the method that answers, and which arguments are keys."""

_BEFORE_LOGIN = frozenset((b"AUTH", b"HELLO", b"QUIT", b"RESET"))
_WRITES = frozenset(
    b"SET SETEX PSETEX SETNX MSET MSETNX APPEND DEL UNLINK EXPIRE PEXPIRE PERSIST INCR INCRBY DECR "
    b"DECRBY INCRBYFLOAT GETSET GETDEL GETEX SETRANGE HSET HSETNX HMSET HDEL HINCRBY LPUSH RPUSH "
    b"LPOP RPOP SADD SREM SPOP ZADD ZREM EVAL EVALSHA SCRIPT FLUSHALL FLUSHDB RENAME XADD "
    b"RESTORE COPY MOVE".split()
)
