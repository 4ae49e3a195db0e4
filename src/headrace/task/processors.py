"""Runs processors with a contract by way of ``process``: see ``headrace.graph.processors``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.processors import (
    CONTRACTS,
    StatefulProcessor,
    StatelessProcessor,
    contract_of,
)
from headrace.graph.signatures import name_of
from headrace.graph.states import STATE
from headrace.task.context import Context
from headrace.task.timers import Timer

_MISSING: Any = object()


def runner_of(factory: Callable[[], Any]) -> Callable[[], Any]:
    """Return a factory of what ``ProcessNode`` calls, for one that users give to ``process``."""
    contract = contract_of(factory)
    if contract is StatelessProcessor:
        return lambda: StatelessRunner(factory())
    if contract is StatefulProcessor:
        return lambda: StatefulRunner(factory())
    return lambda: _checked(factory())


def _checked(made: Any) -> Any:
    """Refuse what a function made that only a class tells of: its state would be missing."""
    if isinstance(made, CONTRACTS):
        kind = type(made).__name__
        raise InvalidInputError(
            f"process got a function that makes a {kind}; give the class itself, or "
            f"functools.partial({kind}, ...), which says what it keeps"
        )
    return made


class _Runner:
    """What runners share: the user's object, with the context while it is called."""

    def __init__(self, user: Any) -> None:
        self._user = user
        self._name = name_of(type(user))

    def open(self, context: Context) -> None:
        """Give the user's object its context, and let it take what it needs."""
        self._user.context = context
        if hasattr(self._user, "open"):
            self._user.open()

    def close(self) -> None:
        """Let the user's object release what it took."""
        if hasattr(self._user, "close"):
            self._user.close()

    def _send(self, outputs: Any, context: Context) -> None:
        if outputs is None:
            return
        if isinstance(outputs, str | bytes | Mapping) or not isinstance(outputs, Iterable):
            raise FunctionResultError(
                f"{self._name} returned {outputs!r:.200} as outputs; expected an iterable of "
                "messages, or None: put a single message into a list"
            )
        for output in outputs:
            context.emit(output)


class StatelessRunner(_Runner):
    """Sends on what a ``StatelessProcessor`` returns."""

    def process(self, message: Any, context: Context) -> None:
        """Handle a message."""
        self._send(self._user.process(message), context)


class StatefulRunner(_Runner):
    """Gives a ``StatefulProcessor`` the state of its key, and keeps the new one."""

    def __init__(self, user: StatefulProcessor[Any]) -> None:
        super().__init__(user)
        if hasattr(user, "on_timer"):
            self.on_timer = self._on_timer

    def process(self, message: Any, context: Context) -> None:
        """Handle a message."""
        self._turn(self._user.process, message, context)

    def _on_timer(self, timer: Timer, context: Context) -> None:
        self._turn(self._user.on_timer, timer, context)

    def _turn(self, call: Callable[[Any, Any], Any], met: Any, context: Context) -> None:
        store, key = context.store(STATE), context.key
        state = store.get(key, _MISSING)
        is_new = state is _MISSING
        result = call(met, self._user.begin() if is_new else state)
        if type(result) is not tuple or len(result) != 2:
            raise FunctionResultError(
                f"{self._name} returned {result!r:.200}; expected a pair: outputs and the new state"
            )
        self._send(result[0], context)
        if result[1] is not None:
            store.put(key, result[1])
        elif not is_new:
            store.delete(key)
