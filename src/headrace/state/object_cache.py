"""What an ``ObjectStore`` keeps from one epoch to the next, within the bytes of its process.

Kept is only what a new process would read as well, so that no result depends on whether the
cache lived. Values of plain immutable types are kept as they are; all others as the bytes
that were committed, and decoded again when their key is next asked for: an object that user
code changed in place and did not put is gone, as it would be after a crash.

Two generations by key group stand for the order of use: what a batch asks for is young;
when the young reach half of the store's share, they become the old ones, and the old go.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable
from itertools import islice, repeat
from operator import is_
from sys import getsizeof
from typing import Any, Union, get_args, get_origin

DEFAULT_CACHE_BYTES = 256 << 20

_SCALARS = frozenset((int, float, str, bytes, bool, type(None)))
_SLOT_BYTES = 100  # an entry of a dict that is two thirds full
_SAMPLE = 32

Held = dict[Any, Any]
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
        self.kinds = plain_types(value)
        self.hits = self.misses = 0
        self._budget = budget
        self._young: dict[int, Held] = {}
        self._old: dict[int, Held] = {}
        budget.join(self)

    @property
    def entries(self) -> int:
        """How many entries are held."""
        return sum(map(len, self._young.values())) + sum(map(len, self._old.values()))

    def recall(self, group: int, keys: Held) -> tuple[Held, Held]:
        """Return what is held of some keys of a key group, and the other keys with their values."""
        found: Held = {}
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


def plain_types(value: Any) -> frozenset[type] | None:
    """Return the exact types that values of a declared type have, if all are immutable scalars.

    A value of one of them reads back from its bytes as exactly what it was: an int that was put
    into a store of floats does not.
    """
    if value is None:
        return frozenset((type(None),))
    if get_origin(value) in (Union, types.UnionType):
        parts = [plain_types(part) for part in get_args(value)]
        known = [part for part in parts if part is not None]
        return frozenset().union(*known) if len(known) == len(parts) else None
    return frozenset((value,)) if isinstance(value, type) and value in _SCALARS else None


def _estimate(groups: dict[int, Held]) -> int:
    """About how many bytes entries take."""
    count = sum(map(len, groups.values()))
    sample = [
        getsizeof(key) + getsizeof(value)
        for held in islice(groups.values(), 0, None, 1 + len(groups) // _SAMPLE)
        for key, value in islice(held.items(), 1 + _SAMPLE // len(groups))
    ]
    return int((sum(sample) / len(sample) + _SLOT_BYTES) * count) if sample else 0


def _trimmed(groups: dict[int, Held], room: int) -> dict[int, Held]:
    """Return as many whole groups as fit."""
    each = _estimate(groups) / max(1, sum(map(len, groups.values())))
    kept: dict[int, Held] = {}
    for group, held in groups.items():
        room -= int(len(held) * each)
        if room < 0:
            break
        kept[group] = held
    return kept
