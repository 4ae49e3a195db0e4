"""``Graph.process`` of several streams as data, and what is wrong with its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.graph.arguments import attempt, checked_uses
from headrace.graph.message_classes import taken_class
from headrace.graph.operators import Operator, Process
from headrace.graph.processors import class_of, contract_of
from headrace.graph.signatures import call_mistake, name_of, process_mistakes, runs_later


@dataclass(frozen=True)
class Source:
    """One of the streams: what its class knows it by, and what its messages are.

    ``uses`` and ``takes`` are as of an operator with a function. The rules of planning set
    ``keys``, the columns that it is partitioned by.
    """

    name: str
    uses: tuple[str, ...] | None = None
    takes: Any = field(default=None, compare=False)
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessSeveral(Process):
    """``process`` of several streams of one key: ``sources`` has as many as ``inputs``."""

    sources: tuple[Source, ...] = ()


def method_of(name: str) -> str:
    """Return the method that takes the messages of one stream alone."""
    return f"process_{name}"


def several_mistakes(factory: Any, names: Sequence[str]) -> list[str]:
    """Say what a class lacks that is given several streams, one sentence each."""
    made = class_of(factory)
    if contract_of(factory) is not None:
        return [
            f"class {name_of(made)} has the contract of one stream; give several to a plain class "
            "with a method for each, such as process_orders(self, order, context)"
        ]
    if not isinstance(factory, type):
        return process_mistakes(factory)
    has_all = callable(getattr(factory, "process", None))
    mistakes = [text for text in process_mistakes(factory) if has_all or "no method" not in text]
    for name in names:
        method = getattr(factory, method_of(name), None)
        if not callable(method):
            if not has_all:
                mistakes.append(
                    f"class {factory.__name__} has no method {method_of(name)}(self, message, "
                    "context), nor one process(self, message, context) for all streams without"
                )
            continue
        wrong = call_mistake(method, ("self", "message", "context"))
        if wrong is not None:
            mistakes.append(f"method {factory.__name__}.{method_of(name)} {wrong}")
        if runs_later(method):
            mistakes.append(
                f"method {factory.__name__}.{method_of(name)} is a generator or async, so calling "
                "it runs nothing: make it a plain method and send with context.emit"
            )
    strays = [
        method
        for method in dir(factory)
        if method.startswith(method_of("")) and method.removeprefix(method_of("")) not in names
    ]
    if strays:
        mistakes.append(
            f"class {factory.__name__} has methods {strays} for streams that it is not given; "
            f"found {list(names)}"
        )
    return mistakes


def checked_sources(
    wrong: list[str],
    factory: Any,
    names: Sequence[str],
    uses: Mapping[str, Sequence[str]] | None,
    local: Mapping[str, Any],
) -> tuple[Source, ...]:
    """Return what each stream's messages are.

    Args:
        wrong: takes the mistakes.
        factory: of the class.
        names: of the streams.
        uses: the columns that it reads, by stream.
        local: names at the user's line.
    """
    given: Any = {} if uses is None else uses
    if not isinstance(given, Mapping):
        wrong.append("uses= is a dict from stream to the columns of it that are read")
        given = {}
    unknown = [name for name in given if name not in names]
    if unknown:
        wrong.append(f"uses= names streams {unknown} that are not given; found {list(names)}")
    sources = []
    for name in names:
        columns = checked_uses(wrong, given.get(name))
        sources.append(Source(name, columns, _takes(wrong, factory, name, local)))
    return tuple(sources)


def _takes(wrong: list[str], factory: Any, name: str, local: Mapping[str, Any]) -> Any:
    made = class_of(factory)
    if made is None:
        return None
    own = method_of(name) if hasattr(made, method_of(name)) else "process"
    return attempt(wrong, lambda: taken_class(factory, local, own), None)


def reading(operator: Operator, upstream: str) -> Operator:
    """Return an operator as one that has nothing but one of its inputs, where these differ."""
    if not isinstance(operator, ProcessSeveral):
        return operator
    uses = operator.sources[operator.inputs.index(upstream)].uses
    return Process(operator.name, (upstream,), operator.site, uses=uses, stores=operator.stores)
