"""``monoid``: totals of a ``MonoidProcessor``, here or on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.arguments import TABLE_KINDS, attempt, check_kind, checked_uses, shown
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import FAIL, Generate, Operator, RunningAggregate, StoreSpec
from headrace.graph.partial_sinks import PartialSink
from headrace.graph.processors import (
    MonoidProcessor,
    contract_mistakes,
    contract_of,
    returned_type,
    state_type,
)
from headrace.graph.sites import user_names, user_site
from headrace.graph.states import PARTIAL, MonoidTotal
from headrace.graph.steps import Steps
from headrace.graph.types import arrow_type, to_schema

LOCAL, VALUE = "local", "value"


class MonoidSteps(Steps):
    """``monoid``."""

    def monoid(
        self,
        factory: Callable[[], MonoidProcessor[Any, Any]],
        key: Mapping[str, Any],
        state: str | PartialSink = LOCAL,
        every: Duration | None = None,
        store: str = "columnar",
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
    ) -> Self:
        """Keep totals by keys that a ``MonoidProcessor`` makes of messages.

        Needs no ``partition_by``. Partial results of a key are combined in memory; an epoch sends
        one of each key, either to the task that keeps the key's total, or to a server, which
        appends it to the key's entry without reading that. What is sent on has the key and
        column ``value``.

        Args:
            factory: the class, or ``functools.partial`` of it.
            key: names and types of the key's columns.
            state: ``"local"``; or a server, such as ``hr.sinks.redis_partials(url, ...)``, where
                totals are read by ``totals(factory)`` of the same object.
            every: of local state: send the totals of changed keys each time event time passes a
                multiple of it, with column ``at``. Default: nothing is sent on.
            store: of local state: ``columnar``, ``rocksdb`` or ``memory``.
            uses: the columns the class reads. Default: all.
            name: of the operator; its state is kept by it.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
        """
        wrong: list[str] = []
        columns, total = _checked_class(wrong, factory, key, needs_column=state == LOCAL)
        every_ms = None
        if every is not None:
            every_ms = attempt(wrong, lambda: duration_ms(every, "every"), None)
        if state != LOCAL and not isinstance(state, PartialSink):
            wrong.append(
                f"state is {shown(state)}; expected 'local' or hr.sinks.redis_partials(...)"
            )
        if isinstance(state, PartialSink) and every is not None:
            wrong.append("every= sends totals on, but state= keeps them on a server; leave it out")
        site = user_site()

        def generate(chosen: str, mistakes: list[str]) -> Operator:
            mistakes += wrong
            read = checked_uses(mistakes, uses)
            return Generate(
                chosen, (self.name,), site, cast("Any", factory), columns, read, every_ms=every_ms
            )

        made = self._add("generate", None, generate, (), on_error)
        if isinstance(state, PartialSink):
            cast("Any", made).send_to(state.of(factory, total.state), name)
            return made
        keys = [column for column in columns.names if column != PARTIAL]
        keyed = cast("Any", made).partition_by(*keys)

        def keep(chosen: str, mistakes: list[str]) -> Operator:
            check_kind(mistakes, chosen, store, TABLE_KINDS)
            self._ledger.claim_stores(mistakes, chosen, [chosen])
            spec = StoreSpec(chosen, store)
            return RunningAggregate(chosen, (keyed.name,), site, ((VALUE, total),), every_ms, spec)

        kept: Self = keyed._add("monoid", name, keep, keyed.keys)  # noqa: SLF001 - own class
        return kept


def _checked_class(
    wrong: list[str], factory: Any, key: Any, *, needs_column: bool
) -> tuple[pa.Schema, MonoidTotal]:
    """Return the columns of partial results, and what totals are."""
    none = pa.schema([])
    keys = attempt(wrong, lambda: to_schema(key), none)
    if not len(keys):
        wrong.append(f"key= takes the key's columns and their types; found {shown(key)}")
        keys = pa.schema([("key", pa.string())])
    taken = sorted({PARTIAL, VALUE, "at"} & set(keys.names))
    if taken:
        wrong.append(f"key columns {taken} have the names of columns of monoid; rename them")
    columns = pa.schema([*keys, (PARTIAL, pa.binary())])
    if contract_of(factory) is not MonoidProcessor:
        wrong.append(f"monoid takes a class made of hr.MonoidProcessor; found {shown(factory)}")
        return columns, MonoidTotal(factory, Any, pa.null())
    wrong += contract_mistakes(factory, MonoidProcessor)
    names = user_names()
    state = attempt(wrong, lambda: state_type(factory, "identity", names), Any)
    column = pa.null()
    if needs_column:
        column = attempt(wrong, lambda: _shown_type(factory, state, names), column)
    return columns, MonoidTotal(factory, state, column)


def _shown_type(factory: Any, state: Any, names: Mapping[str, Any]) -> pa.DataType:
    """Return the type of the column of totals: that of ``result``, or of partial results."""
    found = returned_type(factory, "result", names)
    kind = state if found in (None, Any) else found
    if kind is Any:
        return pa.null()
    try:
        return arrow_type(kind)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"what is shown of a total: {error.message}; give the class a method "
            "result(self, total), annotated with a type that has one"
        ) from error
