"""What can be told of a user's function before it runs: how it may be called, what it is."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from typing import Any

from headrace.graph.calls import call_style


def call_mistake(
    function: Callable[..., Any], arguments: tuple[str, ...], *, may_wait: bool = False
) -> str | None:
    """Say why a function cannot be called with these positional arguments, or ``None``.

    Functions without a signature, as some builtins are, pass. One that ``may_wait`` may be a
    coroutine function.
    """
    unbound = inspect.unwrap(function)
    target = unbound if inspect.isroutine(unbound) else getattr(unbound, "__call__", unbound)  # noqa: B004
    is_async = inspect.iscoroutinefunction(target) and not may_wait
    if is_async or inspect.isasyncgenfunction(target):
        return "is async; give a plain function"
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        bare = [
            p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()
        ]
        takes = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
        return f"takes {takes}, but is called with ({', '.join(arguments)}): {error}"
    return None


def process_mistakes(factory: Any) -> list[str]:
    """Say what a class or factory given to ``process`` lacks, one sentence each."""
    if not callable(factory):
        return [f"process takes a class or a factory; found {factory!r}"]
    if not isinstance(factory, type):
        wrong = call_mistake(factory, ())
        return [] if wrong is None else [f"factory {name_of(factory)} {wrong}"]
    mistakes = []
    wrong = call_mistake(factory, ())
    if wrong is not None:
        mistakes.append(
            f"class {factory.__name__} {wrong}; wrap it: process(lambda: {factory.__name__}(...))"
        )
    style = call_style(factory)
    if style is None and not callable(getattr(factory, "process", None)):
        mistakes.append(f"class {factory.__name__} has no method process(self, message, context)")
    methods: dict[str, tuple[str, ...]] = {
        "process": ("message", "context"),
        "process_async": ("message", "context", "callback"),
        "open": ("context",),
        "on_timer": ("timer", "context"),
        "close": (),
    }
    for method, arguments in methods.items():
        function = inspect.getattr_static(factory, method, None)
        if not callable(getattr(factory, method, None)):
            continue
        is_plain = not isinstance(function, staticmethod | classmethod)
        may_wait = style is not None and method in ("process", "open", "close")
        own = ("self",) if is_plain else ()
        wrong = call_mistake(getattr(factory, method), (*own, *arguments), may_wait=may_wait)
        if wrong is not None:
            mistakes.append(f"method {factory.__name__}.{method} {wrong}")
        if runs_later(getattr(factory, method), may_wait=may_wait):
            mistakes.append(
                f"method {factory.__name__}.{method} is a generator or async, so calling it runs "
                "nothing: make it a plain method and send with context.emit"
            )
    return mistakes


def returns_nothing(function: Any) -> bool:
    """Say whether a function can only return None, such as one that forgets its ``return``."""
    code = getattr(function, "__code__", None)
    if code is None or runs_later(function):
        return False
    found, before = [], None
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_CONST":
            found.append(step.argval)
        elif step.opname == "RETURN_VALUE":
            is_none = before is not None and before.opname == "LOAD_CONST"
            found.append(before.argval if is_none and before is not None else ...)
        before = step
    return bool(found) and all(value is None for value in found)


def runs_later(function: Any, *, may_wait: bool = False) -> bool:
    """Say whether a call of a function runs nothing yet, unless it may wait for itself."""
    if inspect.iscoroutinefunction(function):
        return not may_wait
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def name_of(function: Any) -> str:
    """Return a readable name of a function, class or callable object."""
    name = getattr(function, "__qualname__", None)
    text = name if isinstance(name, str) else type(function).__qualname__
    return text.rpartition("<locals>.")[2]
