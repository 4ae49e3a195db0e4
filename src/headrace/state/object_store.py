"""What user code gets as its store: Python keys and values, under the message's key group.

The hottest code of the project. Values become objects when a batch's keys are prefetched and bytes
again when the epoch is sealed, once for each changed key; in between, ``get`` and ``put`` are dict
lookups. Plain ``int``, ``str`` and ``bytes`` keys, and tuples of them, are their own dict keys; all
others stand under their canonical bytes, so that 1, 1.0, True and "1" stay apart.

``ObjectCache`` keeps from one epoch to the next only what a new process would read as well, so no
result depends on whether it lived; it has two generations by key group, within the bytes of its
process. A value of another type than the declared one is refused before it is committed.
"""

from __future__ import annotations

import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import attrgetter, is_, itemgetter
from sys import getsizeof
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.keys import decode_key, encode_any, encode_key
from headrace.state.store import ENTRY_OVERHEAD_BYTES, KeyValueStore, overlaid

_SHOWN = 100


def declared_types(declared: Any) -> frozenset[type] | None:
    """Return the types that values of a declared type have; ``None``: any may be."""
    if declared in (Any, object):
        return None
    if declared is None:
        return frozenset((type(None),))
    if declared is float:
        return frozenset((float, int))
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        return declared_types(arguments[0])
    if origin in (typing.Union, types.UnionType):
        options = [declared_types(one) for one in arguments]
        return None if None in options else frozenset().union(*(one for one in options if one))
    if typing.is_typeddict(declared):
        return frozenset((dict,))
    kind = origin or declared
    return frozenset((kind,)) if isinstance(kind, type) else frozenset()


def check_declared(
    store: str,
    declared: Any,
    right: frozenset[type],
    values: Iterable[tuple[Any, bytes | None]],
    decode: Callable[[bytes], Any],
) -> None:
    """Read values of types that are not known to be right back.

    Args:
        store: its name.
        declared: the type of its values.
        right: from ``declared_types``.
        values: with their encodings; ``None``: deleted.
        decode: to the declared type.

    Raises:
        InvalidInputError: a value that would not read as the declared type.
    """
    for value, raw in values:
        if raw is None or type(value) in right:
            continue
        try:
            decode(raw)
        except msgspec.DecodeError as error:
            wanted = declared.__name__ if isinstance(declared, type) else str(declared)
            shown = f"{value!r}"[:_SHOWN]
            raise InvalidInputError(
                f"store {store!r} was given {shown}, a {type(value).__name__}; its values are "
                f"declared as {wanted}: put such a value, or declare another type ({error})"
            ) from error


DEFAULT_CACHE_BYTES = 256 << 20

_SCALARS = frozenset((int, float, str, bytes, bool, type(None)))
_SLOT_BYTES = 100  # an entry of a dict that is two thirds full
_SIZE_SAMPLE = 32

CachedValues = dict[Any, Any]
_NOTHING = object()


class CacheBudget:
    """Bytes that the caches of a process may hold together, in equal shares.

    Args:
        limit: about so many bytes; 0 keeps nothing between epochs.
    """

    def __init__(self, limit: int = DEFAULT_CACHE_BYTES) -> None:
        self.limit = limit
        self._caches: weakref.WeakSet[ObjectCache] = weakref.WeakSet()

    def join(self, cache: ObjectCache) -> None:
        """Give a cache its share."""
        self._caches.add(cache)

    def leave(self, cache: ObjectCache) -> None:
        """Take a share back."""
        self._caches.discard(cache)

    @property
    def share(self) -> int:
        """Bytes for each cache."""
        return self.limit // max(1, len(self._caches))


class ObjectCache:
    """The entries of one store that outlive an epoch.

    Args:
        value: declared type of the store's values.
        budget: of the process.
    """

    def __init__(self, value: Any, budget: CacheBudget) -> None:
        self.kinds = scalar_types(value)
        self.hits = self.misses = 0
        self._budget = budget
        self._young: dict[int, CachedValues] = {}
        self._old: dict[int, CachedValues] = {}
        budget.join(self)

    @property
    def entries(self) -> int:
        """How many entries are held."""
        return sum(map(len, self._young.values())) + sum(map(len, self._old.values()))

    def recall(self, group: int, keys: CachedValues) -> tuple[CachedValues, CachedValues]:
        """Return what is held of some keys of a key group, and the other keys with their values."""
        found: CachedValues = {}
        for generation in (self._young, self._old):
            held = generation.get(group)
            if not held or not keys:
                continue
            values = list(map(held.get, keys, repeat(_NOTHING)))
            if not any(map(is_, values, repeat(_NOTHING))):
                hits, keys = dict(zip(keys, values, strict=True)), {}
            else:
                pairs = zip(keys, values, strict=True)
                hits = {key: value for key, value in pairs if value is not _NOTHING}
                keys = {key: code for key, code in keys.items() if key not in hits}
            found = found | hits if found else hits
            if generation is self._old:
                self.note(group, hits.items())
        return found, keys

    def note(self, group: int, values: Iterable[tuple[Any, Any]]) -> None:
        """Hold values, or their bytes, that were read or written."""
        self._young.setdefault(group, {}).update(values)

    def drop(self, group: int, key: Any) -> None:
        """Hold nothing of a key."""
        for generation in (self._old, self._young):
            generation.get(group, {}).pop(key, None)

    def age(self) -> None:
        """End an epoch: the young become the old ones when they are too many."""
        room = self._budget.share // 2
        if _estimate(self._young) > room:
            self._old, self._young = _trimmed(self._young, room), {}

    def forget(self) -> None:
        """Drop everything that is held."""
        self._young, self._old = {}, {}

    def close(self) -> None:
        """Drop everything, and leave the share to the others."""
        self.forget()
        self._budget.leave(self)


def scalar_types(value: Any) -> frozenset[type] | None:
    """Return the exact types that values of a declared type have, if all are immutable scalars.

    A value of one of them reads back from its bytes as exactly what it was: an int that was put
    into a store of floats does not.
    """
    if value is None:
        return frozenset((type(None),))
    if get_origin(value) in (Union, types.UnionType):
        parts = [scalar_types(part) for part in get_args(value)]
        known = [part for part in parts if part is not None]
        return frozenset().union(*known) if len(known) == len(parts) else None
    return frozenset((value,)) if isinstance(value, type) and value in _SCALARS else None


def _estimate(groups: dict[int, CachedValues]) -> int:
    """About how many bytes entries take."""
    count = sum(map(len, groups.values()))
    sample = [
        getsizeof(key) + getsizeof(value)
        for held in islice(groups.values(), 0, None, 1 + len(groups) // _SIZE_SAMPLE)
        for key, value in islice(held.items(), 1 + _SIZE_SAMPLE // len(groups))
    ]
    return int((sum(sample) / len(sample) + _SLOT_BYTES) * count) if sample else 0


def _trimmed(groups: dict[int, CachedValues], room: int) -> dict[int, CachedValues]:
    """Return as many whole groups as fit."""
    each = _estimate(groups) / max(1, sum(map(len, groups.values())))
    kept: dict[int, CachedValues] = {}
    for group, held in groups.items():
        room -= int(len(held) * each)
        if room < 0:
            break
        kept[group] = held
    return kept


LOADED_LIMIT = 1_000_000
"""Unchanged values kept within an epoch; beyond, they are dropped before the next batch."""

OBJECT_FACTOR = 3  # a Python object against its encoding, about
_SAMPLE = 32
_BY_CODE, _CHANGED = itemgetter(1), attrgetter("changed")
_PLAIN = frozenset((int, str, bytes))
_encode = msgspec.msgpack.Encoder().encode


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()
"""Stands for the value of a key that has none."""


def pack_value(store: str, value: Any) -> bytes | None:
    """Return what a store keeps of a value; ``None``: it is ``MISSING``, and nothing is kept.

    Raises:
        InvalidInputError: it cannot keep it.
    """
    if value is MISSING:
        return None
    try:
        return _encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"store {store!r} cannot keep a {type(value).__name__}: {error}; "
            "keep builtins, msgspec structs, dataclasses or containers of these",
            store=store,
        ) from error


_ABSENT: Any = object()
_FIXED = frozenset((int, str, bytes, float, bool, type(None)))


class KeySnapshot(NamedTuple):
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
        self._right = declared_types(value)
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
        """Return the value of a key, or ``default`` if there is none."""
        kind = type(key)
        if not (kind is int or kind is str or kind is bytes):
            key = self._ident(key)
        try:
            value = self._values[key]
        except KeyError:
            value = self._load(key)
        return default if value is MISSING else value

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
        """Delete a key; a missing key is not an error."""
        self._has_deletes = True
        self.put(key, MISSING)

    def hold(self, key: Any) -> KeySnapshot:
        """Return what a key has now, so that ``restore`` can bring it back.

        The value is encoded where user code could change it in place.
        """
        kind = type(key)
        if not (kind is int or kind is str or kind is bytes):
            key = self._ident(key)
        value = self._values.get(key, _ABSENT)
        is_open = value is not _ABSENT and value is not MISSING and type(value) not in _FIXED
        kept = pack_value(self._store.name, value) if is_open else value
        return KeySnapshot(self._values, self._changed, key, kept, is_open, self._changed.get(key))

    def restore(self, held: KeySnapshot) -> None:
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
        return self.get(key, MISSING) is not MISSING

    def scan(
        self, low: Any = MISSING, high: Any = MISSING, *, prefix: Any = MISSING
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
        if prefix is not MISSING:
            begin = start + encode_any(prefix)
            end = _after(begin)
        if low is not MISSING:
            begin = max(begin, start + encode_any(low))
        if high is not MISSING:
            last = start + encode_any(high)
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
        laid = [(full, None if value is MISSING else (value,)) for full, value in changed]
        for full, found in overlaid(committed, laid):
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
                key: MISSING if raw is None else self._decoded(raw) for key, raw in found.items()
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
                decoded = [MISSING if raw is None else decode(raw) for raw in found]
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
        value = MISSING if raw is None else self._decoded(raw)
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
        encoded = encode_any(key)
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
        count = sum(map(len, map(_CHANGED, groups)))
        sizes = [
            len(group.changed[key]) + self._size(group.values[key])
            for group in groups[:: 1 + len(groups) // _SAMPLE]
            for key in islice(reversed(group.changed), 1 + _SAMPLE // len(groups))
        ]
        if not sizes:
            return 0
        each = sum(sizes) / len(sizes) * OBJECT_FACTOR + 2 * ENTRY_OVERHEAD_BYTES
        return int(each * count)

    def _size(self, value: Any) -> int:
        return len(pack_value(self._store.name, value) or b" ")

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
            if value is MISSING or type(value) in kinds:
                cache.note(number, [(key, value)])
            else:  # it reads back as something else
                cache.drop(number, key)

    def _encode_all(self, values: list[Any]) -> list[bytes | None]:
        try:
            if self._has_deletes:
                return [None if value is MISSING else _encode(value) for value in values]
            return list(map(_encode, values))
        except (TypeError, OverflowError, ValueError, RecursionError):
            return [pack_value(self._store.name, value) for value in values]

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
        """Begin to count hits and misses again."""
        if self._cache is not None:
            self._cache.hits = self._cache.misses = 0

    @property
    def hits(self) -> tuple[int, int]:
        """Messages whose value was here, and values that were read, since ``begin``."""
        return (0, 0) if self._cache is None else (self._cache.hits, self._cache.misses)

    def close(self) -> None:
        """Forget everything."""
        self.discard()
        if self._cache is not None:
            self._cache.close()


def _runs(groups: npt.NDArray[np.uint16]) -> Iterator[tuple[int, int, int]]:
    """Yield each group of a sorted column with its first row and the one after its last."""
    begins = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()] if len(groups) else []
    ends = [*begins[1:], len(groups)]
    yield from zip(groups[begins].tolist(), begins, ends, strict=False)


def _after(prefix: bytes) -> bytes | None:
    """The first bytes after all that begin with ``prefix``; none after FF FF."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else None
