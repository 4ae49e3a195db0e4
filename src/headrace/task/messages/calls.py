"""Calls of the user's functions: what their errors become, and how long they may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import polars as pl

from headrace.errors import CallTimeoutError, HeadraceError, InvalidInputError
from headrace.graph.operators import Site
from headrace.graph.sites import failure_site
from headrace.plan.expressions import one_line

_TICKS = 4


class UserFunctionError(InvalidInputError):
    """A user's function raised. Fix it; nothing of the epoch became visible."""

    code = "HR102"
    move = 'mend the function, or set such records aside with on_error="dead_letter"'

    @classmethod
    def of(
        cls, operator: str, error: Exception, met: object = None, what: str = "message"
    ) -> UserFunctionError:
        """Describe an error of the user's with the operator and the message it met."""
        on = "" if met is None else f" on {what} {told(met, repr):.300}"
        site = failure_site(error, Site())
        at = f" at {site}" if site.file else ""
        said = one_line(error) if isinstance(error, pl.exceptions.PolarsError) else told(error)
        if isinstance(error, AttributeError) and said.startswith("immutable type"):
            said += "; a message cannot be changed: return a new one"
        raised = type(error).__name__
        text = f"operator {operator!r} raised {raised}: {said}{at}{on}"
        return cls(text, operator=operator, raised=raised)


def told(value: object, tell: Callable[[object], str] = str) -> str:
    """Return the user's words for a value; where these cannot be had, what it is."""
    try:
        return tell(value)
    except Exception as error:  # noqa: BLE001 - the error that is told is another one
        return f"<{type(value).__name__} that raises {type(error).__name__} when shown>"


class Overdue(BaseException):  # not an Exception: the user's own handlers must not end it
    """Raised inside a call that takes too long."""


def overdue_error(
    operator: str, timeout_s: float | None, error: Overdue, met: object
) -> CallTimeoutError:
    """Return the error of a call that took too long, with the user's line where it was."""
    site = failure_site(error, Site())
    at = f"; it was at {site}" if site.file else ""
    shown = told(met, repr)
    return CallTimeoutError(
        f"operator {operator!r} had not returned after {timeout_s:g} s from {shown:.300}{at}: "
        "let it end, give what it waits for a timeout, or raise job.call_timeout_s",
        operator=operator,
    )


@contextmanager
def time_limit(timeout_s: float | None, progress: Callable[[], object]) -> Iterator[None]:
    """Raise ``Overdue`` in the main thread once ``progress`` has not changed for so long.

    A signal is looked at between two steps of Python, and ends what sleeps or waits; native code
    that does not return is not ended. In another thread than the main one there is no limit.

    Args:
        timeout_s: the limit; ``None``: none.
        progress: changes from call to call; asked four times within the limit.
    """
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, ticks = progress(), 0

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal seen, ticks
        now = progress()
        ticks = ticks + 1 if now == seen else 0
        seen = now
        if ticks >= _TICKS:
            raise Overdue

    handler = signal.signal(signal.SIGALRM, tick)
    before = signal.setitimer(signal.ITIMER_REAL, timeout_s / _TICKS, timeout_s / _TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


def name_operator(error: HeadraceError, operator: str) -> None:
    """Give an error that came up below a user's function the operator, if it has none."""
    error.fields.setdefault("operator", operator)


def guarded(operator: str, call: Callable[[], Any]) -> Any:
    """Run a user's function or expression; its errors name the operator."""
    try:
        return call()
    except HeadraceError as error:
        name_operator(error, operator)
        raise
    except Exception as error:
        raise UserFunctionError.of(operator, error) from error
