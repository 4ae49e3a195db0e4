"""Alert rules, how each stands, and the file in the job's storage that keeps that.

A rule is evaluated in a pure step, with the clock given. The file is replaced before anything is
sent, so that the next driver continues from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from headrace.clock import Clock
from headrace.config import AlertRule
from headrace.durations import duration_text
from headrace.errors import CorruptDataError
from headrace.files import Files

if TYPE_CHECKING:  # status_schema gives it to this module
    from pydantic import Field

CLOCK_RULE = AlertRule(name="clock", kind="clock_jump")
"""Looked at for every job whose rules have none of its kind."""

AlertTransition = Literal["firing", "over"]


@dataclass(frozen=True)
class RuleStatus:
    """A rule of the settings, and how it stands; times are in ms."""

    rule: str
    kind: str
    text: str
    value: Annotated[
        int | None, Field(exclude=True, description="what it watches, at the last look")
    ] = field(default=None, kw_only=True)
    since_ms: Annotated[int | None, Field(description="since when it is true")]
    fired_ms: Annotated[int | None, Field(description="when it fired; null: it does not")]


class RuleState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a rule: since when it is true, when it fired, the value at the last look.

    ``kind`` and ``text`` are those that it had: one that says something else starts over.
    """

    kind: str = ""
    text: str = ""
    since_ms: int | None = None
    fired_ms: int | None = None
    value: int | None = None

    @property
    def is_firing(self) -> bool:
        """Say whether it has fired and is not over."""
        return self.fired_ms is not None

    def status(self, rule: str) -> RuleStatus:
        """Return how the rule of this name stands."""
        return RuleStatus(
            rule, self.kind, self.text, self.since_ms, self.fired_ms, value=self.value
        )


def is_true(rule: AlertRule, value: int) -> bool:
    """Say whether what a rule watches is wrong at this moment.

    Args:
        rule: the rule.
        value: rows of lag, starts within the time, epochs that a standby is behind; of
            ``no_output`` the rows that left the job since the last look; of ``clock_jump`` how far
            the clock is ahead, ms, behind below 0.
    """
    if rule.kind == "no_output":
        return value == 0
    if rule.kind == "clock_jump":
        return value != 0
    assert rule.above is not None
    return value > rule.above


def evaluate_rule(
    rule: AlertRule, before: RuleState, value: int | None, now_ms: int
) -> tuple[RuleState, AlertTransition | None]:
    """Look at a rule once.

    Args:
        rule: the rule.
        before: its state since the last look.
        value: what it watches; ``None``: not known, so nothing changes.
        now_ms: the wall clock.

    Returns:
        Its state, and whether it begins to fire, is over, or neither.
    """
    if value is None:
        return before, None
    plain = RuleState(rule.kind, rule.text, value=value)
    if not is_true(rule, value):
        return plain, "over" if before.is_firing else None
    since = now_ms if before.since_ms is None else min(before.since_ms, now_ms)
    held = msgspec.structs.replace(plain, since_ms=since, fired_ms=before.fired_ms)
    # Starts are counted over the time that the rule names, so it has passed already.
    lasting = 0 if rule.kind == "restart_loop" else rule.for_ms
    if held.is_firing or now_ms - since < lasting:
        return held, None
    return msgspec.structs.replace(held, fired_ms=now_ms), "firing"


def alert_text(job: str, state: RuleState, turn: str, value: int | None, lasted_ms: int) -> str:
    """Return the message about a turn."""
    if turn == "over":
        return f"job {job}: {state.text} is over, after {_rounded(lasted_ms)}"
    if state.kind == "no_output" or value is None:
        return f"job {job}: {state.text}"
    if state.kind == "clock_jump":
        where = "ahead of" if value > 0 else "behind"
        return (
            f"job {job}: {state.text}: it is {_rounded(abs(value))} {where} the time that has "
            "passed, which epochs use meanwhile; set the clock, or accept it if it is right: "
            f"headrace jobs accept-clock {job}"
        )
    return f"job {job}: {state.text}; it is {value:,} now"


def _rounded(milliseconds: int) -> str:
    """A duration without what nobody reads."""
    unit = 1 if milliseconds < 1000 else 1000 if milliseconds < 3_600_000 else 60_000
    return duration_text(max(unit, milliseconds // unit * unit))


ALERTS_FILE = "alerts.json"
MAX_EVENTS = 100
MAX_WAITING = 200


class AlertEvent(msgspec.Struct, frozen=True):
    """A rule that fires, or is over; ``test`` is neither.

    ``id`` is of this event alone: who gets it twice knows it by that.
    """

    id: str
    number: int
    job: str
    rule: str
    kind: str
    state: str
    text: str
    value: int | None
    above: int | None
    since_ms: int
    at_ms: int


class Delivery(msgspec.Struct, frozen=True):
    """An event that a place has not got yet: how often that was tried, and when it is next."""

    event: AlertEvent
    place: str
    tries: int = 0
    next_ms: int = 0
    problem: str = ""


class AlertState(msgspec.Struct):
    """All of it; ``lineage`` goes with the numbers of the events."""

    lineage: str
    number: int = 0
    rules: dict[str, RuleState] = {}
    events: list[AlertEvent] = []
    waiting: list[Delivery] = []

    def add(self, event: AlertEvent, places: tuple[str, ...]) -> list[Delivery]:
        """Note an event to send to places; returns what is given up for it."""
        self.number = event.number
        self.events = [*self.events, event][-MAX_EVENTS:]
        waiting = [*self.waiting, *(Delivery(event, place) for place in places)]
        self.waiting = waiting[-MAX_WAITING:]
        return waiting[:-MAX_WAITING]


_DECODER = msgspec.json.Decoder(AlertState)


def load_alerts(storage: Path, clock: Clock) -> AlertState:
    """Read the alerts of a job; of one that has none yet they are empty.

    Raises:
        CorruptDataError: the file is there, and damaged.
    """
    path = storage / ALERTS_FILE
    try:
        return _DECODER.decode(Files(sync=False).read(path))
    except FileNotFoundError:
        return AlertState(clock.new_id())
    except msgspec.DecodeError as error:
        raise CorruptDataError(
            f"{path} cannot be read: {error}; remove it, and its rules start over", file=str(path)
        ) from error


def save_alerts(storage: Path, book: AlertState, files: Files) -> None:
    """Replace the whole file."""
    files.replace(storage / ALERTS_FILE, msgspec.json.encode(book))
