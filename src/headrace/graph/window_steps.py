"""``reduce``, ``fold`` and ``process_window``: a window of messages, and a function over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.arguments import is_function, returned, shown
from headrace.graph.operators import FAIL, FlatMapMessages, Operator
from headrace.graph.picking import Collect
from headrace.graph.signatures import call_mistake, name_of
from headrace.graph.sites import user_site
from headrace.graph.steps import Steps
from headrace.graph.window_functions import MESSAGES, EachWindow, Fold, Reduce, WindowFunction
from headrace.graph.windows import Window


@dataclass(frozen=True)
class _Kept:
    """How the messages of windows are kept, and what becomes of those that a function refuses."""

    store: str
    name: str | None
    by: str | None
    on_error: str
    uses: Sequence[str] | None = None


class WindowSteps(Steps):
    """Functions over the messages of a window.

    A function is called anew for each result of a window: early ones, those that late records
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
        """Make one message of all messages of each key and window, two at a time.

        The result has the columns of a message, those of the key, and the bounds of the window
        where the message has none. All messages are kept until the window closes.

        Args:
            window: such as ``hr.session("30m")``.
            function: from two messages, the earlier first, to a message: the same, another, or a
                dict of its columns.
            by: the column by which messages are put in order. Default: the order of arrival,
                which over several partitions depends on how they were read.
            store: as for ``window``.
            name: of the operator that keeps the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a window on which it raises.
        """
        kept = _Kept(store, name, by, on_error)
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
        """Change a state by each message of a key and window, and send the last one.

        The result has the key, the bounds of the window and the columns of the state. All messages
        are kept until the window closes; a ``monoid`` keeps only a state.

        Args:
            window: such as ``hr.session("30m")``.
            initial: the state before the first message; each window gets a copy.
            function: from a state and a message to a state.
            returns: columns of the state; default: the function's return annotation.
            by: the column by which messages are put in order. Default: the order of arrival.
            uses: the columns the function reads. Default: all.
            store: as for ``window``.
            name: of the operator that keeps the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a window on which it raises.
        """
        wrong: list[str] = []
        schema = returned(wrong, "fold", function, returns)
        kept = _Kept(store, name, by, on_error, uses)
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
        """Make any number of messages of all messages of each key and window.

        The result has the key, the bounds of the window and the columns that the function returns.

        Args:
            window: such as ``hr.session("30m")``.
            function: from the key, the window (with ``start`` and ``end``) and the list of its
                messages to an iterable of messages.
            returns: columns of a message of the result; default: ``T`` of the return annotation
                ``Iterable[T]``.
            by: the column by which messages are put in order. Default: the order of arrival.
            uses: the columns the function reads. Default: all.
            store: as for ``window``.
            name: of the operator that keeps the messages.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a window on which it raises.
        """
        wrong: list[str] = []
        schema = returned(wrong, "process_window", function, returns, many=True)
        kept = _Kept(store, name, by, on_error, uses)
        names = None if schema is None else tuple(schema.names)
        made = EachWindow(function, *self._heads(window), by, names, flags=_flags(window))
        arguments = ("key", "window", "messages")
        return self._over(window, "process_window", made, kept, arguments, schema, wrong)

    def _heads(self, window: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.keys or (), window.heads if isinstance(window, Window) else ()

    def _over(
        self,
        window: Window,
        method: str,
        made: WindowFunction,
        kept: _Kept,
        arguments: tuple[str, ...],
        schema: pa.Schema | None,
        mistakes: Sequence[str] = (),
    ) -> Self:
        """Collect the messages of windows, and call the function for each."""
        site = user_site()
        names = tuple(dict.fromkeys((*(kept.uses or ()), *([kept.by] if kept.by else ()))))
        collect: dict[str, Aggregate] = {MESSAGES: Collect(names if kept.uses else ())}
        collected = cast("Any", self).window(window, kept.store, kept.name, **collect)

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
