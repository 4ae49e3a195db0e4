"""Finds the user's line: where an operator was built, or where the user's code failed."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.graph.operators import Site

_OWN = str(Path(__file__).parent)
_ENGINE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def user_frame() -> FrameType | None:
    """Return the innermost frame that is not of the graph API."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def user_site() -> Site:
    """Return the user's file and line that called the graph API."""
    frame = user_frame()
    return Site() if frame is None else _site(frame.f_code.co_filename, frame.f_lineno)


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
    path = Path(file)
    here = Path.cwd()
    return Site(str(path.relative_to(here)) if path.is_relative_to(here) else file, line)
