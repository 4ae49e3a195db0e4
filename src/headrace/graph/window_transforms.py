"""``reduce``, ``fold`` and ``process_window``: a window of messages, and a function over them.

Such a method collects the messages of a window as an aggregate does, and calls the user's function
on the window's row, as ``flat_map`` does.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from operator import attrgetter
from typing import Any, NamedTuple, Self, cast

import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.diagnostics import is_function, returned, shown
from headrace.graph.introspection import call_mistake, name_of, user_site
from headrace.graph.operators import FAIL, FlatMapMessages, Operator
from headrace.graph.row_aggregates import MESSAGES, Collect
from headrace.graph.stateless_transforms import StreamBase
from headrace.graph.windows import Window


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


class ProcessWindow(WindowFunction):
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


@dataclass(frozen=True)
class _MessageStore:
    """How the messages of windows are kept, and what happens to those that a function refuses."""

    store: str
    name: str | None
    by: str | None
    on_error: str
    uses: Sequence[str] | None = None


class WindowTransforms(StreamBase):
    """Functions over the messages of a window.

    A function is called again for each result of a window: early ones, those that late records
    change, and those that are taken back, with the messages that these had.
    """

    def reduce(
        self,
        window: Window,
        function: Callable[[Any, Any], Any],
        by: str | None = None,
        store: str = "columnar",
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Combine all messages of each key and window into one, two at a time.

        The result has the columns of a message, those of the key, and the bounds of the window if
        the message has none. All messages are stored until the window closes.

        Args:
            window: such as ``hr.session("30m")``.
            function: from two messages, the earlier first, to a message: the same, another, or a
                dict of its columns.
            by: the column to sort messages by. Default: the order of arrival, which for several
                partitions depends on how they were read.
            store: as for ``window``.
            name: of the operator that stores the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a window on which it raises.
        """
        kept = _MessageStore(store, name, by, on_error)
        made = Reduce(function, *self._heads(window), by, None, flags=_flags(window))
        return self._over(window, "reduce", made, kept, ("first", "second"), None)

    def fold(  # noqa: PLR0913, PLR0917 - window, function, and how messages are kept
        self,
        window: Window,
        initial: Any,
        function: Callable[[Any, Any], Any],
        returns: Any = None,
        by: str | None = None,
        uses: Sequence[str] | None = None,
        store: str = "columnar",
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Update a state with each message of a key and window, and emit the final state.

        The result has the key, the bounds of the window and the columns of the state. All messages
        are stored until the window closes; a ``monoid`` stores only a state.

        Args:
            window: such as ``hr.session("30m")``.
            initial: the state before the first message; each window gets a copy.
            function: from a state and a message to a state.
            returns: columns of the state; default: the function's return annotation.
            by: the column to sort messages by. Default: the order of arrival.
            uses: the columns the function reads. Default: all.
            store: as for ``window``.
            name: of the operator that stores the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a window on which it raises.
        """
        wrong: list[str] = []
        schema = returned(wrong, "fold", function, returns)
        kept = _MessageStore(store, name, by, on_error, uses)
        names = None if schema is None else tuple(schema.names)
        heads, flags = self._heads(window), _flags(window)
        made = Fold(function, *heads, by, names, initial, flags=flags)
        return self._over(window, "fold", made, kept, ("state", "message"), schema, wrong)

    def process_window(
        self,
        window: Window,
        function: Callable[[Any, Any, list[Any]], Iterable[Any]],
        returns: Any = None,
        by: str | None = None,
        uses: Sequence[str] | None = None,
        store: str = "columnar",
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Turn all messages of each key and window into any number of messages.

        The result has the key, the bounds of the window and the columns that the function returns.

        Args:
            window: such as ``hr.session("30m")``.
            function: from the key, the window (with ``start`` and ``end``) and the list of its
                messages to an iterable of messages.
            returns: columns of a message of the result; default: ``T`` of the return annotation
                ``Iterable[T]``.
            by: the column to sort messages by. Default: the order of arrival.
            uses: the columns the function reads. Default: all.
            store: as for ``window``.
            name: of the operator that stores the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a window on which it raises.
        """
        wrong: list[str] = []
        schema = returned(wrong, "process_window", function, returns, many=True)
        kept = _MessageStore(store, name, by, on_error, uses)
        names = None if schema is None else tuple(schema.names)
        made = ProcessWindow(function, *self._heads(window), by, names, flags=_flags(window))
        arguments = ("key", "window", "messages")
        return self._over(window, "process_window", made, kept, arguments, schema, wrong)

    def _heads(self, window: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.keys or (), window.heads if isinstance(window, Window) else ()

    def _over(
        self,
        window: Window,
        method: str,
        made: WindowFunction,
        kept: _MessageStore,
        arguments: tuple[str, ...],
        schema: pa.Schema | None,
        mistakes: Sequence[str] = (),
    ) -> Self:
        """Collect the messages of windows, and call the function for each."""
        site = user_site()
        names = tuple(dict.fromkeys((*(kept.uses or ()), *([kept.by] if kept.by else ()))))
        collect: dict[str, Aggregate] = {MESSAGES: Collect(names if kept.uses else ())}
        collected = cast("Any", self).window(window, collect, store=kept.store, name=kept.name)

        def make(chosen: str, wrong: list[str]) -> Operator:
            wrong += mistakes
            if not is_function(made.function):
                wrong.append(f"{method} takes a function; found {shown(made.function)}")
            elif (mistake := call_mistake(made.function, arguments)) is not None:
                wrong.append(f"function {name_of(made.function)} {mistake}")
            like = self.name if made.names is None and method == "reduce" else ""
            return FlatMapMessages(
                chosen, (collected.name,), site, made, schema, beside=made.beside, like=like
            )

        found: Self = collected._add(method, None, make, collected.keys, kept.on_error)  # noqa: SLF001 - own class
        found._sides |= collected._sides  # noqa: SLF001 - own class
        return found


def _flags(window: object) -> tuple[str, ...]:
    return window.flags if isinstance(window, Window) else ()
