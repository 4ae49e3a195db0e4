"""``store``: how a job declares the keyed stores of its ``process`` operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar, overload

from headrace.durations import Duration, duration_ms
from headrace.errors import InvalidInputError
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote

V = TypeVar("V")
D = TypeVar("D")


class Store(Protocol[V]):
    """Keyed values of one type, as ``context.store`` returns them, for type checkers.

    Example:
        >>> import headrace as hr
        >>> class Count:
        ...     def open(self, context: hr.Context) -> None:
        ...         self.seen: hr.Store[int] = context.store("seen")
    """

    @overload
    def get(self, key: Any) -> V | None: ...

    @overload
    def get(self, key: Any, default: D) -> V | D: ...

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if there is none."""

    def put(self, key: Any, value: V) -> None:
        """Set the value of a key; a value of another type than declared fails the epoch."""

    def delete(self, key: Any) -> None:
        """Delete a key; a missing key is not an error."""

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a value."""

    def scan(
        self, low: Any = ..., high: Any = ..., *, prefix: Any = ...
    ) -> Iterator[tuple[Any, V]]:
        """Yield keys and values of the message's key group in canonical key order."""


def store(
    name: str,
    value: Any = Any,
    kind: str = "rocksdb",
    ttl: Duration | None = None,
    *,
    changelog: bool = True,
    url: str | None = None,
    remote: Remote | None = None,
    prefix_bloom: bool = False,
) -> StoreSpec:
    """Declare a keyed store for ``process``.

    Args:
        name: unique within the job; its state is stored under it.
        value: type of the values: a builtin, msgspec struct, dataclass or container.
        kind: ``rocksdb`` for state of any size, ``memory`` for small hot state, ``remote`` for
            values on a Redis server that others share: at-least-once, because the server takes no
            part in the commit of an epoch. Needs ``pip install "headrace[redis]"``.
        ttl: time to live: an entry that was not written for this long, by the wall clock of the
            epochs, is no longer visible and is removed. You can change it later, but not add it to
            a store with state, or remove it. Default: entries stay.
        changelog: ``False``: changes are not logged, and the store starts empty after its process
            or host is lost. Use it for state that you can lose.
        url: for kind ``remote``: address of the server; default: the setting ``remote.url``.
        remote: for kind ``remote``: how to access it; see ``hr.Remote``.
        prefix_bloom: for kind ``rocksdb``: also keep filters over the first part of keys that are
            tuples, which halves the time of ``scan(prefix=...)`` without results. You can change
            it later.

    Raises:
        InvalidInputError: an invalid duration, or a prefix filter for another kind of store.
    """
    if prefix_bloom and kind != "rocksdb":
        raise InvalidInputError(
            f"store {name!r} has prefix_bloom=True and is of kind {kind!r}, which has no filters; "
            "leave it out, or take kind='rocksdb'"
        )
    ttl_ms = None if ttl is None else duration_ms(ttl, f"ttl of store {name!r}")
    if kind == "remote" or url is not None:
        remote = remote or Remote()
        remote = remote if url is None else replace(remote, url=url)
    return StoreSpec(name, kind, value, ttl_ms, changelog, remote, prefix_bloom=prefix_bloom)
