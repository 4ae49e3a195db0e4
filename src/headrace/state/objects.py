"""What user code gets as its store: Python keys and values, under the message's key group.

The hottest code of the project. Values become objects when a batch's keys are prefetched
and bytes again when the epoch is sealed, once for each changed key; in between, ``get``
and ``put`` are dict lookups. Plain ``int``, ``str`` and ``bytes`` keys, and tuples of them,
are their own dict keys; all others stand under their canonical bytes, wrapped, so that
1, 1.0, True and "1" stay apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.keys import decode_key, encode_key
from headrace.state.declared import check_declared, right_types
from headrace.state.object_cache import ObjectCache
from headrace.state.store import ENTRY_OVERHEAD_BYTES, KeyValueStore, merge

LOADED_LIMIT = 1_000_000
"""Unchanged values kept within an epoch; beyond, they are dropped before the next batch."""

_OBJECT_FACTOR = 3  # a Python object against its encoding, about
_SAMPLE = 32
_BY_CODE = itemgetter(1)
_PLAIN = frozenset((int, str, bytes))
_encode = msgspec.msgpack.Encoder().encode


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


_MISSING: Any = _Missing()


_ABSENT: Any = object()
_FIXED = frozenset((int, str, bytes, float, bool, type(None)))


class Held(NamedTuple):
    """What ``ObjectStore.hold`` saw of one key."""

    values: dict[Any, Any]
    changes: dict[Any, bytes]
    key: Any
    value: Any
    is_encoded: bool
    changed: bytes | None


class _Group(NamedTuple):
    """What is known of one key group: values, changed keys, and encodings of all of these."""

    values: dict[Any, Any]
    changed: dict[Any, bytes]
    encoded: dict[Any, bytes]


class ObjectStore:
    """Keyed values of one store, for the key group of the message being processed.

    Keys are explicit: integers, strings, bytes, floats, booleans, ``None``, dates,
    timestamps, or tuples of these; ``(k,)`` is the same key as ``k``. An object that ``get``
    returned and user code then changes in place is not persisted: call ``put``.

    Args:
        store: the changes and committed data below.
        value: the declared type of values, for msgspec.
        loaded_limit: unchanged values kept between batches.
        cache: what is kept between epochs; ``None``: nothing.
    """

    __slots__ = (
        "_cache",
        "_changed",
        "_decode",
        "_encoded",
        "_group",
        "_groups",
        "_has_deletes",
        "_limit",
        "_loaded",
        "_prefix",
        "_right",
        "_store",
        "_value",
        "_values",
    )

    def __init__(
        self,
        store: KeyValueStore,
        value: Any = Any,
        *,
        loaded_limit: int = LOADED_LIMIT,
        cache: ObjectCache | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._value = value
        self._right = right_types(value)
        self._decode = msgspec.msgpack.Decoder(value).decode
        self._limit = loaded_limit
        self._groups: dict[int, _Group] = {}
        self._loaded = 0
        self._has_deletes = False
        self.enter(0)

    def enter(self, group: int) -> None:
        """Turn to the key group of the next message; called by the runtime when it changes."""
        try:
            self._values, self._changed, self._encoded = self._groups[group]
        except KeyError:
            self._groups[group] = made = _Group({}, {}, {})
            self._values, self._changed, self._encoded = made
        self._group = group

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` where there is none."""
        kind = type(key)
        if not (kind is int or kind is str or kind is bytes):
            key = self._ident(key)
        try:
            value = self._values[key]
        except KeyError:
            value = self._load(key)
        return default if value is _MISSING else value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; a value of ``None`` is a value."""
        kind = type(key)
        if not (kind is int or kind is str or kind is bytes):
            key = self._ident(key)
        try:
            self._changed[key] = self._encoded[key]
        except KeyError:
            self._changed[key] = self._encode_ident(key)
        self._values[key] = value

    def delete(self, key: Any) -> None:
        """Delete a key; deleting what is not there is fine."""
        self._has_deletes = True
        self.put(key, _MISSING)

    def hold(self, key: Any) -> Held:
        """Return what a key has now, so that ``restore`` can bring it back.

        The value is encoded where user code could change it in place.
        """
        kind = type(key)
        if not (kind is int or kind is str or kind is bytes):
            key = self._ident(key)
        value = self._values.get(key, _ABSENT)
        is_open = value is not _ABSENT and value is not _MISSING and type(value) not in _FIXED
        kept = self._encode(value) if is_open else value
        return Held(self._values, self._changed, key, kept, is_open, self._changed.get(key))

    def restore(self, held: Held) -> None:
        """Bring back what ``hold`` saw."""
        if held.value is _ABSENT:
            held.values.pop(held.key, None)
        else:
            held.values[held.key] = self._decode(held.value) if held.is_encoded else held.value
        if held.changed is None:
            held.changes.pop(held.key, None)
        else:
            held.changes[held.key] = held.changed

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a value."""
        return self.get(key, _MISSING) is not _MISSING

    def scan(
        self, low: Any = _MISSING, high: Any = _MISSING, *, prefix: Any = _MISSING
    ) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values of the current key group in canonical key order.

        Entries are those at the call; changing the store while scanning is fine.

        Args:
            low: first key; from the beginning when left out.
            high: the key before which to stop; to the end when left out.
            prefix: only tuple keys that begin with these values.
        """
        start = self._group.to_bytes(2, "big")
        begin, end = start, _after(start)
        if prefix is not _MISSING:
            begin = start + encode_key(prefix if isinstance(prefix, tuple) else (prefix,))
            end = _after(begin)
        if low is not _MISSING:
            begin = max(begin, start + _encode_any(low))
        if high is not _MISSING:
            last = start + _encode_any(high)
            end = last if end is None else min(end, last)
        changed = {
            full: key
            for key, full in self._changed.items()
            if begin <= full and (end is None or full < end)
        }
        laid = [(full, self._values[changed[full]]) for full in sorted(changed)]
        return self._objects(self._store.scan(begin, end), laid)

    def _objects(
        self, committed: Iterator[tuple[bytes, bytes]], changed: list[tuple[bytes, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        laid = [(full, None if value is _MISSING else (value,)) for full, value in changed]
        for full, found in merge(committed, laid):
            key = decode_key(full[2:])
            value = self._decoded(found) if isinstance(found, bytes) else found[0]
            yield (key[0] if len(key) == 1 else key), value

    def prefetch(
        self,
        groups: Sequence[int] | npt.NDArray[np.integer[Any]],
        keys: Sequence[Any],
        encoded: Sequence[bytes],
    ) -> None:
        """Load the values of a batch's keys with one batched read, before user code runs.

        Args:
            groups: key group of each row.
            keys: key of each row, as user code will ask for it; may repeat.
            encoded: canonical encoding of each row's key, without the key group.
        """
        if self._loaded > self._limit:
            self._forget_unchanged()
        if not _PLAIN.issuperset(set(map(type, keys))):
            keys = list(map(self._ident, keys))
        order = np.argsort(np.asarray(groups, np.uint16), kind="stable")
        rows = order.tolist()
        wanted: list[bytes] = []
        places: list[tuple[int, dict[Any, Any], dict[Any, bytes]]] = []
        for group, begin, end in _runs(np.asarray(groups, np.uint16)[order]):
            known = self._groups.get(group)
            if known is None:
                known = self._groups[group] = _Group({}, {}, {})
            codes, prefix = known.encoded, group.to_bytes(2, "big")
            fresh = {
                keys[row]: prefix + encoded[row]
                for row in rows[begin:end]
                if keys[row] not in codes
            }
            codes.update(fresh)
            if self._cache is not None and fresh:
                fresh = self._recall(self._cache, group, known.values, fresh)
            # Reading in key order is twice as quick: neighbours share blocks and cache lines.
            fresh = dict(sorted(fresh.items(), key=_BY_CODE))
            wanted.extend(fresh.values())
            places.append((group, known.values, fresh))
        if self._cache is not None:
            self._cache.misses += len(wanted)
            self._cache.hits += len(rows) - len(wanted)
        if wanted:
            self._fill(places, wanted)

    def _recall(
        self, cache: ObjectCache, group: int, values: dict[Any, Any], fresh: dict[Any, bytes]
    ) -> dict[Any, bytes]:
        """Take the values that the cache has; return the keys that it has not."""
        found, fresh = cache.recall(group, fresh)
        if cache.kinds is None:
            found = {
                key: _MISSING if raw is None else self._decoded(raw) for key, raw in found.items()
            }
        values.update(found)
        self._loaded += len(found)
        return fresh

    def _fill(
        self, places: list[tuple[int, dict[Any, Any], dict[Any, bytes]]], wanted: list[bytes]
    ) -> None:
        raws = self._store.get_many(wanted)
        self._loaded += len(wanted)
        decode, begin = self._decode, 0
        try:
            for group, values, keys in places:
                found = raws[begin : begin + len(keys)]
                begin += len(keys)
                decoded = [_MISSING if raw is None else decode(raw) for raw in found]
                values.update(zip(keys, decoded, strict=True))
                if self._cache is not None:
                    kept = found if self._cache.kinds is None else decoded
                    self._cache.note(group, zip(keys, kept, strict=True))
        except msgspec.DecodeError as error:
            raise self._unreadable(error) from error

    def _load(self, key: Any) -> Any:
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encode_ident(key)
        if self._cache is not None:
            self._recall(self._cache, self._group, self._values, {key: encoded})
            if key in self._values:
                return self._values[key]
            self._cache.misses += 1
        raw = self._store.get_many([encoded])[0]
        self._loaded += 1
        value = _MISSING if raw is None else self._decoded(raw)
        if self._cache is not None:
            self._cache.note(self._group, [(key, raw if self._cache.kinds is None else value)])
        self._values[key] = value
        return value

    def _decoded(self, raw: bytes) -> Any:
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> Exception:
        where = f"store {self._store.name!r} holds a value that does not read as {self._value!r}"
        if isinstance(error, msgspec.ValidationError):
            return InvalidInputError(
                f"{where}: {error}; declare the type it was written with, or run the job under "
                "another name"
            )
        return CorruptDataError(f"{where}: {error}")

    def _ident(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) > 1 and _PLAIN.issuperset(map(type, key)):
            return key
        encoded = _encode_any(key)
        values = decode_key(encoded)
        if values and _PLAIN.issuperset(map(type, values)):
            return values if len(values) > 1 else values[0]
        return (encoded,)

    def _encode_ident(self, key: Any) -> bytes:
        """Encode a dict key and remember it; every known key has its encoding."""
        if not isinstance(key, tuple):
            encoded = encode_key((key,))
        else:
            encoded = key[0] if len(key) == 1 else encode_key(key)
        full = self._encoded[key] = self._group.to_bytes(2, "big") + encoded
        return full

    def _forget_unchanged(self) -> None:
        for values, changed, encoded in self._groups.values():
            kept = {key: values[key] for key in changed}
            values.clear()
            values.update(kept)
            encoded.clear()
            encoded.update(changed)
        self._loaded = 0

    @property
    def overlay_bytes(self) -> int:
        """About how much memory the changes take; values are measured on a sample."""
        groups = [group for group in self._groups.values() if group.changed]
        count = sum(len(group.changed) for group in groups)
        sizes = [
            len(group.changed[key]) + self._size(group.values[key])
            for group in groups[:: 1 + len(groups) // _SAMPLE]
            for key in islice(reversed(group.changed), 1 + _SAMPLE // len(groups))
        ]
        if not sizes:
            return 0
        each = sum(sizes) / len(sizes) * _OBJECT_FACTOR + 2 * ENTRY_OVERHEAD_BYTES
        return int(each * count)

    def _size(self, value: Any) -> int:
        return 1 if value is _MISSING else len(self._encode(value))

    def _encode(self, value: Any) -> bytes:
        try:
            return _encode(value)
        except (TypeError, OverflowError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"store {self._store.name!r} cannot keep a {type(value).__name__}: {error}; "
                "keep builtins, msgspec structs, dataclasses or containers of these"
            ) from error

    def seal(self) -> None:
        """Encode the changes into the store below, in key order, and forget all objects.

        The cache may keep them until ``discard``.
        """
        try:
            for number in sorted(self._groups):
                group = self._groups[number]
                if group.changed:
                    self._seal_group(number, group)
        except BaseException:
            self.discard()
            raise
        self._forget_objects()
        if self._cache is not None:
            self._cache.age()

    def _seal_group(self, number: int, group: _Group) -> None:
        values, changed = group.values, group.changed
        by_full = dict(zip(changed.values(), map(values.__getitem__, changed), strict=True))
        fulls = sorted(by_full)
        kept = list(map(by_full.__getitem__, fulls))
        raws = self._encode_all(kept)
        if self._right is not None and not self._right.issuperset(set(map(type, kept))):
            pairs = zip(kept, raws, strict=True)
            check_declared(self._store.name, self._value, self._right, pairs, self._decode)
        self._store.put_many(fulls, raws)
        if self._cache is not None:
            self._note_sealed(self._cache, number, group, dict(zip(fulls, raws, strict=True)))

    def _note_sealed(
        self, cache: ObjectCache, number: int, group: _Group, raws: dict[bytes, bytes | None]
    ) -> None:
        values, changed, kinds = group.values, group.changed, cache.kinds
        if kinds is None:
            cache.note(number, ((key, raws[full]) for key, full in changed.items()))
            return
        kept = list(map(values.__getitem__, changed))
        if kinds.issuperset(set(map(type, kept)) - {_Missing}):
            cache.note(number, zip(changed, kept, strict=True))
            return
        for key, value in zip(changed, kept, strict=True):
            if value is _MISSING or type(value) in kinds:
                cache.note(number, [(key, value)])
            else:  # it reads back as something else
                cache.drop(number, key)

    def _encode_all(self, values: list[Any]) -> list[bytes | None]:
        try:
            if self._has_deletes:
                return [None if value is _MISSING else _encode(value) for value in values]
            return list(map(_encode, values))
        except (TypeError, OverflowError, ValueError, RecursionError):
            return [None if value is _MISSING else self._encode(value) for value in values]

    def discard(self) -> None:
        """Forget all objects, changed ones and those kept from earlier epochs too."""
        self._forget_objects()
        if self._cache is not None:
            self._cache.forget()

    def _forget_objects(self) -> None:
        self._groups = {}
        self._loaded = 0
        self._has_deletes = False
        self.enter(self._group)

    def begin(self) -> None:
        """Begin to count hits and misses anew."""
        if self._cache is not None:
            self._cache.hits = self._cache.misses = 0

    @property
    def hits(self) -> tuple[int, int]:
        """Messages whose value was here, and values that were read, since ``begin``."""
        return (0, 0) if self._cache is None else (self._cache.hits, self._cache.misses)

    def close(self) -> None:
        """Forget everything, for good."""
        self.discard()
        if self._cache is not None:
            self._cache.close()


def _runs(groups: npt.NDArray[np.uint16]) -> Iterator[tuple[int, int, int]]:
    """Yield each group of a sorted column with its first row and the one after its last."""
    begins = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()] if len(groups) else []
    ends = [*begins[1:], len(groups)]
    yield from zip(groups[begins].tolist(), begins, ends, strict=False)


def _encode_any(key: Any) -> bytes:
    return encode_key(key if isinstance(key, tuple) else (key,))


def _after(prefix: bytes) -> bytes | None:
    """The first bytes after all that begin with ``prefix``; none after FF FF."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None
