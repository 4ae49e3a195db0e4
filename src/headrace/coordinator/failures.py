"""Turns what a slot answered when it failed into the error that it was."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from headrace.errors import HeadraceError, InternalError, UnavailableError
from headrace.task.orders import SlotReport


def slot_error(report: SlotReport) -> HeadraceError:
    """Return a failed slot's error as an error of its kind, the worker's traceback as its note.

    An error of the system, such as a full disk, is ``UnavailableError``; any other that is
    not of Headrace is a fault of Headrace, for errors of the user's functions have a kind.
    """
    failure, slot = report.error, report.slot
    if failure is None:
        raise InternalError(f"slot {slot} did not fail", slot=slot)
    known = {kind.__name__: kind for kind in _kinds(HeadraceError)}
    error: HeadraceError
    if failure.kind in known:
        kind = known[failure.kind]
        error = kind.__new__(kind)
        HeadraceError.__init__(error, failure.message, **failure.fields)
    else:
        outside = getattr(builtins, failure.kind, None)
        is_system = isinstance(outside, type) and issubclass(outside, OSError)
        made = UnavailableError if is_system else InternalError
        error = made(f"slot {slot} failed: {failure.kind}: {failure.message}", slot=slot)
    error.add_note(f"in the worker:\n{failure.trace}")
    return error


def _kinds(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)
