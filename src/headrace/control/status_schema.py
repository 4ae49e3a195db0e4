"""Schemas of the status models, and their JSON.

The models say in annotations what their fields are, in the words of pydantic. Nothing evaluates
these before a schema is made, which is here: so a run loads pydantic only once somebody asks for
its status.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from headrace.control import alert_rules, job_status

_Kind = TypeVar("_Kind")

Hidden = Annotated[_Kind, Field(exclude=True)]
"""A field that ``status_json`` leaves out."""

vars(alert_rules).update(Field=Field)
vars(job_status).update(Field=Field, Hidden=Hidden)


@cache
def _adapter() -> TypeAdapter[job_status.JobStatus]:
    return TypeAdapter(job_status.JobStatus)


def status_json(status: job_status.JobStatus) -> dict[str, Any]:
    """Return a status as the API and ``--json`` write it."""
    return dict(_adapter().dump_python(status, mode="json"))
