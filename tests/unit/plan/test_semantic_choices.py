"""Which semantics go together, who says which, and what is told where they cannot be kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import epoch_at, readers, rewind
from tests.support.plans import (
    ORDERS,
    CommitStep,
    JobPlan,
    RequestedSemantics,
    Semantics,
    StreamInfo,
    commit_actions,
    explain,
    mermaid,
    plan,
)

import headrace as hr
from headrace import Job
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

LEAST, MOST, EXACTLY = "at_least_once", "at_most_once", "exactly_once"
STREAMS = {"in": StreamInfo(pa.schema({"id": pa.int64(), "key": pa.int64()}), 2)}


def job(state: Any = None, output: Any = None, of_output: Any = None, end: Any = None) -> Job:
    """A job with state: what is said of the job, and of its one output."""

    @hr.job("totals", state_semantics=state, output_semantics=output)
    def made(g: hr.Graph) -> None:
        totals = g.input("in").partition_by("key").aggregate(n=hr.agg.count())
        sink = g.output_sink(end, of_output) if end else g.output("out", semantics=of_output)
        totals.send_to(sink)

    return made


def planned(made: Job, **wanted: Any) -> JobPlan:
    return plan(made.build(), STREAMS, semantics=RequestedSemantics(**wanted))


def refused(made: Job, **wanted: Any) -> str:
    with pytest.raises(GraphError) as told:
        planned(made, **wanted)
    return str(told.value)


@pytest.mark.parametrize(("state", "output"), list(itertools.product(Semantics, Semantics)))
def test_five_of_nine_go_together_and_the_others_are_told_why(
    state: Semantics, output: Semantics
) -> None:
    if (state, output) in ORDERS:
        assert planned(job(state, of_output=output)).outputs[0].semantics == output
        return
    text = refused(job(state, of_output=output))
    assert f"{output} output does not go with {state} state: " in text
    assert f"give it {state}, or the state other semantics" in text
    assert "to_out" in text
    assert ".py:" in text


def test_every_order_has_every_step_once() -> None:
    """The same steps in another order; results come first, and one manifest at least saves."""
    for (state, output), order in ORDERS.items():
        steps = [step for joined in order for step in joined]
        assert sorted(steps) == list(CommitStep)
        assert order[0] == {CommitStep.RESULTS}
        is_joined = {CommitStep.STATE, CommitStep.OFFSETS} in [
            joined - {CommitStep.OUTPUT} for joined in order
        ]
        assert is_joined == (state == EXACTLY)
        assert ({CommitStep.OUTPUT} not in order) == (output == EXACTLY)


def test_orders_of_one_state_save_in_the_same_manifests() -> None:
    """So one job may have outputs of several kinds."""
    for state in Semantics:
        found = {
            tuple(act.saves for act in commit_actions(state, frozenset({output})) if act.saves)
            for its, output in ORDERS
            if its == state
        }
        assert len(found) == 1
    mixed = commit_actions(Semantics.EXACTLY_ONCE, frozenset(Semantics))
    assert [set(act.outputs) for act in mixed] == [{LEAST}, {EXACTLY}, {MOST}]
    assert [bool(act.saves) for act in mixed] == [False, True, False]


def test_who_says_which() -> None:
    """The output, then its job, then the settings, then as the state."""
    assert planned(job()).outputs[0].semantics == EXACTLY
    assert planned(job(), output=MOST).outputs[0].semantics == MOST
    assert planned(job(output=LEAST), output=MOST).outputs[0].semantics == LEAST
    assert planned(job(output=LEAST, of_output=MOST)).outputs[0].semantics == MOST
    assert planned(job(LEAST)).outputs[0].semantics == LEAST
    assert planned(job(), state=MOST).state_semantics == MOST
    assert planned(job(EXACTLY), state=MOST).state_semantics == EXACTLY


def test_without_anything_said_an_epoch_is_one_manifest() -> None:
    assert [set(act.saves) for act in planned(job()).commit_actions] == [
        {CommitStep.STATE, CommitStep.OFFSETS}
    ]
    assert "commits in steps" not in explain(planned(job()))


def test_a_job_without_state_has_none() -> None:
    @hr.job("copy")
    def copy(g: hr.Graph) -> None:
        for name in Semantics:
            g.input("in", name=name).send_to(g.output(f"to-{name}", semantics=name))

    found = plan(copy.build(), STREAMS, semantics=RequestedSemantics(MOST))
    assert found.state_semantics == EXACTLY
    assert {binding.semantics for binding in found.outputs} == set(Semantics)
    said = Job("copy", copy.function, state_semantics=MOST)
    assert "the job keeps no state; say output_semantics=" in refused(said)


def test_dead_letters_are_as_sure_as_the_state() -> None:
    @hr.job("dead", state_semantics=LEAST)
    def dead(g: hr.Graph) -> None:
        rows = g.input("in").map(dict, returns={"key": int}, on_error="dead_letter")
        rows.partition_by("key").aggregate(n=hr.agg.count()).send_to(g.output("out"))

    assert {binding.semantics for binding in planned(dead).outputs} == {LEAST}


def test_words_that_are_none_are_told_with_those_that_are() -> None:
    for made in (job("once"), job(output="exactly-once"), job(of_output=2)):
        with pytest.raises(GraphError, match="expected one of 'at_least_once', 'at_most_once'"):
            made.build()


def test_one_stream_is_given_the_same_twice() -> None:
    @hr.job("two")
    def two(g: hr.Graph) -> None:
        rows = g.input("in")
        rows.send_to(g.output("out"))
        rows.filter(hr.col("id") > 0).send_to(g.output("out", semantics=MOST))

    with pytest.raises(GraphError, match=r"was given semantics=None at .*'at_most_once' here"):
        two.build()


def test_sinks_take_whole_committed_epochs(tmp_path: Path) -> None:
    sink = hr.sinks.parquet(tmp_path / "out")
    assert "none can be sent before its manifest" in refused(job(of_output=LEAST, end=sink))
    assert "state does not go with sinks" in refused(job(LEAST, end=sink))
    assert planned(job(output=LEAST, end=sink)).sinks[0].semantics == EXACTLY
    assert planned(job(MOST, end=sink)).sinks[0].semantics == MOST


def test_parts_take_exactly_once_state() -> None:
    @hr.job("parts", state_semantics=LEAST)
    def parts(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("key", via="bus")
        keyed.aggregate(n=hr.agg.count()).send_to(g.output("out"))

    assert 'via="bus" cuts the job into parts' in refused(parts)


class Noting:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("n").put(message.id, 1)
        context.emit({"id": message.id})


def test_remote_stores_are_no_place_for_at_most_once_state() -> None:
    store = hr.store("n", int, kind="remote", url="redis://localhost:6379/0")

    @hr.job("remote", state_semantics=MOST)
    def remote(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("key")
        keyed.process(Noting, stores=(store,), returns={"id": int}).send_to(g.output("out"))

    assert "remote stores ['n'] are written before the epoch is committed" in refused(remote)


def test_a_copy_that_may_be_gone_back_to_is_no_place_for_at_most_once() -> None:
    with TestDriver(job(of_output=MOST), durability="backup(30s)") as driver:
        driver.create("in", {"id": pa.int64(), "key": pa.int64()})
        with pytest.raises(InvalidInputError, match=r"once, and state\.durability is"):
            driver.start()


def test_explain_and_the_diagram_say_what_is_not_as_usual() -> None:
    found = planned(job(LEAST))
    assert "commits in steps: 1 results in files, 2 at-least-once output, 3 state, 4" in explain(
        found
    )
    assert "at-least-once: seen before the epoch is committed" in explain(found)
    assert '[("out<br/>at-least-once")]' in mermaid(found)


@pytest.mark.parametrize("state", [LEAST, MOST])
def test_half_a_commit_is_nothing_to_go_back_to(state: str) -> None:
    """State without its offsets, or the other way round, belong to no moment of the job."""
    with TestDriver(job(state)) as driver:
        driver.create("in", {"id": pa.int64(), "key": pa.int64()})
        for number in range(3):
            driver.feed("in", [{"id": number, "key": 1}])
            driver.advance()
        assert readers(driver)[0].kept().newest == 6
        for epoch in (1, 3, 5):
            with pytest.raises(InvalidInputError, match=f"rewind to {epoch - 1} or {epoch + 1}"):
                rewind(driver, epoch)
        assert epoch_at(driver, driver.clock.now_ms()) == 6
        for epoch in (2, 4, 6):
            assert rewind(driver, epoch).epoch > 6
