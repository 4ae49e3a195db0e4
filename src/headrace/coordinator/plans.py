"""A job's plan on its way to the workers: one file for each version, named by its digest.

The plan holds the user's functions, so it is the one thing that is pickled. It comes from
whoever deploys the job, and a worker loads only bytes that match the digest it was told.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from headrace.coordinator.shipped_classes import dumps
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.plan.stages import JobPlan


def save_plan(plan: JobPlan, root: Path, files: Files, unique: str, module: str = "") -> str:
    """Write a plan below ``root`` and return its digest.

    Args:
        plan: of the job.
        root: of the job's storage.
        files: the file system.
        unique: a name part that no other writer uses.
        module: the user's module, shipped by value, so that no executor has to import it.

    Raises:
        InvalidInputError: something in the graph cannot travel, such as an open file.
    """
    loaded = sys.modules.get(module)
    by_value = loaded is not None and not module.startswith("headrace.")
    if by_value:
        cloudpickle.register_pickle_by_value(loaded)
    try:
        data = dumps(plan)
    except Exception as error:
        raise InvalidInputError(
            f"job {plan.graph.name!r} cannot be sent to the workers: {error}; functions must not "
            "hold open files, locks or connections: open them in a processor's open()"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(loaded)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    folder = root / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    files.publish(folder / digest, data, unique)
    return digest


def load_plan(root: Path, digest: str, files: Files) -> JobPlan:
    """Read the plan of a digest.

    Raises:
        CorruptDataError: the file does not match the digest; nothing of it was loaded.
        InvalidInputError: a module that the user's functions need is not there.
    """
    data = files.read(root / "plans" / digest)
    if hashlib.blake2b(data, digest_size=16).hexdigest() != digest:
        raise CorruptDataError(f"plan {digest} does not match its digest", file=digest)
    try:
        plan = cloudpickle.loads(data)
    except ImportError as error:
        raise InvalidInputError(
            f"the job's code cannot be loaded in a worker: {error}; install the module where the "
            "executors run, or put it beside the job's file in a folder that they reach"
        ) from error
    if not isinstance(plan, JobPlan):
        raise CorruptDataError(f"plan {digest} is a {type(plan).__name__}", file=digest)
    return plan
