"""Base classes of processors with the contracts of Stylus: none, some, or combinable state.

``StatelessProcessor`` and ``StatefulProcessor`` go into ``stream.process(...)``,
``MonoidProcessor`` into ``stream.monoid(...)``. An instance is made for each task. What a
contract leaves out, such as timers and the event's time, is at hand as ``self.context``.
"""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from headrace.errors import InvalidInputError
from headrace.graph.signatures import call_mistake, name_of, process_mistakes

State = TypeVar("State")
Key = TypeVar("Key")
Partial = TypeVar("Partial")


class StatelessProcessor(ABC):
    """From an event to outputs, and nothing kept between events.

    ``context`` is an ``hr.Context`` while an event is handled. ``open()`` and ``close()`` may take
    and release what the class needs.
    """

    context: Any = None

    @abstractmethod
    def process(self, event: Any) -> Iterable[Any] | None:
        """Return the outputs of an event; ``None`` or an empty list where there are none."""


class StatefulProcessor(ABC, Generic[State]):
    """From an event and the state of its key to outputs and the new state.

    The state is an object in memory while an epoch runs, and goes to the local store with
    the epoch, once for each key that changed. ``context`` is an ``hr.Context`` while an event is
    handled. A class may have ``on_timer(timer, state)``, which returns what ``process`` does, and
    ``open()`` and ``close()``.
    """

    context: Any = None

    @abstractmethod
    def begin(self) -> State:
        """Return the state of a key that has none; annotate it with the type of states."""

    @abstractmethod
    def process(self, event: Any, state: State) -> tuple[Iterable[Any] | None, State | None]:
        """Return the outputs of an event and the new state; a state of ``None`` is forgotten."""


class MonoidProcessor(ABC, Generic[Key, Partial]):
    """From an event to keys with partial results, which combine in any grouping.

    ``combine`` must be associative, and ``identity`` change nothing. Events come in
    their order within a partition; where the order of partitions matters to ``combine``, it is that
    of reading. ``open()`` and ``close()`` may take and release what the class needs.
    """

    @abstractmethod
    def process(self, event: Any) -> Iterable[tuple[Key, Partial]]:
        """Return keys (a tuple where they have several columns), each with a partial result."""

    @abstractmethod
    def identity(self) -> Partial:
        """Return the result of no events; annotate it with the type of partial results."""

    @abstractmethod
    def combine(self, first: Partial, second: Partial) -> Partial:
        """Return two partial results as one; it may change and return ``first``."""

    def result(self, total: Partial) -> Any:
        """Return what is shown of a total: itself, unless a class says otherwise.

        Annotate it with the type of the column where it is not that of partial results.
        """
        return total


CONTRACTS = (StatelessProcessor, StatefulProcessor, MonoidProcessor)


def class_of(factory: Any) -> type | None:
    """Return the class that a factory makes instances of: itself, or of ``functools.partial``."""
    made = getattr(factory, "func", factory)
    return made if isinstance(made, type) else None


def contract_of(factory: Any) -> type | None:
    """Return the base class of ``CONTRACTS`` that a class given to ``process`` has, if any."""
    made = class_of(factory)
    return next((one for one in CONTRACTS if made is not None and issubclass(made, one)), None)


def words_of(factory: Any) -> str:
    """Return what ``explain`` says before the name of a class given to ``process``."""
    words: dict[type | None, str] = {
        StatelessProcessor: "stateless process with",
        StatefulProcessor: "state of each key by",
    }
    return words.get(contract_of(factory), "process with")


def given_mistakes(factory: Any) -> list[str]:
    """Say what a class or factory given to ``process`` lacks, one sentence each."""
    contract = contract_of(factory)
    if contract is None:
        return process_mistakes(factory)
    if contract is MonoidProcessor:
        return [f"class {name_of(class_of(factory))} is a MonoidProcessor: give it to monoid(...)"]
    return contract_mistakes(factory, contract)


def contract_mistakes(factory: Any, contract: type) -> list[str]:
    """Say what a class of a contract lacks, one sentence each."""
    made = class_of(factory)
    assert made is not None
    missing = sorted(getattr(made, "__abstractmethods__", ()))
    if missing:
        return [f"class {made.__name__} lacks {', '.join(missing)}, which its contract asks for"]
    wrong = call_mistake(factory, ())
    if wrong is not None:
        return [f"class {made.__name__} {wrong}; wrap it: functools.partial({made.__name__}, ...)"]
    arguments: dict[str, tuple[str, ...]] = {"open": (), "close": (), "process": ("event",)}
    if contract is StatefulProcessor:
        arguments |= {"process": ("event", "state"), "on_timer": ("timer", "state"), "begin": ()}
    elif contract is MonoidProcessor:
        arguments |= {"identity": (), "combine": ("first", "second"), "result": ("total",)}
    mistakes = []
    for method, takes in arguments.items():
        function = getattr(made, method, None)
        mistake = None if function is None else call_mistake(function, ("self", *takes))
        if mistake is not None:
            mistakes.append(f"method {made.__name__}.{method} {mistake}")
    if inspect.isgeneratorfunction(made.process) and contract is StatefulProcessor:  # type: ignore[attr-defined]
        mistakes.append(
            f"method {made.__name__}.process is a generator; return (outputs, state): a new state "
            "cannot be yielded"
        )
    return mistakes


def returned_type(factory: Any, method: str, names: Mapping[str, Any]) -> Any:
    """Return what a method's return annotation says; ``None`` where it has none.

    Args:
        factory: the class, or ``functools.partial`` of it.
        method: its name.
        names: local names at the user's line, for annotations kept as text.

    Raises:
        InvalidInputError: the annotation cannot be resolved.
    """
    made = class_of(factory)
    function = inspect.unwrap(getattr(made, method))
    raw = getattr(function, "__annotations__", {}).get("return")
    if raw is None:
        return None
    try:
        found = typing.get_type_hints(function, localns=dict(names), include_extras=True)["return"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInputError(
            f"annotation {raw!r} of {name_of(function)} cannot be resolved: {error}; import it "
            "where the job runs, not for type checkers only"
        ) from error
    return None if isinstance(found, TypeVar) else found


def state_type(factory: Any, method: str, names: Mapping[str, Any]) -> Any:
    """Return the type of states, which ``begin`` or ``identity`` is annotated with.

    Raises:
        InvalidInputError: it has no annotation, or one that is not known.
    """
    found = returned_type(factory, method, names)
    if found is None:
        made = class_of(factory)
        assert made is not None
        raise InvalidInputError(
            f"method {made.__name__}.{method} does not say what it returns; annotate it, such as "
            f"def {method}(self) -> int: states are read back as that type"
        )
    return found
