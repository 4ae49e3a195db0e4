"""Stores on a server that others share: what user code sees, and what a client of a server does.

``RemoteStore`` holds the epoch's reads and writes, encodes values and keeps them for a while in a
``ReadCache``. What talks to the server is a ``RemoteClient``, a plug-in that is found by the scheme
of the address. At-least-once: changes are sent when all else of the epoch is written, before it is
committed, and again if it is run again; a ``Stamp`` lets a server refuse those of an older driver.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace import plugins
from headrace.clock import Clock
from headrace.durations import duration_ms
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote
from headrace.records.keys import encode_any
from headrace.redaction import unset_variables, with_variables
from headrace.state.object_store import LOADED_LIMIT, MISSING, OBJECT_FACTOR, pack_value
from headrace.state.store import ENTRY_OVERHEAD_BYTES


class Stamp(NamedTuple):
    """The epoch and the driver that a slot writes for; in a job of parts, those of the part."""

    job: str
    origin: str
    generation: int
    epoch: int

    @property
    def key(self) -> bytes:
        """The entry that holds the newest one."""
        return f"headrace-newest/{self.job}/{self.origin}".encode()

    @property
    def value(self) -> bytes:
        """Bytes that sort by generation, then by epoch."""
        return f"{self.generation:012d}-{self.epoch:016d}".encode()


class RemoteClient(ABC):
    """Reads and writes the entries of one store on its server; made with these three arguments.

    One thread uses it. It connects when it is first used; a forked child opens its own connections.
    Each command can be sent twice, so it reads, sets or deletes whole values.

    Args:
        store: its name, for errors.
        remote: where the server is, and how long to retry; see ``resolved_url``.
        clock: for pauses and deadlines.

    Attributes:
        round_trips: to the server since they were taken.
        is_fenced: whether the server refuses writes of older drivers; if not, a late write counts.
    """

    round_trips = 0
    is_fenced = False

    @abstractmethod
    def __init__(self, store: str, remote: Remote, clock: Clock) -> None: ...

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, ``None`` where there is none.

        Raises:
            UnavailableError: the server did not answer in time.
            InvalidInputError: it refuses the login, or the address is invalid.
        """

    @abstractmethod
    def set_many(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        ttl_ms: int | None,
        stamp: Stamp | None,
    ) -> None:
        """Set or delete keys; after an error, any of them can be changed.

        Args:
            keys: distinct.
            values: of each; ``None`` deletes.
            ttl_ms: after which the server drops what is set.
            stamp: of the writer; if a later one has written, nothing is changed.

        Raises:
            NotOwnerError: a later epoch has written by now, or a newer driver.
            UnavailableError: the server did not answer in time.
        """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of one key."""
        return self.get_many([key])[0]

    async def get_async(self, key: bytes) -> bytes | None:
        """Return the value of a key, without holding up others on the same loop if it can."""
        return self.get(key)

    def get_many_async(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, with many requests in flight if it can."""
        return self.get_many(keys)

    def take_round_trips(self) -> int:
        """Return the round trips since the last call."""
        trips, self.round_trips = self.round_trips, 0
        return trips

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close the connections; the next use opens others."""


def resolved_url(remote: Remote, store: str) -> str:
    """Return the address to connect to, with variables of the environment put in.

    Those of the login are quoted, so that a password may hold any character.

    Raises:
        InvalidInputError: there is no address, or a variable is not set.
    """
    if remote.url is None:
        raise _no_address(store)
    if missing := unset_variables(remote.url, os.environ):
        raise InvalidInputError(
            f"the url of store {store!r} names variables that are not set here: {missing}; set "
            "them in the environment of every executor",
            store=store,
        )
    return with_variables(remote.url, os.environ)


def _no_address(store: str) -> InvalidInputError:
    return InvalidInputError(
        f"store {store!r} is remote but has no address; give hr.store(url=...), or the setting "
        "remote.url",
        store=store,
    )


def _client_of(store: str, remote: Remote, clock: Clock) -> RemoteClient:
    """Return a client for the scheme of the address."""
    if remote.url is None:
        raise _no_address(store)
    found = plugins.load(plugins.STORES, remote.scheme)(store, remote, clock)
    assert isinstance(found, RemoteClient)
    return found


ENTRY_BYTES = 250
"""What an entry costs beside its key and value: a slot, a tuple and three small objects."""


class ReadCache:
    """Least recently used entries go first when the bytes do not fit.

    That a key has no value is kept as well. An entry is as old as the answer it came with,
    however often it is used.

    Args:
        limit_bytes: of keys and values, with what holding them costs; 0 keeps nothing.
        max_age_ms: from then on an entry is not used; 0 keeps nothing.
        clock: for the age.
    """

    def __init__(self, limit_bytes: int, max_age_ms: int, clock: Clock) -> None:
        self._limit = limit_bytes if max_age_ms else 0
        self._max_age_s, self._clock = max_age_ms / 1000, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes | None]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of entries, too old ones included."""
        return len(self._entries)

    def find(self, keys: list[bytes]) -> dict[bytes, bytes | None]:
        """Return what is known of keys; one that is known to have no value stands for ``None``."""
        if not self._entries:
            return {}
        oldest = self._clock.monotonic() - self._max_age_s
        found = {}
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                continue
            if entry[0] <= oldest:
                self._drop(key)
                continue
            self._entries.move_to_end(key)
            found[key] = entry[1]
        return found

    def keep(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Remember what the server holds as of now."""
        if not self._limit:
            return
        now = self._clock.monotonic()
        for key, value in zip(keys, values, strict=True):
            self._drop(key)
            self._entries[key] = (now, value)
            self.held_bytes += _size(key, value)
        while self.held_bytes > self._limit:
            self._drop(next(iter(self._entries)))

    def forget(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.held_bytes = 0

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.held_bytes -= _size(key, entry[1])


def _size(key: bytes, value: bytes | None) -> int:
    return ENTRY_BYTES + len(key) + (0 if value is None else len(value))


class RemoteStore:
    """Keyed values on a server: at-least-once, see the top of this file.

    An epoch is ``begin``, reads and writes, ``seal``, ``send``; for one thread. Within an epoch
    a key is asked for once: other writers are seen from the next epoch on, or when the cache's
    age is over. With ``access="blocking"`` nothing is held: each ``get`` that the cache cannot
    answer and each ``put`` is a round trip, and code that fails has left its writes.

    Args:
        job: its name.
        spec: of the store, with ``remote``.
        clock: for the cache, pauses and deadlines.
    """

    def __init__(self, job: str, spec: StoreSpec, clock: Clock) -> None:
        remote = spec.remote or Remote()
        self.name, self.remote = spec.name, remote
        namespace = remote.namespace
        self._prefix = (f"headrace/{job}/{spec.name}/" if namespace is None else namespace).encode()
        self._value, self._ttl_ms = spec.value, spec.ttl_ms
        self._decode = msgspec.msgpack.Decoder(spec.value).decode
        self._client = _client_of(spec.name, remote, clock)
        max_age_ms = duration_ms(remote.cache, "cache", least=0)
        self._cache = ReadCache(remote.cache_bytes, max_age_ms, clock)
        self._is_blocking = remote.access == "blocking"
        self._values: dict[bytes, Any] = {}
        self._changed: dict[bytes, None] = {}
        self._sealed: tuple[list[bytes], list[bytes | None]] = ([], [])
        self._counts: Counter[str] = Counter()
        self._stamp: Stamp | None = None

    def begin(self, stamp: Stamp | None) -> None:
        """Turn to an epoch of a driver; what an attempt before left unsent is forgotten."""
        self.discard()
        self._stamp = stamp

    def enter(self, group: int) -> None:
        """Do nothing: entries are not kept by key group."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default``; a round trip if it was not loaded before.

        Raises:
            UnavailableError: the server did not answer in time.
        """
        full = self._full(key)
        value = self._values.get(full, self)
        if value is self:
            value = self._keep([full], self._read([full]))[0]
        return default if value is MISSING else value

    async def get_async(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key without holding up other requests on the same loop."""
        full = self._full(key)
        if full not in self._values:
            found = self._known([full])
            if full not in found:
                raw = await self._client.get_async(full)
                self._cache.keep([full], [raw])
                found = {full: raw}
            if full not in self._values:  # a put while this one waited is newer
                return self._or(self._keep([full], [found[full]])[0], default)
        return self._or(self._values[full], default)

    @staticmethod
    def _or(value: Any, default: Any) -> Any:
        return default if value is MISSING else value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; a value of ``None`` is a value."""
        full = self._full(key)
        if self._is_blocking:
            self._write([full], [pack_value(self.name, value)])
            return
        self._values[full] = value
        self._changed[full] = None

    def delete(self, key: Any) -> None:
        """Delete a key; a missing key is not an error."""
        self.put(key, MISSING)

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a value."""
        return self.get(key, MISSING) is not MISSING

    def scan(self, *_: Any, **__: Any) -> Any:
        """Refuse: the server keeps no order.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            f"store {self.name!r} is remote and cannot be scanned, for its server keeps no order; "
            "use a store of kind rocksdb or memory for scans",
            store=self.name,
        )

    def prefetch(self, groups: Any, keys: Sequence[Any], encoded: Sequence[bytes]) -> None:
        """Load the values of a batch's keys with one round trip, where access is ``batched``.

        Args:
            groups: not used.
            keys: not used: entries stand under their encoding.
            encoded: canonical encoding of each row's key; may repeat.
        """
        del groups, keys
        if self.remote.access == "batched":
            self._load(encoded, self._read)

    def prefetch_async(self, keys: Sequence[Any]) -> None:
        """Load the values of keys with many requests in flight, and wait for all of them."""
        self._load([encode_any(key) for key in keys], self._read_async)

    def _load(
        self, encoded: Sequence[bytes], read: Callable[[list[bytes]], list[bytes | None]]
    ) -> None:
        if len(self._values) - len(self._changed) > LOADED_LIMIT:
            self._values = {full: self._values[full] for full in self._changed}
        prefix, held = self._prefix, self._values
        wanted = [full for code in dict.fromkeys(encoded) if (full := prefix + code) not in held]
        if wanted:
            self._keep(wanted, read(wanted))

    def _read(self, fulls: list[bytes]) -> list[bytes | None]:
        get = self._client.get_many
        if self._is_blocking:
            return self._through_cache(fulls, lambda missing: [self._client.get(missing[0])])
        return self._through_cache(fulls, get)

    def _read_async(self, fulls: list[bytes]) -> list[bytes | None]:
        return self._through_cache(fulls, self._client.get_many_async)

    def _through_cache(
        self, fulls: list[bytes], ask: Callable[[list[bytes]], list[bytes | None]]
    ) -> list[bytes | None]:
        found = self._known(fulls)
        missing = [full for full in fulls if full not in found] if found else fulls
        if missing:
            raws = ask(missing)
            self._cache.keep(missing, raws)
            found.update(zip(missing, raws, strict=True))
        return list(map(found.__getitem__, fulls))

    def _known(self, fulls: list[bytes]) -> dict[bytes, bytes | None]:
        found = self._cache.find(fulls)
        self._counts["hits"] += len(found)
        self._counts["misses"] += len(fulls) - len(found)
        return found

    def _keep(self, fulls: list[bytes], raws: list[bytes | None]) -> list[Any]:
        """Decode values, and remember them for the epoch where it is not blocking."""
        decode = self._decode
        try:
            values = [MISSING if raw is None else decode(raw) for raw in raws]
        except msgspec.DecodeError as error:
            raise self._unreadable(error) from error
        if not self._is_blocking:
            self._values.update(zip(fulls, values, strict=True))
        return values

    def _write(self, fulls: list[bytes], raws: list[bytes | None]) -> None:
        try:
            self._client.set_many(fulls, raws, self._ttl_ms, self._stamp)
        except BaseException:
            self._cache.forget()  # what the server took is not known
            raise
        self._counts["writes"] += len(fulls)
        if not self._client.is_fenced:
            self._counts["unfenced"] += len(fulls)
        if self._ttl_ms is None:
            self._cache.keep(fulls, raws)

    def seal(self) -> None:
        """End the epoch's writes and encode them; nothing is sent yet.

        Raises:
            InvalidInputError: a value that cannot be kept.
        """
        fulls = list(self._changed)
        values = self._values
        raws = [pack_value(self.name, values[full]) for full in fulls]
        self._values, self._changed = {}, {}
        self._sealed = fulls, raws

    def send(self) -> int:
        """Send what was sealed, pipelined, and return how many keys that were.

        Sending it again would change nothing.

        Raises:
            UnavailableError: the server did not take all of it in time; it may hold a part.
            NotOwnerError: a later epoch, or a newer driver, has written by now.
        """
        fulls, raws = self._sealed
        if fulls:
            self._write(fulls, raws)
        self._sealed = ([], [])
        return len(fulls)

    def discard(self) -> None:
        """Forget the epoch, and the cache with what an attempt that failed may have sent."""
        if self._values or self._changed or self._sealed[0]:
            self._cache.forget()
        self._values, self._changed = {}, {}
        self._sealed = ([], [])

    def take_counts(self) -> dict[str, int]:
        """Return what was counted since the last call: hits, misses, writes, round trips."""
        counts = Counter({f"remote.{self.name}.{name}": n for name, n in self._counts.items()})
        counts[f"remote.{self.name}.round_trips"] += self._client.take_round_trips()
        self._counts.clear()
        return {name: count for name, count in counts.items() if count}

    @property
    def overlay_bytes(self) -> int:
        """About how much memory the changes take; values are measured on a sample."""
        sample = [full for full, _ in zip(self._changed, range(64), strict=False)]
        if not sample:
            return 0
        values = self._values
        sizes = [len(full) + len(pack_value(self.name, values[full]) or b"") for full in sample]
        each = sum(sizes) / len(sizes) * OBJECT_FACTOR + ENTRY_OVERHEAD_BYTES
        return int(each * len(self._changed))

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def _full(self, key: Any) -> bytes:
        return self._prefix + encode_any(key)

    def _unreadable(self, error: Exception) -> Exception:
        where = f"store {self.name!r} holds a value that does not read as {self._value!r}"
        if isinstance(error, msgspec.ValidationError):
            return InvalidInputError(
                f"{where}: {error}; declare the type that its writers use", store=self.name
            )
        return CorruptDataError(
            f"{where}: {error}; its writers must put MessagePack", store=self.name
        )
