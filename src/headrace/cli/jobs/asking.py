"""What commands ask of the driver of a job, and how they go by its files where none answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.control.client import Client
    from headrace.control.description import Description

AT_ONCE = 16
"""So many drivers are asked at the same time."""

_T = TypeVar("_T")


def driver_api(job: str, home: Path | None, timeout_s: float) -> Client:
    """Return the API of the driver of a job, for what only a driver can do.

    Raises:
        InvalidInputError: there is none, or it cannot be asked from this host.
    """
    from headrace.cli.options import settings_of
    from headrace.control.client import client_of

    return client_of(settings_of(home), job, timeout_s)


def describe(settings: Settings, job: str, bus: Bus, clock: Clock) -> Description:
    """Return what the driver of a job tells of it, or else its files.

    Raises:
        InvalidInputError: there is no such job.
    """
    (found,) = describe_all(settings, [job], bus, clock)
    return found


def describe_all(
    settings: Settings, jobs: Sequence[str], bus: Bus, clock: Clock
) -> list[Description]:
    """Return what is told of several jobs; drivers that do not answer are waited for together.

    Raises:
        InvalidInputError: there is no such job.
    """
    from headrace.control.description import Description, described
    from headrace.coordinator.inspection.job_list import view_job

    answers = _asked(settings, jobs, "/v1/description", Description)
    return [
        answer or described(view_job(settings, job, bus, clock))
        for job, answer in zip(jobs, answers, strict=True)
    ]


def _asked(settings: Settings, jobs: Sequence[str], path: str, kind: type[_T]) -> list[_T | None]:
    from headrace.control.client import asked

    if len(jobs) < 2:
        return [asked(settings, job, path, kind) for job in jobs]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(AT_ONCE, len(jobs))) as pool:
        return list(pool.map(lambda job: asked(settings, job, path, kind), jobs))
