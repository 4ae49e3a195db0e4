"""Errors in a slot, on their way to the driver."""

from __future__ import annotations

import traceback

from headrace.errors import HeadraceError
from headrace.files import disk_error
from headrace.task.orders import SlotFailure


def describe_failure(error: Exception) -> SlotFailure:
    """Return an error as data."""
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, OSError):  # those of users' code were wrapped where they occurred
        error = disk_error(error)
    if isinstance(error, HeadraceError):
        fields = {k: v if isinstance(v, int) else str(v) for k, v in error.fields.items()}
        operator = str(error.fields.get("operator", ""))
        return SlotFailure(type(error).__name__, error.message, fields, trace, operator)
    return SlotFailure(type(error).__name__, str(error), {}, trace)
