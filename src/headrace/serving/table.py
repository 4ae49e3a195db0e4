"""``ServedTable``: one version of a table that many ask and one follower moves on.

All keys of a request are read at one version. A change of version is one step: an epoch's changes
are applied at once, and a table that is loaded again takes the place of the old one when it is
whole. ``Tables`` finds the table of a key by its namespace.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.clock import Clock, Deadline
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.records.keys import FLOAT, key_group
from headrace.serving.entries import Entries
from headrace.serving.resp import EqualKeys, bulk, bulks_or
from headrace.serving.rows import RowShape, text_of
from headrace.state.store import STAMP_BYTES, TTL_MARK, least_stamp

KEY_GROUPS = 512
"""Into so many groups keys are divided among servers."""

_BINARY = re.compile(rb"[\x00-\x1f\x7f]")
_FLOAT_BYTES = 9
NO_EXPIRY, NO_KEY = -1, -2


def is_text(key: bytes) -> bool:
    """Say whether a key can only be text; all encodings but some of floats have other bytes."""
    return not (_BINARY.search(key) or (len(key) == _FLOAT_BYTES and key[0] == FLOAT))


class TableVersion(NamedTuple):
    """What a table shows.

    Args:
        number: of the epoch, of rows read of a stream, or of the snapshot of a daily table.
        at_ms: wall clock of that.
        label: says it in words.
    """

    number: int
    at_ms: int
    label: str


class LoadingError(UnavailableError):
    """The table is not loaded yet; ask again in a moment."""

    code = "HR210"
    move = "ask again in a moment; headrace serve says when a table is loaded"


class StaleError(UnavailableError):
    """The table has not reached the version that was asked for; ask again in a moment."""

    code = "HR211"
    move = "ask again in a moment, or for what there is"


class MovedError(InvalidInputError):
    """A key is of a key group that another server has; ask that one."""

    code = "HR119"
    move = "ask the server of that key group; headrace.serving.Client knows which it is"


class ServedTable:
    """A table, for readers of any thread and one follower.

    Args:
        name: as requests call it.
        namespace: what stands before its keys in Redis's protocol.
        shape: of its rows.
        clock: for staleness and times to live.
        groups: the first key group that this server has, and the one after its last.
        ttl_ms: how long entries live, whose values then begin with a stamp.
    """

    def __init__(
        self,
        name: str,
        namespace: bytes,
        shape: RowShape,
        clock: Clock,
        *,
        groups: tuple[int, int] = (0, KEY_GROUPS),
        ttl_ms: int | None = None,
    ) -> None:
        self.name, self.namespace, self.shape, self.groups = name, namespace, shape, groups
        self.is_divided = groups != (0, KEY_GROUPS)
        self._clock, self._ttl_ms = clock, ttl_ms
        self._entries: Entries | None = None
        self._version = TableVersion(-1, 0, "")
        self._loads = 0
        self._checked_s = clock.monotonic()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self.problem = ""

    @property
    def version(self) -> TableVersion:
        """What is shown now.

        Raises:
            LoadingError: nothing yet.
        """
        self._loaded()
        return self._version

    @property
    def number(self) -> int:
        """Number of the version that is shown; -1: nothing yet."""
        return self._version.number

    @property
    def is_loaded(self) -> bool:
        """Whether there is something to show."""
        return self._entries is not None

    @property
    def staleness_ms(self) -> int:
        """How long ago the table was known to show everything that was committed."""
        return max(0, round((self._clock.monotonic() - self._checked_s) * 1000))

    def count(self) -> int:
        """Return how many entries there are, or about how many."""
        with self._lock:  # else they may be closed meanwhile
            return 0 if self._entries is None else self._entries.count()

    # What the follower does.

    def swap(self, entries: Entries, version: TableVersion) -> None:
        """Show other entries from now on; those before are closed."""
        with self._moved:
            before, self._entries = self._entries, entries
            self._version = version
            self._loads += 1
            self._moved.notify_all()
        if before is not None:
            before.close()

    def apply(
        self, keys: Sequence[bytes], values: Sequence[bytes | None], version: TableVersion
    ) -> None:
        """Show changes, all in one step; no key comes twice."""
        with self._moved:
            if keys:
                self._loaded().apply(keys, values)
            self._version = version
            self._moved.notify_all()

    def caught_up(self, looked_s: float) -> None:
        """Note that there was nothing newer than what is shown at a moment of the clock."""
        self._checked_s = looked_s
        self.problem = ""

    def failed(self, error: Exception) -> None:
        """Note why it does not follow; what it shows stays."""
        text = error.message if isinstance(error, HeadraceError) else str(error)
        self.problem = f"{type(error).__name__}: {text}"

    # What readers do.

    def get_many(self, keys: Sequence[bytes], at_least: int | None = None) -> list[bytes | None]:
        """Return the value of each key, all at one version; ``None`` where there is none.

        Args:
            keys: without the namespace, encoded, or as text.
            at_least: a version that the table must have reached.

        Raises:
            LoadingError: nothing is loaded yet.
            StaleError: the version is lower.
            MovedError: a key is of another server.
        """
        return self.read(keys, at_least)[1]

    def read(
        self, keys: Sequence[bytes], at_least: int | None = None
    ) -> tuple[TableVersion, list[bytes | None]]:
        """Return the same as ``get_many``, with the version that it is of."""
        if self.is_divided:
            keys = [self._own(key) for key in keys]
        with self._moved:
            entries, version = self._loaded(), self._version
            if at_least is not None:
                self._check(at_least)
            found = entries.get_many(self.shape.of_texts(keys) or keys)
            for at in [at for at, value in enumerate(found) if value is None]:
                found[at] = self._as_text(entries, keys[at])
        return version, found if self._ttl_ms is None else self._alive(found)

    def text_replies(
        self, keys: Sequence[bytes] | EqualKeys, null: bytes
    ) -> tuple[Sequence[bytes], int] | None:
        """Return replies of Redis's protocol to many texts, quickly; ``None``: use ``read``.

        Args:
            keys: behind the namespace.
            null: the reply of a key that is not there.

        Returns:
            The replies, and how many of them are ``null``.

        Raises:
            LoadingError: nothing is loaded yet.
        """
        if self.is_divided or self._ttl_ms is not None:
            return None
        texts = (
            self.shape.of_equal(keys, self.namespace)
            if isinstance(keys, EqualKeys)
            else self.shape.of_texts(keys, self.namespace)
        )
        if not texts:
            return None
        with self._lock:
            entries = self._loaded()
            found, misses = entries.replies(texts, null)
            if not misses:
                return found, 0
            if isinstance(keys, EqualKeys):
                bare = [text_of(one) for one in texts]
            else:
                bare = [key[len(self.namespace) :] for key in keys]
            found = self._look_again(entries, bare, found, null)
        return found, found.count(null)

    def _look_again(
        self, entries: Entries, keys: Sequence[bytes], replies: Sequence[bytes], null: bytes
    ) -> list[bytes]:
        """Look for texts that were not found as the likeliest of what they stand for."""
        found = list(replies)
        for at, key in enumerate(keys):
            if found[at] == null and not self.shape.has_one_meaning(key):
                value = self._as_text(entries, key)
                found[at] = null if value is None else bulk(value)
        return found

    def _check(self, at_least: int) -> None:
        if self._version.number < at_least:
            raise StaleError(
                f"table {self.name!r} shows version {self._version.number}, asked for {at_least}"
            )

    def _as_text(self, entries: Entries, key: bytes) -> bytes | None:
        """Return the value of a key that was not found, as what it stands for as text."""
        if not is_text(key):
            return None
        values = entries.get_many(self.shape.candidates(key))
        return next((one for one in values if one is not None), None)

    def _own(self, key: bytes) -> bytes:
        """Return an encoded key, of this server."""
        if is_text(key) and (meant := self.shape.candidates(key)):
            key = meant[0]
        group = key_group(key, KEY_GROUPS)
        if not self.groups[0] <= group < self.groups[1]:
            first, behind = self.groups
            raise MovedError(
                f"the key is of key group {group}; this server has {first} to {behind - 1} of "
                f"table {self.name!r}"
            )
        return key

    def _alive(self, found: list[bytes | None]) -> list[bytes | None]:
        assert self._ttl_ms is not None
        least = least_stamp(self._clock.now_ms(), self._ttl_ms)
        return [
            value
            if value is None or value[:1] != TTL_MARK
            else (value[STAMP_BYTES:] if value[:STAMP_BYTES] >= least else None)
            for value in found
        ]

    def ttl_ms(self, key: bytes) -> int:
        """Return how long an entry still lives; ``NO_EXPIRY``: forever, ``NO_KEY``: none."""
        with self._moved:
            found = self._loaded().get_many([key])
            raw = found[0]
            if raw is None:
                raw = self._as_text(self._loaded(), key)
        if raw is None or (self._ttl_ms is not None and self._alive([raw])[0] is None):
            return NO_KEY
        if self._ttl_ms is None or raw[:1] != TTL_MARK:
            return NO_EXPIRY
        written = int.from_bytes(raw[1:STAMP_BYTES], "big")
        return max(1, written + self._ttl_ms - self._clock.now_ms())

    def scan(
        self, low: bytes, high: bytes | None, most: int, at_least: int = -1
    ) -> tuple[TableVersion, list[tuple[bytes, bytes]], bytes | None]:
        """Return entries with ``low <= key < high``, in the order of keys.

        Returns:
            The version, at most so many entries, and the key from which on there may be more;
            ``None``: these are all.

        Raises:
            LoadingError: nothing is loaded yet.
            StaleError: the version is lower than ``at_least``.
        """
        with self._moved:
            self._check(at_least)
            version, rows = self._version, self._loaded().scan(low, high, most)
        after = rows[-1][0] + b"\0" if len(rows) == most else None
        if self._ttl_ms is not None:
            values = self._alive([value for _, value in rows])
            pairs = zip(rows, values, strict=True)
            rows = [(key, value) for (key, _), value in pairs if value is not None]
        return version, rows, after

    def wait(self, number: int, timeout_s: float) -> TableVersion:
        """Return when a version is reached.

        Raises:
            StaleError: it was not in time.
        """
        deadline = Deadline(self._clock, timeout_s)
        with self._moved:
            while not self.is_loaded or self._version.number < number:
                left = deadline.remaining()
                if left <= 0 or not self._moved.wait(left):
                    self._check(number)
                    self._loaded()
            return self._version

    def _loaded(self) -> Entries:
        if self._entries is None:
            text = f"table {self.name!r} is loading"
            raise LoadingError(f"{text}; {self.problem}" if self.problem else text)
        return self._entries

    def close(self) -> None:
        """Release what it holds."""
        with self._moved:
            if self._entries is not None:
                self._entries.close()
                self._entries = None

    def describe(self) -> dict[str, Any]:
        """Return what there is to know of it."""
        version = self._version
        return {
            "table": self.name,
            "namespace": self.namespace.decode(errors="backslashreplace"),
            "loaded": self.is_loaded,
            "version": version.number,
            "version_ms": version.at_ms,
            "of": version.label,
            "staleness_ms": self.staleness_ms,
            "keys": self.count(),
            "groups": list(self.groups),
            "loads": self._loads,
            "problem": self.problem,
        }


class Tables:
    """The tables of a server, by name and by the namespace of their keys."""

    def __init__(self, tables: Sequence[ServedTable]) -> None:
        self.by_name: Mapping[str, ServedTable] = {table.name: table for table in tables}
        # Of two that fit, the longer namespace is meant.
        self._tables = sorted(tables, key=lambda table: -len(table.namespace))
        self._only = tables[0] if len(tables) == 1 else None
        # Tables whose namespace begins that of no other: one key says whose its neighbours are.
        spaces = [table.namespace for table in tables]
        self._apart = {
            table.name
            for table in tables
            if sum(space.startswith(table.namespace) for space in spaces) == 1
        }
        if len(self.by_name) < len(tables) or len({t.namespace for t in tables}) < len(tables):
            raise InvalidInputError(
                f"tables {[table.name for table in tables]} have the same name or namespace twice; "
                "give each its own, such as --job JOB:STORE=NAME"
            )

    def __iter__(self) -> Any:
        return iter(self.by_name.values())

    def named(self, name: str) -> ServedTable:
        """Return a table.

        Raises:
            InvalidInputError: there is none of that name.
        """
        if (found := self.by_name.get(name)) is None:
            raise InvalidInputError(f"no table {name!r} is served; found {', '.join(self.by_name)}")
        return found

    def of(self, key: bytes) -> tuple[ServedTable, bytes] | None:
        """Return the table of a key, and the key without the namespace; ``None``: of no table."""
        for table in self._tables:
            if key.startswith(table.namespace):
                return table, key[len(table.namespace) :]
        return None

    def equal_replies(self, keys: EqualKeys, null: bytes) -> tuple[Sequence[bytes], int] | None:
        """Return what ``replies`` does of keys of one size; ``None``: use ``replies``."""
        if self._only is not None:
            return self._only.text_replies(keys, null)
        begin = len(keys.lead)
        owner = self.of(keys.body[begin : begin + keys.size])
        if owner is None or owner[0].name not in self._apart:
            return None
        return owner[0].text_replies(keys, null)

    def replies(self, keys: Sequence[bytes], null: bytes) -> tuple[Sequence[bytes], int]:
        """Return what ``get_many`` does as replies of Redis's protocol, ``null`` for ``None``.

        Returns:
            The replies, and how many of them are ``null``.
        """
        found = self._only.text_replies(keys, null) if self._only is not None else None
        if found is not None:
            return found
        values = self.get_many(keys)
        return bulks_or(null, values), values.count(None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, those of a table at one version; raises as a table does."""
        if self._only is not None:
            space, cut = self._only.namespace, len(self._only.namespace)
            bare = [key[cut:] for key in keys if key.startswith(space)]
            if len(bare) == len(keys):
                return self._only.get_many(bare)
        found: list[bytes | None] = [None] * len(keys)
        places: dict[str, tuple[ServedTable, list[int], list[bytes]]] = {}
        for at, key in enumerate(keys):
            if (owner := self.of(key)) is not None:
                _, own, wanted = places.setdefault(owner[0].name, (owner[0], [], []))
                own.append(at)
                wanted.append(owner[1])
        for table, own, wanted in places.values():
            for at, value in zip(own, table.get_many(wanted), strict=True):
                found[at] = value
        return found
