"""Gives a plan its semantics: what code and settings ask for, refused where it cannot be kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.errors import GraphError
from headrace.graph.operators import SendTo, SendToSink
from headrace.graph.semantics import Semantics, refusal
from headrace.plan.dead_letters import DEAD_LETTERS
from headrace.plan.stages import JobPlan, OutputBinding, SinkBinding, Stage

_SINK_LEAST = (
    "a sink takes each committed epoch by its number, so none can be sent before its manifest; "
    "leave semantics out: it gets every row, and once where its receiver knows epochs"
)

_PROMISES = {
    Semantics.AT_LEAST_ONCE: "seen before the epoch is committed, twice where that then fails",
    Semantics.AT_MOST_ONCE: "sent after the epoch is committed, and lost where that fails",
}


@dataclass(frozen=True)
class RequestedSemantics:
    """What the settings say for jobs and outputs whose code does not; ``None``: as the state."""

    state: str = Semantics.EXACTLY_ONCE
    output: str | None = None


def with_semantics(plan: JobPlan, wanted: RequestedSemantics) -> JobPlan:
    """Return a plan whose outputs, and whose state, have the semantics asked for.

    An output goes by what was said of it, then of its job, then by the settings, then by the
    semantics of the state. A job without state has none of these: its outputs may be any.

    Args:
        plan: of the job.
        wanted: what the settings say.

    Raises:
        GraphError: what is not possible, with the user's line and the reason.
    """
    stateful = any(stage.stores for stage in plan.stages)
    asked = plan.graph.state_semantics
    chosen = Semantics(asked or wanted.state) if stateful else Semantics.EXACTLY_ONCE
    default = plan.graph.output_semantics or Semantics(wanted.output or chosen)
    made = replace(
        plan,
        stages=tuple(_stage(stage, chosen, default) for stage in plan.stages),
        state_semantics=chosen,
    )
    mistakes = list(_mistakes(made))
    if asked is not None and not stateful:
        mistakes.insert(
            0,
            f"state_semantics={asked.value!r}, but the job keeps no state; say output_semantics=, "
            "or leave it out",
        )
    if mistakes:
        raise GraphError(plan.graph.name, mistakes)
    return made


def commit_rows(plan: JobPlan) -> list[str]:
    """Return what ``explain`` says of the steps of a commit, where they are not all one."""
    order = plan.commit_actions
    if len(order) == 1:
        return []
    steps_text = ["results in files"]
    for act in order:
        parts = [one.words + " output" for one in sorted(act.outputs)]
        parts += [step.name.lower() for step in sorted(act.saves)]
        steps_text.append(" with ".join(parts) if len(parts) < 3 else ", ".join(parts) + " in one")
    steps = ", ".join(f"{number} {text}" for number, text in enumerate(steps_text, 1))
    return [f"  commits in steps: {steps}"]


def promise(semantics: Semantics) -> list[str]:
    """Return what ``explain`` says of an output that is not as all are by default."""
    return [f"{semantics.words}: {_PROMISES[semantics]}"] if semantics in _PROMISES else []


def _stage(stage: Stage, state: Semantics, default: Semantics) -> Stage:
    # Dead letters get the records that the state passed over, as often as these.
    said: dict[str, Semantics | None] = {DEAD_LETTERS: state}
    said |= {
        operator.name: operator.semantics
        for operator in stage.operators
        if isinstance(operator, SendTo | SendToSink)
    }

    def output(binding: OutputBinding) -> OutputBinding:
        return replace(binding, semantics=said[binding.operator] or default)

    def sink(binding: SinkBinding) -> SinkBinding:
        least = Semantics.AT_LEAST_ONCE
        unsaid = Semantics.EXACTLY_ONCE if default == least else default
        return replace(binding, semantics=said[binding.operator] or unsaid)

    return replace(
        stage,
        outputs=tuple(output(binding) for binding in stage.outputs),
        sinks=tuple(sink(binding) for binding in stage.sinks),
    )


def _mistakes(plan: JobPlan) -> Iterator[str]:
    state = plan.state_semantics
    sites = {operator.name: operator.site for operator in plan.graph.operators}

    def weaker(operator: str, text: str) -> str:
        site = f" ({sites[operator]})" if str(sites[operator]) else ""
        return f"operator {operator!r}{site}: {text}"

    for binding in plan.sent:
        is_sink = isinstance(binding, SinkBinding)
        if is_sink and binding.semantics == Semantics.AT_LEAST_ONCE:
            yield weaker(binding.operator, _SINK_LEAST)
        elif (reason := refusal(state, binding.semantics)) is not None:
            if is_sink and state == Semantics.AT_LEAST_ONCE:
                reason = f"{state} state does not go with sinks: {_SINK_LEAST.partition(';')[0]}"
            yield weaker(binding.operator, reason)
    if state == Semantics.EXACTLY_ONCE:
        return
    for stage in plan.stages:
        for exchange in stage.feeds:
            yield weaker(
                exchange.operator,
                f'via="bus" cuts the job into parts, whose rows reach each other exactly once; '
                f"that takes exactly_once state, found {state}",
            )
        remote = [spec.name for spec in stage.stores if spec.remote is not None]
        if remote and state == Semantics.AT_MOST_ONCE:
            yield (
                f"remote stores {remote} are written before the epoch is committed, and again if "
                "it is run again, so they cannot keep at_most_once state; use another kind of store"
            )
