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
from itertools import islice
from sys import getsizeof
from typing import Any, Union, get_args, get_origin

DEFAULT_CACHE_BYTES = 256 << 20

_SCALARS = frozenset((int, float, str, bytes, bool, type(None)))
_SLOT_BYTES = 100  # an entry of a dict that is two thirds full
_SAMPLE = 32

Held = dict[Any, Any]


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
    def keeps_bytes(self) -> bool:
        """Say whether values are kept as their bytes, for they might be changed in place."""
        return self.kinds is None

    @property
    def entries(self) -> int:
        """How many entries are held here, beside what the store holds itself."""
        return sum(map(len, self._young.values())) + sum(map(len, self._old.values()))

    def recall(self, group: int, keys: Held) -> Held:
        """Return what is held of some keys of a key group."""
        found: Held = {}
        for generation in (self._old, self._young):
            held = generation.get(group)
            if held:
                found.update((key, held[key]) for key in keys.keys() & held.keys())
        if found and self.keeps_bytes:
            self._of(group).update(found)
        return found

    def note(self, group: int, raws: Iterable[tuple[Any, bytes | None]]) -> None:
        """Hold the bytes of values that were read or written."""
        self._of(group).update(raws)

    def _of(self, group: int) -> Held:
        return self._young.setdefault(group, {})

    def drop(self, group: int, key: Any) -> None:
        """Hold nothing of a key."""
        for generation in (self._old, self._young):
            generation.get(group, {}).pop(key, None)

    def age_bytes(self) -> None:
        """End an epoch of a store whose values are held here, as bytes."""
        if self._too_large(self._young):
            self._old, self._young = self._trimmed(self._young), {}

    def age_objects(self, groups: dict[int, Held]) -> bool:
        """End an epoch of a store that holds its values itself.

        Returns:
            Whether they were taken over as the old ones, so that the store lets go of them.
        """
        is_large = self._too_large(groups)
        if is_large:
            self._old = self._trimmed(groups)
        return is_large

    def _too_large(self, groups: dict[int, Held]) -> bool:
        return _estimate(groups) > self._budget.share // 2

    def _trimmed(self, groups: dict[int, Held]) -> dict[int, Held]:
        """Return as many whole groups as fit half of the share."""
        room = self._budget.share // 2
        each = _estimate(groups) / max(1, sum(map(len, groups.values())))
        kept: dict[int, Held] = {}
        for group, held in groups.items():
            room -= int(len(held) * each)
            if room < 0:
                break
            kept[group] = held
        return kept

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
    """About how many bytes entries take, with a key's encoding beside each."""
    count = sum(map(len, groups.values()))
    sample = [
        getsizeof(key) * 2 + getsizeof(value)
        for held in islice(groups.values(), 0, None, 1 + len(groups) // _SAMPLE)
        for key, value in islice(held.items(), 1 + _SAMPLE // len(groups))
    ]
    if not sample:
        return 0
    return int((sum(sample) / len(sample) + 2 * _SLOT_BYTES) * count)
