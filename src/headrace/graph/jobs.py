"""``job``: a function that builds a graph, under the name that its state is kept by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import GraphError, InvalidInputError
from headrace.graph.builder import Graph, name_mistake
from headrace.graph.operators import JobGraph, Site
from headrace.graph.signatures import call_mistake
from headrace.graph.sites import failure_site, function_site


@dataclass(frozen=True)
class Job:
    """A job's name and the function that builds its graph.

    Args:
        name: under which the job is deployed and its state kept.
        function: called with a ``Graph`` once for each build.
    """

    name: str
    function: Callable[[Graph], None] = field(compare=False)

    @property
    def site(self) -> Site:
        """Where the function is defined."""
        return function_site(self.function)

    def build(self) -> JobGraph:
        """Run the function once and return the graph; nothing else runs.

        Raises:
            GraphError: every mistake of the graph, each with its operator and the user's line.
        """
        graph = Graph(self.name)
        if (mistake := name_mistake(self.name, "a job")) is not None:
            graph.report("job", self.site, mistake)
        if (mistake := call_mistake(self.function, ("g",))) is not None:
            graph.report(f"function of job {self.name!r}", self.site, mistake)
            raise GraphError(self.name, graph.mistakes)
        try:
            self.function(graph)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            graph.report("the job's function failed", failure_site(error, self.site), text)
            raise GraphError(self.name, graph.mistakes) from error
        built = graph.finish()
        if not built.operators and not graph.mistakes:
            graph.report("job", self.site, "its function builds nothing; begin with g.input(...)")
        if graph.mistakes:
            raise GraphError(self.name, graph.mistakes)
        return built


def job(name: str) -> Callable[[Callable[[Graph], None]], Job]:
    """Turn a function that builds a graph into a ``Job``.

    Args:
        name: under which the job is deployed and its state kept; letters, digits, ``.``,
            ``_`` and ``-``.

    Raises:
        InvalidInputError: the decorator was used without a name.
    """
    if not isinstance(name, str):
        raise InvalidInputError('a job needs a name: write @hr.job("name") above its function')

    def decorate(function: Callable[[Graph], None]) -> Job:
        return Job(name, function)

    return decorate
