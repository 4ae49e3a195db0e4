"""Takes plain values of options as they are, so that a short command loads no validators.

Typer builds a validator of pydantic for each option of a command, also for those that are not
given. To load and build them takes a command like ``bus ls`` a quarter of its time. What is wrong
with a value is said in the words of settings, and not in those of a validator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.core


class PlainValues:
    """Stands in for Typer's conversion of one option, until a value needs that.

    Args:
        param: the option or argument, as Typer made it.
        convert: returns Typer's own conversion of it.
    """

    def __init__(self, param: Any, convert: Callable[[Any], Any]) -> None:
        self._param, self._convert = param, convert

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return a value as the command takes it; called by Typer."""
        if not self._is_plain(value):
            return self._converted(value, param, ctx)
        if param.multiple or param.nargs == -1:
            return () if value is None else list(value)
        is_path = self._param.type_descriptor.annotation is Path and value is not None
        return Path(value) if is_path else value

    def _converted(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._convert(self._param).coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            error.message = _message(
                self._param.type_descriptor, value
            ) or error.message.removeprefix(
                "Value error, "  # what pydantic puts before the words of Typer
            )
            raise

    def _is_plain(self, value: Any) -> bool:
        known = self._param.type_descriptor
        kind, arguments = known.annotation, get_args(known.annotation)
        if value is None:
            return True
        if known.parameter_info.parser is not None:
            return False
        if get_origin(kind) is Literal:
            return isinstance(value, str) and value in arguments
        if get_origin(kind) is list:
            return arguments == (str,) and all(isinstance(one, str) for one in value)
        if kind is str:
            return isinstance(value, str)
        if kind is Path:
            return _is_plain_path(value, known.parameter_info)
        return kind in (int, float) and type(value) is kind and value == self._param.default


def _is_plain_path(value: Any, info: Any) -> bool:
    """Say whether a path is one that Typer would neither change nor refuse."""
    if not isinstance(value, str | Path) or info.resolve_path or info.allow_dash:
        return False
    if not os.path.exists(value):
        return not info.exists
    is_right = info.dir_okay if Path(value).is_dir() else info.file_okay
    return is_right and not info.writable and os.access(value, os.R_OK)


def _message(known: Any, value: Any) -> str | None:
    """Return what is wrong with a value of a choice or a number; ``None``: it is neither."""
    if not isinstance(value, str | int | float):
        return None
    if known.choices is not None:
        near = get_close_matches(str(value), known.choices, 1)
        return f"found {value!r}, expected {_one_of(known.choices)}" + (
            f"; did you mean {near[0]}?" if near else ""
        )
    if known.annotation not in _NUMBERS:
        return None
    info = known.parameter_info
    bounds = [
        f"{words} {bound}"
        for words, bound in (("at least", info.min), ("at most", info.max))
        if bound is not None
    ]
    return f"found {value!r}, expected {', '.join([_NUMBERS[known.annotation], *bounds])}"


def _one_of(choices: tuple[str, ...]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


_NUMBERS = {int: "an integer", float: "a number"}


def take_plain_values() -> None:
    """Have all commands of this process take plain values; called once.

    A Typer that converts in another way is left alone.
    """
    options = getattr(typer.core, "_TyperParameter", None)
    convert = getattr(options, "get_runtime_param", None)
    if options is not None and convert is not None:
        options.get_runtime_param = lambda self: PlainValues(self, convert)
