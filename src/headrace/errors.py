"""The error kinds of Headrace: each says what the caller should do next.

HeadraceError
├── InvalidInputError   fix the graph, setting, argument or record and run again (a ValueError)
│   ├── GraphError           every mistake of a graph at once
│   ├── UserFunctionError    a user's function raised
│   ├── PartsError           the parts of a job cannot do that
│   ├── FunctionResultError  what a user's function returned cannot be used
│   ├── CallTimeoutError     a user's function did not return in time
│   ├── MessageTypeError     a record cannot be made as what a function takes
│   └── EventTimeError       a record's event time is null or out of range
├── UnavailableError    a disk, bus, broker or peer does not answer: try again with a deadline
├── NotOwnerError       fenced: another driver or attempt owns the work; stop, never retry
├── CorruptDataError    a checksum, gap or format is wrong: rebuild from changelog or snapshot
├── ClosedError         used after close: fix the program (a RuntimeError)
└── InternalError       a broken invariant, with its details: report it (an AssertionError)

Message text is not contract; the class and ``fields`` are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from headrace.redaction import redacted

_ADVISES = re.compile(r"[;?](?! expected\b| found\b)|: headrace ")
"""Messages name the next move after a semicolon, or by a command."""


class HeadraceError(Exception):
    """Root of all errors raised on purpose.

    Args:
        message: what failed, what was found and expected, and what to do next, in lower case.
        **fields: where it happened, such as ``stream``, ``partition``, ``offset``,
            ``task``, ``epoch``; kept across processes.

    Attributes:
        also: what else can be done, as known where the error was caught.
    """

    code: ClassVar[str] = "HR000"
    move: ClassVar[str] = ""  # what to do; said where the message does not say it better

    def __init__(self, message: str, **fields: Any) -> None:
        self.message = redacted(message)  # it may quote an address or a setting
        super().__init__(self.message)
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.also = ""

    @property
    def advice(self) -> str:
        """What to do, if the message does not contain it, and what else; can be empty."""
        move = "" if _ADVISES.search(self.message) else self.move
        return "; ".join(filter(None, (move, self.also)))

    def __str__(self) -> str:
        """Return the message followed by the fields that it does not already hold."""
        parts = [(f"{name} {value}", f"{name} {value!r}") for name, value in self.fields.items()]
        where = ", ".join(
            part
            for part, quoted in parts
            if part not in self.message and quoted not in self.message
        )
        return f"{self.message} ({where})" if where else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling between a Spark worker and the driver."""
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[HeadraceError], message: str, fields: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    HeadraceError.__init__(error, message, **fields)
    return error


class InvalidInputError(HeadraceError, ValueError):
    """A graph, setting, argument or record that cannot work. Fix it and run again."""

    code = "HR100"
    move = "fix what the message names, and run it again"


class GraphError(InvalidInputError):
    """All mistakes of one graph, each with its operator and the user's line.

    Args:
        job: name of the job.
        problems: one sentence each, in graph order; at least one.
    """

    code = "HR101"
    move = "fix these lines, and check the plan with: headrace explain MODULE:JOB"

    def __init__(self, job: str, problems: Sequence[str]) -> None:
        lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(problems, 1))
        noun = "mistake" if len(problems) == 1 else "mistakes"
        super().__init__(f"job {job!r} has {len(problems)} {noun}:\n{lines}")
        self.job = job
        self.problems = tuple(problems)

    @property
    def advice(self) -> str:
        """What to do about all of them; each can contain more advice."""
        return self.move

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the problems, not from the joined text."""
        return (GraphError, (self.job, self.problems))


class UserFunctionError(InvalidInputError):
    """A user's function raised. Fix it; nothing of the epoch became visible."""

    code = "HR102"
    move = 'fix the function, or set such records aside with on_error="dead_letter"'


class PartsError(InvalidInputError):
    """What cannot be done to a job of several parts, or between what they were and are."""

    code = "HR114"
    move = "change it back, or start over: headrace jobs reset JOB"


class FunctionResultError(InvalidInputError):
    """A user's function returned None, other columns or types, or another number of rows."""

    code = "HR110"
    move = "return what was expected, or set such records aside with on_error="

    def met(self, site: str, record: object) -> FunctionResultError:
        """Return the error with the line of the function, and what it was given."""
        where = ", ".join(([f"at {site}"] if site else []) + [f"of {record!r:.300}"])
        return FunctionResultError(f"{self.message} ({where})", **self.fields)


class CallTimeoutError(InvalidInputError):
    """A user's function had not returned after ``job.call_timeout_s``. Let it end sooner."""

    code = "HR111"
    move = "make it return sooner, or raise job.call_timeout_s"


class MessageTypeError(InvalidInputError):
    """A record holds null or a value that the class which a function takes does not allow."""

    code = "HR113"
    move = "make the class allow it, or set such records aside with on_error="


class EventTimeError(InvalidInputError):
    """A record's event time is null, before the year 1, after 9999, or too far ahead."""

    code = "HR112"
    move = "fix such records where they are made, or set them aside with on_error="


class UnavailableError(HeadraceError):
    """Something outside does not answer. Try again, within a deadline."""

    code = "HR200"
    move = "try again; headrace doctor shows what does not answer"


class NotOwnerError(HeadraceError):
    """Another driver or attempt owns the work. Stop; a retry can never succeed."""

    code = "HR300"
    move = "stop; headrace jobs ls shows who runs the job"

    @classmethod
    def taken_over(
        cls, what: str, own: int = 0, *, newer: int = 0, holder: str = "", **fields: Any
    ) -> NotOwnerError:
        """Return the error of a driver that has a successor, in the words that all have for it.

        Args:
            what: was taken over, such as ``job 'clicks'``.
            own: generation of the driver; 0: not known here.
            newer: generation of its successor; 0: not known here.
            holder: process and host of its successor; empty: not known here.
            **fields: where it happened.
        """
        known = ", ".join(filter(None, (f"generation {newer}" if newer else "", holder)))
        by = f" ({known})" if known else ""
        this = f"this one, of generation {own}," if own else "this one"
        return cls(
            f"{what} was taken over by a newer driver{by}; {this} stops: headrace jobs ls shows "
            "who runs it",
            **fields,
        )


class CorruptDataError(HeadraceError):
    """Bytes that do not match their checksum or format. Rebuild from what is intact."""

    code = "HR400"
    move = "rebuild from intact files; headrace jobs describe JOB shows which epochs are kept"


class ClosedError(HeadraceError, RuntimeError):
    """Used after close. Fix the program."""

    code = "HR500"
    move = "open it again, and close it when everything is done"


class InternalError(HeadraceError, AssertionError):
    """A broken invariant of Headrace itself. Report it with its fields."""

    code = "HR900"
    move = "report it with the details"
