"""Keeps Arrow from loading pandas, which takes each process of a job half a second of a core.

Arrow loads pandas wherever it is installed, when it first converts a column to or from NumPy: to
know its values if it ever sees some. Python asks who finds pandas: where it is Arrow on behalf of
this package, pandas is not found. Whatever else loads it, such as a function of a job, gets it,
and Arrow knows its values from then on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from opcode import opmap
from types import FrameType, ModuleType

_IMPORT = opmap["IMPORT_NAME"]
_MACHINERY = "<frozen importlib._bootstrap"
_OWN = os.path.dirname(__file__) + os.sep
_BETWEEN = ("pyarrow", "polars")
"""Packages whose functions convert columns for those who call them."""


class _Pandas:
    """Finds pandas for all but Arrow's conversions; the first of Python's finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas":
            return None
        if _is_arrow_for_us(sys._getframe(1)):  # noqa: SLF001 - documented, of CPython
            raise ModuleNotFoundError("Arrow needs no pandas here", name=name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loaded = _then_known(spec.loader.exec_module)
            setattr(spec.loader, "exec_module", loaded)  # noqa: B010 - of this one loader
        return spec


def _is_arrow_for_us(frame: FrameType | None) -> bool:
    """Say whether what wants a module is a conversion that this package called, and no import."""
    while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.f_back
    if frame is None or frame.f_code.co_code[frame.f_lasti] == _IMPORT:
        return False
    while frame is not None and _package(frame) in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OWN)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _then_known(load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Return what loads pandas, and has Arrow look for it again, which it does once at most."""

    def loaded(module: ModuleType) -> None:
        load(module)
        arrow = sys.modules.get("pyarrow.lib")
        if arrow is not None:
            _ = arrow._pandas_api.pd  # noqa: SLF001 - Arrow asks itself so, and has no other way

    return loaded


def keep_pandas_out() -> None:
    """Have this process load pandas only when something other than Arrow asks for it.

    For processes that belong to Headrace: commands, and those that run slots. A second call does
    nothing.
    """
    if "pandas" not in sys.modules and not any(isinstance(one, _Pandas) for one in sys.meta_path):
        sys.meta_path.insert(0, _Pandas())
