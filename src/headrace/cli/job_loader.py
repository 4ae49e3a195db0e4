"""Loads the job that ``MODULE:JOB`` names, and says what is near when there is none."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from headrace import extras, plugins
from headrace.errors import HeadraceError, InvalidInputError

if TYPE_CHECKING:
    from headrace.graph.builder import Job


def load_job(target: str) -> Job:
    """Import a module and return one of its jobs.

    The working directory can be imported from; so can the folder of a file, or of the
    package that holds it.

    Args:
        target: ``MODULE:JOB``; the module by name or by the path of its file, the job by its
            variable or its name, left out when there is only one. Or a file of another kind that a
            plug-in knows, such as ``app.sql``.

    Raises:
        InvalidInputError: no such module or job, or the module fails; with what is near.
    """
    # Python hides such warnings outside of a program's own file, which a job never is.
    warnings.filterwarnings("default", ".* for (one more|a) release", DeprecationWarning)
    place, _, name = target.partition(":")
    if not place:
        raise InvalidInputError(
            f"{target!r} names no module; expected MODULE:JOB, such as jobs/radar.py:delay_radar"
        )
    ending = Path(place).suffix[1:]
    if ending in plugins.names(plugins.JOBS):
        job: Job = plugins.load(plugins.JOBS, ending)(Path(place))
        if name not in ("", job.name):
            raise InvalidInputError(f"{place} is job {job.name!r}, not {name!r}")
        return job
    is_file = ending == "py" or "/" in place
    module = _from_file(Path(place)) if is_file else _from_name(place)
    return _choose(module, place, name)


def load_module(name: str, folder: Path) -> ModuleType:
    """Import a module that the user names: from a folder, the working directory, or installed.

    Raises:
        InvalidInputError: there is none, or it fails; with what is near.
    """
    _search(folder.resolve())
    return _from_name(name)


def _choose(module: ModuleType, place: str, name: str) -> Job:
    from headrace.graph.builder import Job

    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if not jobs:
        raise InvalidInputError(
            f'{place} defines no job; write @hr.job("name") above the function that builds it'
        )
    if not name:
        if len({id(job) for job in jobs.values()}) > 1:
            raise InvalidInputError(
                f"{place} defines {len(jobs)} jobs; say which: {_listed(place, jobs)}"
            )
        return next(iter(jobs.values()))
    for key, job in jobs.items():
        if name in (key, job.name):
            return job
    other = getattr(module, name, None)
    if other is not None:
        raise InvalidInputError(
            f"{name!r} in {place} is a {type(other).__name__}, not a job; "
            f"expected {_listed(place, jobs)}"
        )
    near = difflib.get_close_matches(name, [*jobs, *(job.name for job in jobs.values())], 1)
    hint = f"did you mean {place}:{near[0]}?" if near else f"expected {_listed(place, jobs)}"
    raise InvalidInputError(f"{place} has no job {name!r}; {hint}")


def _listed(place: str, jobs: Iterable[str]) -> str:
    return " or ".join(f"{place}:{key}" for key in jobs)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        there = [str(p.relative_to(path.parent)) for p in _python_files(path.parent)]
        near = difflib.get_close_matches(path.name, there, 1, 0.5)
        hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
        raise InvalidInputError(f"no file {path}; {hint}")
    path = path.resolve()
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").exists():
        name, folder = f"{folder.name}.{name}", folder.parent
    _search(folder)
    module = _import(name, str(path))
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise InvalidInputError(
            f"{path.name} cannot be imported as {name!r}: that name belongs to "
            f"{found or 'a built-in module'}; rename the file"
        )
    return module


def _from_name(name: str) -> ModuleType:
    _search(Path.cwd())
    return _import(name, name)


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise InvalidInputError(f"no module {name!r}; {_near_module(name)}") from None
        raise (
            extras.missing(error, f"{shown}{_line(error)}")
            or InvalidInputError(
                f"{shown} cannot be loaded: it imports {missing!r}, which is not installed"
                f"{_line(error)}"
            )
        ) from error
    except SyntaxError as error:
        raise InvalidInputError(
            f"{shown} is not Python: {error.msg} ({error.filename}:{error.lineno})"
        ) from error
    except HeadraceError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{shown} failed while it was loaded: {type(error).__name__}: {error}{_line(error)}"
        ) from error


def _line(error: BaseException) -> str:
    """The innermost line of the failure that is not of the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith("<") and frame.filename != __file__:
            if Path(frame.filename).name == "__init__.py" and "importlib" in frame.filename:
                continue
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def _near_module(name: str) -> str:
    here = [path.stem for path in _python_files(Path.cwd()) if path.stem != "__init__"]
    packages = [path.parent.name for path in Path.cwd().glob("*/__init__.py")]
    near = difflib.get_close_matches(name, [*here, *packages], 1, 0.5)
    if near:
        return f"did you mean {near[0]}?"
    found = ", ".join(sorted({*here, *packages})[:10]) or "no Python files"
    return f"the working directory has {found}; name a module, or the path of a .py file"


def _python_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.py")) if folder.is_dir() else []
