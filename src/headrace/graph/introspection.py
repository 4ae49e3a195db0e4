"""What can be known of the user's code before it runs: its line, how it may be called, its types.

Sites: the user's line where an operator was built, or where a function failed. Signatures: whether
a function can be called with so many arguments, and whether a call runs anything. Message classes:
what a function takes its messages as, read from the annotation of its parameter, and whether the
columns that there are fill it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import dis
import enum
import functools
import inspect
import os
import sys
import sysconfig
import traceback
import types
import typing
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.operator_base import Operator, Site, call_style
from headrace.graph.types import arrow_type, is_record
from headrace.records.schema import type_text

P = ParamSpec("P")
R = TypeVar("R")
_OWN = str(Path(__file__).parent)
_ENGINE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def user_frame() -> FrameType | None:
    """Return the innermost frame that is not of the graph API."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


_GIVEN: ContextVar[Site | None] = ContextVar("site", default=None)


@contextmanager
def site_at(site: Site) -> Iterator[None]:
    """Let operators be of a line that is no line of Python, such as a statement of SQL."""
    token = _GIVEN.set(site)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def user_site() -> Site:
    """Return the user's file and line that called the graph API."""
    if (given := _GIVEN.get()) is not None:
        return given
    frame = user_frame()
    return Site() if frame is None else _site(frame.f_code.co_filename, frame.f_lineno)


def renamed_arguments(**renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a public function accept the former names of some of its arguments, with a warning.

    Args:
        renamed: the argument by its former name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given: dict[str, Any] = kwargs
            for old, new in renamed.items():
                if old not in given:
                    continue
                if new in given:
                    raise TypeError(f"{name}: {old}= is {new}= now; give it once")
                frame = user_frame()
                warnings.warn_explicit(
                    f"{name}: {old}= is {new}= now; the old name works for one more release",
                    DeprecationWarning,
                    "" if frame is None else frame.f_code.co_filename,
                    0 if frame is None else frame.f_lineno,
                )
                given[new] = given.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def user_names() -> Mapping[str, Any]:
    """Return the local names at the user's line and around it, to resolve annotations."""
    found: list[dict[str, Any]] = []
    frame = user_frame()
    while frame is not None:
        is_own = not frame.f_code.co_filename.startswith((_ENGINE, *_LIBRARIES, "<"))
        if is_own or not found:
            found.append(frame.f_locals)
        frame = frame.f_back
    return ChainMap(*found)


def failure_site(error: BaseException, otherwise: Site) -> Site:
    """Return the innermost line of the user's own in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((_ENGINE, *_LIBRARIES, "<")):
            return _site(frame.filename, frame.lineno or 0)
    return otherwise


def function_site(function: object) -> Site:
    """Return where a function or class is defined; nothing when unknown."""
    code = getattr(function, "__code__", None)
    return Site() if code is None else _site(code.co_filename, code.co_firstlineno)


def _site(file: str, line: int) -> Site:
    return Site(_shown(file, os.getcwd()), line)


@functools.lru_cache(256)
def _shown(file: str, here: str) -> str:
    path = Path(file)
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


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
    unbound = inspect.unwrap(function)
    target = unbound if inspect.isroutine(unbound) else getattr(unbound, "__call__", unbound)  # noqa: B004
    if inspect.iscoroutinefunction(target):
        return not may_wait
    return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)


def name_of(function: Any) -> str:
    """Return a readable name of a function, class or callable object."""
    name = getattr(function, "__qualname__", None)
    text = name if isinstance(name, str) else type(function).__qualname__
    return text.rpartition("<locals>.")[2]


_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ANYTHING = (Any, object)
_LISTS = (list, set, frozenset, tuple, collections.abc.Sequence, collections.abc.Collection)


class RecordField(NamedTuple):
    """A field of a record class; one that is not required has a default."""

    name: str
    hint: Any
    is_required: bool


def message_class(function: Any, names: Mapping[str, Any], method: str = "process") -> Any:
    """Return what the first parameter of a function is annotated with; ``None``: nothing special.

    Args:
        function: the user's; of a class, one of its methods is read.
        names: local names at the user's line, to resolve annotations kept as text.
        method: the name of that method.

    Returns:
        ``dict``, or a record class.

    Raises:
        InvalidInputError: the annotation cannot be resolved, or is no kind of record.
    """
    target, skipped = _target(function, method)
    code = getattr(target, "__code__", None)
    if code is None or code.co_argcount <= skipped:
        return None
    parameter = code.co_varnames[skipped]
    raw = getattr(target, "__annotations__", {}).get(parameter)
    if raw is None:
        return None
    try:
        alone = types.SimpleNamespace(__annotations__={parameter: raw})
        known = _globals(target)
        hint = typing.get_type_hints(alone, known, dict(names), include_extras=True)[parameter]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise InvalidInputError(
            f"annotation {raw!r} of {parameter!r} in {name_of(function)} cannot be resolved: "
            f"{error}; import it where the job runs, not for type checkers only, or write Any"
        ) from error
    return _checked(hint, parameter, function)


def _globals(function: Any) -> dict[str, Any]:
    """The names of a function's module: what was shipped by value has only those it uses."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = {} if module is None else vars(module)
    return {**names, **getattr(function, "__globals__", {})}


def _target(function: Any, method: str) -> tuple[Any, int]:
    """The function whose annotations count, and how many of its parameters come before."""
    if isinstance(function, functools.partial):
        if isinstance(function.func, type):
            return _target(function.func, method)
        return inspect.unwrap(function.func), len(function.args)
    if isinstance(function, type):
        own = getattr(function, method, None)
        return (None, 0) if own is None else (inspect.unwrap(own), 1)
    if isinstance(function, types.MethodType):
        return inspect.unwrap(function.__func__), 1
    if hasattr(function, "__code__"):
        return inspect.unwrap(function), 0
    return getattr(type(function), "__call__", None), 1  # noqa: B004 - it is read, not called


def _checked(hint: Any, parameter: str, function: Any) -> Any:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in _DICTS or hint in _DICTS:
        return dict
    if is_record(hint):
        return hint
    is_loose = hint in _ANYTHING or isinstance(hint, typing.TypeVar)
    if is_loose or getattr(hint, "_is_protocol", False):
        return None
    found = hint.__name__ if isinstance(hint, type) else repr(hint)
    raise InvalidInputError(
        f"function {name_of(function)} takes {parameter}: {found}, but gets messages; annotate it "
        "with a dataclass, msgspec struct, TypedDict, NamedTuple, dict or Any"
    )


def record_fields(kind: Any) -> list[RecordField]:
    """Return the fields of a record class that its constructor takes, in order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        return [RecordField(name, hint, _is_required(kind, name)) for name, hint in hints.items()]
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [RecordField(f.name, hints[f.name], f.required) for f in fields]
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [
            RecordField(f.name, hints[f.name], f.default is missing is f.default_factory)
            for f in dataclasses.fields(kind)
            if f.init
        ]
    defaults = kind._field_defaults
    return [RecordField(name, hints[name], name not in defaults) for name in kind._fields]


def _is_required(kind: Any, name: str) -> bool:
    """Whether a typed dict has to have a key: annotations that are text hide it from Python."""
    origin = typing.get_origin(typing.get_type_hints(kind, include_extras=True)[name])
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return name in kind.__required_keys__


def class_mistakes(kind: Any, schema: pa.Schema) -> list[str]:
    """Say why messages of some columns cannot be made as a record class; empty when they can."""
    try:
        fields = record_fields(kind)
    except (NameError, TypeError) as error:
        return [f"{kind.__name__}: a field's type is unknown: {error}"]
    wrong = []
    for name, hint, is_required in fields:
        at = schema.get_field_index(name)
        if at >= 0:
            found = _unlike(hint, schema.field(at).type)
            wrong += [f"takes {kind.__name__}, whose field {name!r} {found}"] if found else []
        elif is_required:
            wrong.append(
                f"takes {kind.__name__}, whose field {name!r} no column fills; columns are "
                f"{schema.names}: give it a default, or make the column before"
            )
    return wrong


def without_optional(hint: Any) -> tuple[Any, bool]:
    """Return a hint without its optional part, and whether it had one."""
    is_optional = hint in _ANYTHING or hint is type(None)
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Annotated, typing.Required, typing.NotRequired):
            hint = arguments[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif origin in (typing.Union, types.UnionType) and type(None) in arguments:
            is_optional = True
            rest = [one for one in arguments if one is not type(None)]
            if len(rest) != 1:
                return hint, True
            hint = rest[0]
        else:
            if origin is typing.Literal and None in arguments:
                is_optional = True
            return hint, is_optional


def _unlike(hint: Any, column: pa.DataType) -> str | None:
    """Say how a column's type does not fit a field's; ``None`` when it does, or is not known."""
    kind, _ = without_optional(hint)
    if kind in _ANYTHING:
        return None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if (kind in _LISTS or origin in _LISTS) and pa.types.is_list(column):
        inner = [one for one in arguments if one is not Ellipsis]
        found = _unlike(inner[0], column.value_type) if len(inner) == 1 else None
        return None if found is None else f"has items, and an item {found}"
    if is_record(kind) and pa.types.is_struct(column):
        if issubclass(kind, tuple):
            return f"is {kind.__name__}, a named tuple within a message: use a dataclass or struct"
        nested = class_mistakes(kind, pa.schema(list(column)))
        return nested[0] if nested else None
    if kind is Decimal and pa.types.is_decimal(column):
        return None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = {type(member.value) for member in kind}
        kind = values.pop() if len(values) == 1 else Any
    try:
        expected = arrow_type(kind)
    except InvalidInputError:
        return None
    if _holds(expected, column):
        return None
    shown = getattr(kind, "__name__", None) or repr(kind)
    return f"is {shown}, but its column is {type_text(column)}"


def _holds(expected: pa.DataType, column: pa.DataType) -> bool:
    types_ = pa.types
    if types_.is_floating(expected):
        return bool(types_.is_floating(column) or types_.is_integer(column))
    for test in (types_.is_integer, types_.is_timestamp, types_.is_duration, types_.is_decimal):
        if test(expected):
            return bool(test(column))
    return bool(expected.equals(column))


def with_message_class(wrong: list[str], operator: Operator) -> Operator:
    """Return an operator with what its function takes messages as; notes a mistake of that.

    Of factories, only a class shows it, or ``functools.partial`` of one.
    """
    function = operator.message_function
    if not callable(function):
        return operator
    try:
        return dataclasses.replace(operator, takes=message_class(function, user_names()))
    except InvalidInputError as error:
        wrong.append(error.message)
        return operator
