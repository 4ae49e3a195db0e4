"""Functions of the user over the messages of a window, as one function of the window's row.

A row has the key, the bounds of the window and the list of its messages; what is returned are the
columns beside the function's own, in the order that the plan gives them, and those.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from operator import attrgetter
from typing import Any, NamedTuple

from headrace.graph.signatures import name_of

MESSAGES = "messages"
"""The column in which a window collects its messages."""


class Bounds(NamedTuple):
    """The window that messages are of; count and global windows have no moments."""

    start: datetime.datetime | None = None
    end: datetime.datetime | None = None


@dataclass(frozen=True)
class WindowFunction:
    """Makes rows of a window's row; called by ``flat_map``.

    Args:
        function: the user's, for the name.
        keys: columns of the key.
        bounds: columns of the window's bounds, if it has any.
        by: the attribute that messages are sorted by; ``None``: they stay in order of arrival.
        names: columns that the function returns; ``None``: those of a message.
        flags: columns that say something of the result itself, such as that it is taken back.
    """

    function: Callable[..., Any]
    keys: tuple[str, ...]
    bounds: tuple[str, ...]
    by: str | None
    names: tuple[str, ...] | None
    flags: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        """Go by the name of the user's function, which is what people are shown."""
        object.__setattr__(self, "__qualname__", name_of(self.function))

    def __call__(self, row: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that the function makes of a window."""
        messages = getattr(row, MESSAGES)
        if self._place is not None:
            messages.sort(key=self._place)
        names = self.names
        if names is None:
            names = messages[0].__struct_fields__
        heads = _heads(self.beside, names)(row)
        for made in self.made(row, messages):
            yield heads + _values(made, names)

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """The columns of the row that stand before those of the function."""
        return (*self.keys, *self.bounds, *self.flags)

    def made(self, row: Any, messages: list[Any]) -> Iterable[Any]:
        """Return what the function makes of messages, of which there is at least one."""
        raise NotImplementedError

    @cached_property
    def _place(self) -> Callable[[Any], Any] | None:
        return None if self.by is None else attrgetter(self.by)

    @cached_property
    def key(self) -> Callable[[Any], Any]:
        """Takes the key: a value, or a tuple of several; ``None`` where messages have none."""
        return attrgetter(*self.keys) if self.keys else lambda row: None

    @cached_property
    def window(self) -> Callable[[Any], Bounds]:
        """Takes the bounds of the window."""
        bounds = _taking(self.bounds)
        return lambda row: Bounds(*bounds(row))


class Reduce(WindowFunction):
    """``reduce``: one message of two, again and again."""

    def made(self, row: Any, messages: list[Any]) -> Iterable[Any]:
        """Return the last message that is left."""
        kind, names = type(messages[0]), messages[0].__struct_fields__

        def joined(first: Any, second: Any) -> Any:
            made = self.function(first, second)
            # What is made of two is the first of the next two: a message again.
            return kind(*_values(made, names)) if isinstance(made, Mapping) else made

        return [reduce(joined, messages)]


@dataclass(frozen=True)
class Fold(WindowFunction):
    """``fold``: a state that each message changes; ``initial`` is copied for each window."""

    initial: Any = None

    def made(self, row: Any, messages: list[Any]) -> Iterable[Any]:
        """Return the last state."""
        return [reduce(self.function, messages, copy.deepcopy(self.initial))]


class EachWindow(WindowFunction):
    """``process_window``: any number of messages of a whole window."""

    def made(self, row: Any, messages: list[Any]) -> Iterable[Any]:
        """Return what the function returns."""
        found: Iterable[Any] = self.function(self.key(row), self.window(row), messages)
        return found


@lru_cache(maxsize=256)
def _heads(beside: tuple[str, ...], names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the columns that stand before those of the function."""
    return _taking(tuple(name for name in beside if name not in names))


@lru_cache(maxsize=256)
def _taking(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the values of these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda row: tuple([getattr(row, name) for name in names])


def _values(made: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if type(made) is dict or isinstance(made, Mapping):
        return tuple([made[name] for name in names])
    if isinstance(made, tuple):
        return tuple(made)
    return _taking(names)(made)
