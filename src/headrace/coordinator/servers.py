"""Gives remote stores that name no server the one of the settings."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import InvalidInputError
from headrace.graph.operators import JobGraph, Operator, Process, StoreSpec


def with_servers(graph: JobGraph, url: str | None, *, absent_ok: bool = False) -> JobGraph:
    """Return the graph with the address of every remote store.

    Args:
        graph: of the job.
        url: the setting ``remote.url``.
        absent_ok: leave out what nobody gave: enough to look at.

    Raises:
        InvalidInputError: a remote store has no address.
    """

    def given(spec: StoreSpec) -> StoreSpec:
        if spec.remote is None or spec.remote.url is not None:
            return spec
        if url is None and not absent_ok:
            raise InvalidInputError(
                f"store {spec.name!r} is remote but has no address; give hr.store(url=...), or the "
                "setting remote.url",
                store=spec.name,
            )
        return replace(spec, remote=replace(spec.remote, url=url))

    def bound(operator: Operator) -> Operator:
        if not isinstance(operator, Process):
            return operator
        return replace(operator, stores=tuple(map(given, operator.stores)))

    return replace(graph, operators=tuple(map(bound, graph.operators)))
