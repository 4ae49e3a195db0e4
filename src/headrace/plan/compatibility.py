"""What must not change under old state: one stable JSON text an operator, and how two compare.

Functions, filters and other stateless steps are left out: changing them is allowed. Of joins the
fingerprint holds what is kept of both sides, so their layouts are here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.graph.operator_base import GRACE, Flow, key_mark
from headrace.graph.operators import (
    Input,
)
from headrace.plan.stages import Stage

JOB = "job"
PATTERN = "pattern"
STREAM = "stream"
SINK = "sink"
FEED = "internal stream of"
SENT = "what is sent by"
OPERATOR = "operator"


def fingerprint(
    stages: tuple[Stage, ...],
    flows: Mapping[str, Flow],
    key_groups: int,
) -> dict[str, str]:
    """Return the fingerprint of a plan, by operator; ``job`` is that of the whole."""
    found: dict[str, dict[str, Any]] = {JOB: {"kind": "job", "key groups": key_groups}}
    for stage in stages:
        for binding in stage.inputs:
            found[binding.operator] = {
                "kind": "input",
                STREAM: binding.stream,
                "partitions": binding.partitions,
            }
            if binding.pattern:
                found[binding.operator][PATTERN] = binding.pattern
        for feed in stage.feeds:
            found[feed.operator] = {"kind": FEED, "stage": stage.name, "width": feed.partitions}
        for sent in stage.sends:
            if sent.stream:  # of the sending part, whose rows so far no new reader would have
                found[sent.stream] = {"kind": SENT, OPERATOR: sent.operator}
        for sink in stage.sinks:
            found[sink.operator] = {"kind": SINK, "to": sink.sink.identity}
        for operator in stage.operators:
            if not isinstance(operator, Input):
                flow = flows[operator.inputs[0]]
                own = operator.fingerprint(stage, flow)
                if own is not None:
                    place = {"stage": stage.name, "key": key_mark(flow, flow.keys)}
                    found[operator.name] = own | place
    return {name: json.dumps(parts, sort_keys=True) for name, parts in found.items()}


_RESET = "or start over: headrace jobs reset JOB"


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Say what changed that old state does not fit, and what to do; empty when it fits.

    Args:
        old: ``JobPlan.fingerprint`` of the plan that made the state.
        new: that of the plan which is to run on it.

    Returns:
        One sentence for each change. Operators without state are not compared.
    """
    before = {name: json.loads(text) for name, text in old.items()}
    after = {name: json.loads(text) for name, text in new.items()}
    # Streams of a pattern come and go.
    matched = {parts[PATTERN] for parts in after.values() if PATTERN in parts}
    patterns = {parts[PATTERN] for parts in before.values() if PATTERN in parts}
    gone = {
        name: parts
        for name, parts in before.items()
        if name not in after and parts["kind"] != SINK and parts.get(PATTERN) not in matched
    }
    added = {
        name: parts
        for name, parts in after.items()
        if name not in before and parts["kind"] != SINK and parts.get(PATTERN) not in patterns
    }
    sentences = []
    for name, parts in before.items():
        if name in after:
            sentences += _differences(name, parts, after[name])
    for name, parts in gone.items():
        twin = next((other for other in added if _same(parts, added[other])), None)
        if twin is None:
            sentences.append(
                f"{_subject(name, parts)} is gone, but its state is not: give the operator that "
                f"continues it name={parts.get(OPERATOR, name)!r}, {_RESET}"
            )
        else:
            del added[twin]
            sentences.append(
                f"{parts['kind']} {name!r} is now called {twin!r}, and state is kept by name: "
                f"rename it back with name={name!r}, {_RESET}"
            )
    sentences += [
        f"{_subject(name, parts)} is new: it would begin in the middle of the inputs; if it "
        f"continues another, rename it with name=, {_RESET}"
        for name, parts in added.items()
    ]
    return sentences


def _subject(name: str, parts: Mapping[str, Any]) -> str:
    return f"{parts['kind']} {parts.get(OPERATOR, name)!r}"


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """The same work under another name; the operator's own store is called like it."""

    def work(parts: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parts.items() if name not in ("stage", "stores")}

    return work(first) == work(second)


def _differences(name: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    subject = "the job" if name == JOB else _subject(name, before)
    found = []
    for part in sorted({*before, *after}):
        if part == "partitions" and after.get(part, 0) >= before.get(part, 0):
            continue  # the new ones are read from their beginning
        if part == GRACE and GRACE not in before:
            continue  # state of before it was noted
        if before.get(part) != after.get(part):
            was, now = _shown(before.get(part)), _shown(after.get(part))
            advice = _ADVICE.get(part, "change it back")
            found.append(f"{subject}: {part} was {was}, is now {now}; {advice}, {_RESET}")
    return found


_ADVICE = {
    "stream": "offsets are of the stream that was read: name it, or let its alias point to it",
    "to": "which epochs a receiver has is kept by the operator's name: give it another with name=",
    "stage": "its state is kept by the names of the partition_by before it: rename these back",
    "partitions": "offsets are kept by partition: use a stream with as many",
    GRACE: "it says which results are out, so it is fixed when a job is created: set it back",
    "columns": "make the columns as they were, with a map before it",
    "key groups": "they are fixed when a job is created: set them back",
}


def _shown(value: object) -> str:
    if value is None or value == []:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
