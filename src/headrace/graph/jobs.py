"""``job``: a function that builds a graph, under the name that its state is kept by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import GraphError, InvalidInputError
from headrace.graph.apart import with_own_outputs
from headrace.graph.arguments import attempt
from headrace.graph.builder import Graph
from headrace.graph.ledger import Ledger, name_mistake
from headrace.graph.operators import JobGraph, Site
from headrace.graph.semantics import read_semantics
from headrace.graph.signatures import call_mistake
from headrace.graph.sites import failure_site, function_site


@dataclass(frozen=True)
class Job:
    """A job's name and the function that builds its graph.

    Args:
        name: under which the job is deployed and its state kept.
        function: called with a ``Graph`` once for each build.
        state_semantics, output_semantics: as of ``job``.
        merge: as of ``job``.
        apart: where not empty, outputs are streams of its own: their names, a dot, and this.
    """

    name: str
    function: Callable[[Graph], object] = field(compare=False)
    state_semantics: str | None = None
    output_semantics: str | None = None
    apart: str = ""
    merge: Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any] | None] | None = field(
        default=None, compare=False
    )

    @property
    def site(self) -> Site:
        """Where the function is defined."""
        return function_site(self.function)

    def build(self) -> JobGraph:
        """Run the function once and return the graph; nothing else runs.

        Raises:
            GraphError: every mistake of the graph, each with its operator and the user's line.
        """
        ledger = Ledger(self.name)
        if (mistake := name_mistake(self.name, "a job")) is not None:
            ledger.report("job", self.site, mistake)
        wrong: list[str] = []
        state = attempt(
            wrong, lambda: read_semantics(self.state_semantics, "state_semantics"), None
        )
        output = attempt(
            wrong, lambda: read_semantics(self.output_semantics, "output_semantics"), None
        )
        for text in wrong:
            ledger.report("job", self.site, text)
        if (mistake := call_mistake(self.function, ("g",))) is not None:
            ledger.report(f"function of job {self.name!r}", self.site, mistake)
            raise GraphError(self.name, ledger.mistakes)
        try:
            self.function(Graph(ledger))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            ledger.report("the job's function failed", failure_site(error, self.site), text)
            raise GraphError(self.name, ledger.mistakes) from error
        built = ledger.finish()
        if not built.operators and not ledger.mistakes:
            ledger.report("job", self.site, "its function builds nothing; begin with g.input(...)")
        if ledger.mistakes:
            raise GraphError(self.name, ledger.mistakes)
        built = replace(built, state_semantics=state, output_semantics=output)
        return with_own_outputs(built, self.apart) if self.apart else built


def job(
    name: str,
    *,
    state_semantics: str | None = None,
    output_semantics: str | None = None,
    merge: Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any] | None] | None = None,
) -> Callable[[Callable[[Graph], object]], Job]:
    """Turn a function that builds a graph into a ``Job``.

    Args:
        name: under which the job is deployed and its state kept; letters, digits, ``.``,
            ``_`` and ``-``.
        state_semantics: ``exactly_once``, ``at_least_once`` or ``at_most_once``: how often an
            input record counts in the job's state although processes die. By default what the
            setting ``job.state_semantics`` says.
        output_semantics: the same of results in outputs that do not say so themselves. By
            default what the setting ``job.output_semantics`` says, or as the state.
        merge: given the live row of a key, ``None`` where there is none, and that of a run over
            old data: the row that is to follow in the live stream, or to take the place of that
            of a keyed sink, or ``None`` for nothing. By default the live one wins.

    Raises:
        InvalidInputError: the decorator was used without a name.
    """
    if not isinstance(name, str):
        raise InvalidInputError('a job needs a name: write @hr.job("name") above its function')

    def decorate(function: Callable[[Graph], object]) -> Job:
        return Job(name, function, state_semantics, output_semantics, merge=merge)

    return decorate
