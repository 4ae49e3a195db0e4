"""``process``: a class of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from headrace.graph.arguments import (
    attempt,
    checked_stores,
    checked_uses,
    shown,
)
from headrace.graph.asynchronous import check_local, checked_calls
from headrace.graph.durations import Duration
from headrace.graph.joins import keys_mistake
from headrace.graph.operators import (
    FAIL,
    Operator,
    Process,
    StoreSpec,
)
from headrace.graph.processors import StatefulProcessor, contract_of, given_mistakes, state_type
from headrace.graph.several import ProcessSeveral, checked_sources, several_mistakes
from headrace.graph.sites import user_names, user_site
from headrace.graph.states import with_state
from headrace.graph.steps import Steps
from headrace.graph.tables import (
    BroadcastSpec,
)
from headrace.graph.types import to_schema


class ProcessSteps(Steps):
    """``process``."""

    def process(  # noqa: PLR0913 - each is a knob of its own, by name
        self,
        factory: Callable[[], Any],
        stores: Mapping[str, Any] | Sequence[StoreSpec | BroadcastSpec] = (),
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
        *,
        max_concurrency: int | None = None,
        order: str | None = None,
        timeout: Duration | None = None,
        callback_timeout: Duration | None = None,
        threads: int | None = None,
    ) -> Self:
        """Run a class of your own, one instance for each task.

        The class has ``process(message, context)`` and may have ``open(context)``,
        ``on_timer(timer, context)`` and ``close()``; it sends with ``context.emit``. Or it is made
        of ``hr.StatelessProcessor`` or ``hr.StatefulProcessor``, which return what is sent. Where
        ``process`` is ``async def``, many calls are under way at a time: see the guide.

        Args:
            factory: the class, or a function without arguments that makes an instance.
            stores: a dict of store names and value types, or ``hr.store(...)`` and
                ``hr.broadcast(...)`` for each; the latter are only read. A ``StatefulProcessor``
                has one without being told; a store called ``state`` says of what kind it is.
            returns: columns of what it emits; nothing may be emitted without.
            uses: the columns it reads; its message has only these. Default: all.
            name: of the operator; its timers are kept by it.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
            sides: columns of each side that it may send to with ``context.emit(..., to=...)``.
            max_concurrency: calls of ``async def process``, of ``process_async(message, context,
                callback)``, or of threads, that may be open in a task. Default: that of the
                settings, or as many as there are threads.
            order: in which such calls take effect: ``in``: of the messages; ``out``: as they end;
                ``key``: as they end, those of one key one after the other. Default: ``in``.
            timeout: of one call of ``async def process`` or of a thread. Default: that of the
                settings.
            callback_timeout: how long the callback of ``process_async`` may take to come.
            threads: run a plain ``process`` in a pool of so many threads.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            wrong += given_mistakes(factory)
            specs, tables = checked_stores(wrong, stores, self.keys)
            if contract_of(factory) is StatefulProcessor:
                if self.keys is None:
                    wrong.append("process keeps state for each key: put partition_by before it")
                kind = attempt(wrong, lambda: state_type(factory, "begin", user_names()), Any)
                specs = with_state(specs, chosen, kind)
            self._ledger.claim_stores(wrong, chosen, [spec.name for spec in specs])
            for table in tables:
                self._ledger.claim_table(wrong, table)
            schema = None
            if returns is not None:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            columns = checked_uses(wrong, uses)
            calls = checked_calls(
                wrong,
                factory,
                self.keys,
                max_concurrency=max_concurrency,
                order=order,
                timeout=timeout,
                callback_timeout=callback_timeout,
                threads=threads,
            )
            if calls is not None:
                check_local(wrong, specs)
            before = (self.name,)
            return Process(
                chosen, before, site, factory, schema, columns, specs, tables, calls=calls
            )

        return self._add("process", name, make, self.keys, on_error, sides)

    def _process_with(
        self,
        streams: Mapping[str, Any],
        factory: Callable[[], Any],
        stores: Mapping[str, Any] | Sequence[StoreSpec | BroadcastSpec],
        returns: Any,
        uses: Mapping[str, Sequence[str]] | None,
        name: str | None,
        on_error: str,
        sides: Mapping[str, Any] | None,
    ) -> Self:
        """Run a class of the user's over this stream, the first one given, and others."""
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            inputs = self._several(wrong, streams)
            wrong += several_mistakes(factory, list(streams))
            specs, tables = checked_stores(wrong, stores, self.keys)
            self._ledger.claim_stores(wrong, chosen, [spec.name for spec in specs])
            for table in tables:
                self._ledger.claim_table(wrong, table)
            schema = None
            if returns is not None:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            names = list(streams)[: len(inputs)]
            sources = checked_sources(wrong, factory, names, uses, user_names())
            return ProcessSeveral(
                chosen, inputs, site, factory, schema, None, specs, tables, sources=sources
            )

        return self._add("process", name, make, self.keys, on_error, sides)

    def _several(self, wrong: list[str], streams: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the operators of several streams that are partitioned alike."""
        found: list[str] = []
        for name, stream in streams.items():
            if not isinstance(name, str) or not name.isidentifier():
                wrong.append(f"streams have names that methods can have; found {name!r}")
            if not isinstance(stream, Steps):
                wrong.append(f"process of several streams takes streams; found {shown(stream)}")
                continue
            if stream._ledger is not self._ledger:  # noqa: SLF001 - of the same class
                wrong.append(f"stream {stream.name!r} belongs to another graph")
            elif stream.name in found:
                wrong.append(f"stream {stream.name!r} is given twice")
            elif mistake := keys_mistake(self.name, self.keys, stream.name, stream.keys, "process"):
                wrong.append(mistake)
            found.append(stream.name)
        return tuple(found)
