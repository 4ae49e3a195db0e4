"""What becomes of a rule at each look: a pure step, with the clock given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.config.alerts import AlertRule
from headrace.durations import duration_text

Turn = Literal["firing", "over"]


class RuleState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a rule: since when it is true, when it fired, the value at the last look.

    ``kind`` and ``text`` are those that it had: one that says something else begins anew.
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


@dataclass(frozen=True)
class RuleNow:
    """A rule, and how it stands; times are in ms."""

    rule: str
    kind: str
    text: str
    value: int | None
    since_ms: int | None
    fired_ms: int | None


def is_true(rule: AlertRule, value: int) -> bool:
    """Say whether what a rule watches is wrong at this moment.

    Args:
        rule: the rule.
        value: rows of lag, starts within the time, epochs that a standby is behind; of
            ``no_output`` the rows that left the job since the last look.
    """
    if rule.kind == "no_output":
        return value == 0
    assert rule.above is not None
    return value > rule.above


def stepped(
    rule: AlertRule, before: RuleState, value: int | None, now_ms: int
) -> tuple[RuleState, Turn | None]:
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


def event_text(job: str, state: RuleState, turn: str, value: int | None, lasted_ms: int) -> str:
    """Return what people are told of a turn."""
    if turn == "over":
        return f"job {job}: {state.text} is over, after {_rounded(lasted_ms)}"
    if state.kind == "no_output" or value is None:
        return f"job {job}: {state.text}"
    return f"job {job}: {state.text}; it is {value:,} now"


def _rounded(milliseconds: int) -> str:
    """A duration without what nobody reads."""
    unit = 1 if milliseconds < 1000 else 1000 if milliseconds < 3_600_000 else 60_000
    return duration_text(max(unit, milliseconds // unit * unit))
