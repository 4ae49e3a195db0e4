"""Rules that say when something is wrong with a job: the setting ``alerts.rules``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from headrace.durations import duration_ms, duration_text

Kind = Literal["lag", "no_output", "restart_loop", "standby_behind"]
Place = Literal["log", "webhook", "stream"]

_COUNTED = {"lag": "rows", "restart_loop": "starts", "standby_behind": "epochs"}
_LASTING = ("no_output", "restart_loop")


def _milliseconds(value: object) -> object:
    return duration_ms(value, "for", least=0) if isinstance(value, str) else value


class AlertRule(BaseModel):
    """One rule: what is watched, from where on it is too much, for how long, and who is told.

    ``above`` counts rows of lag, starts of drivers, or epochs that the last standby is behind. A
    rule fires once that was so ``for`` as long as it says; of ``restart_loop`` that is the time in
    which starts are counted. Without ``to`` it tells the log, and whatever else ``alerts`` names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    kind: Kind
    above: int | None = Field(None, ge=0)
    for_ms: Annotated[int, BeforeValidator(_milliseconds)] = Field(0, alias="for", ge=0)
    to: tuple[Place, ...] | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> AlertRule:
        if self.kind in _COUNTED and self.above is None:
            raise ValueError(f"kind {self.kind} needs above, a number of {_COUNTED[self.kind]}")
        if self.kind == "no_output" and self.above is not None:
            raise ValueError("kind no_output has no above; leave it out")
        if self.kind in _LASTING and not self.for_ms:
            raise ValueError(f'kind {self.kind} needs for, a duration such as "10m"')
        if self.to == ():
            raise ValueError("to is empty; name log, webhook or stream, or leave it out")
        return self

    @property
    def text(self) -> str:
        """What it watches, in words."""
        lasting = f" for {duration_text(self.for_ms)}" if self.for_ms else ""
        match self.kind:
            case "lag":
                return f"lag above {self.above:,} rows{lasting}"
            case "no_output":
                return f"no output{lasting}"
            case "restart_loop":
                return f"more than {self.above:,} starts within {duration_text(self.for_ms)}"
            case "standby_behind":
                return f"a standby more than {self.above:,} epochs behind{lasting}"


def read_rules(value: object) -> tuple[AlertRule, ...]:
    """Return rules from what a settings file has, or from the same in JSON.

    Raises:
        ValueError: which rule is wrong, and how.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError("tables [[alerts.rules]] are expected")
    rules = tuple(_rule(number, one) for number, one in enumerate(value, 1))
    names = [rule.name for rule in rules]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two rules are called {doubled[0]!r}; each needs a name of its own")
    return rules


def _rule(number: int, found: object) -> AlertRule:
    if isinstance(found, AlertRule):
        return found
    if not isinstance(found, Mapping):
        raise ValueError(f"rule {number} is {found!r}; a table is expected")
    given: dict[str, Any] = dict(found)
    if isinstance(given.get("to"), list):
        given["to"] = tuple(given["to"])
    try:
        return AlertRule.model_validate(given, strict=True, by_name=False, by_alias=True)
    except ValidationError as error:
        which = f"rule {number} ({given['name']})" if given.get("name") else f"rule {number}"
        raise ValueError(f"{which}: {_reason(error)}") from error


def _reason(error: ValidationError) -> str:
    """Say what is wrong first, in the words of the rule."""
    found = error.errors()[0]
    where = ".".join(str(part) for part in found["loc"][:1])
    if found["type"] == "extra_forbidden":
        fields = ["name", "kind", "above", "for", "to"]
        return f"unknown {where}; expected {', '.join(fields)}"
    if found["type"] == "missing":
        return f"{where} is missing"
    reason = str(found["msg"]).removeprefix("Value error, ")
    return f"{where} is {found['input']!r}: {reason}" if where and "is '" not in reason else reason
