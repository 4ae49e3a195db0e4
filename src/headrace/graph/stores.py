"""``store``: how a job declares the keyed stores of its ``process`` operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar, overload

from headrace.errors import InvalidInputError
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import StoreSpec
from headrace.graph.remote import Remote

V = TypeVar("V")
D = TypeVar("D")


class Store(Protocol[V]):
    """Keyed values of one type, as ``context.store`` gives them: what type checkers know of it.

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
        """Return the value of a key, or ``default`` where there is none."""

    def put(self, key: Any, value: V) -> None:
        """Set the value of a key; one of another type than declared fails the epoch."""

    def delete(self, key: Any) -> None:
        """Delete a key; deleting what is not there is fine."""

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
        name: unique within the job; its state is kept by it.
        value: type of the values: a builtin, msgspec struct, dataclass or container.
        kind: ``rocksdb`` for state of any size, ``memory`` for small hot state, ``remote`` for
            values on a Redis server that others share: at-least-once, for the server takes no
            part in the commit of an epoch. Needs ``pip install 'headrace[remote]'``.
        ttl: time to live: an entry that was not written for so long, by the wall clock of
            the epochs, is not seen any more and is removed. It may be changed later, but not
            added to a store that has state, or taken away. Default: entries stay.
        changelog: ``False``: changes are not logged, and the store begins empty again whenever
            the process or the host that holds it is lost. For what can be done without.
        url: of kind ``remote``: where the server is; default: the setting ``remote.url``.
        remote: of kind ``remote``: how it is asked; see ``hr.Remote``.
        prefix_bloom: of kind ``rocksdb``: keep filters over the first part of keys that are
            tuples, too: half the time for ``scan(prefix=...)`` where there is nothing. It may be
            changed later.

    Raises:
        InvalidInputError: a duration that is none, or a prefix filter of another kind of store.
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
