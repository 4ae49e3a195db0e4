"""``process`` with a class of the user, and ``monoid`` before its repartition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from headrace.durations import duration_text
from headrace.graph.aggregates import unknown_column
from headrace.graph.operator_base import (
    IN,
    KEY,
    OUT,
    THREAD,
    CallPolicy,
    Flow,
    Operator,
    Planning,
    StageView,
    StoreSpec,
    declared_flow,
    store_mark,
    store_text,
)
from headrace.graph.operators.keyed import RunningAggregate
from headrace.graph.operators.outputs import KeepForSink, SendToSink
from headrace.graph.operators.stateless import (
    FlatMapMessages,
    PartitionBy,
    Sides,
    bound_function,
    called,
    columns_of,
)
from headrace.graph.shared_stores import BroadcastSpec


@dataclass(frozen=True)
class Process(Operator):
    """``process``: the user's class, one instance for each task.

    ``calls`` says how calls are made that need not end before the next begins.
    """

    factory: Callable[[], Any] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None
    stores: tuple[StoreSpec, ...] = ()
    tables: tuple[BroadcastSpec, ...] = ()
    sides: Sides = ()
    calls: CallPolicy | None = field(default=None, kw_only=True)

    keeps_columns: ClassVar[bool] = True
    is_end: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that the class declares."""
        if bound_function(walk, self, before) is None:
            return None
        for table in self.tables:
            bound = walk.bind_table(self, table)
            if bound is not None:
                walk.check_message(self, bound)
        walk.need_key(self, before, any(spec.kind != "remote" for spec in self.stores))
        for text in self.unknown_loads(before):
            walk.report(self, text)
        return declared_flow(self, before, columns_of(self.returns))

    def unknown_loads(self, before: Flow) -> list[str]:
        """Say which columns that remote stores are read by are not there."""
        return [
            f"store {spec.name!r}, load=: {unknown_column(name, before.schema.names)}"
            for spec in self.stores
            for name in (spec.remote.load if spec.remote is not None else ())
            if name not in before.schema.names
        ]

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what the class reads, with the key and what its remote stores are read by."""
        return self.read_of(flows[upstream], self.uses)

    def read_of(self, before: Flow, uses: tuple[str, ...] | None) -> set[str]:
        """Return what it reads of an input of which a method uses some columns."""
        everything = set(before.schema.names)
        if uses is None:
            return everything
        present = {key for key in before.keys if key in everything}
        for spec in self.stores:
            present |= set(spec.remote.load) if spec.remote is not None else set()
        return set(uses) | present

    def describe(self) -> list[str]:
        """Return the class, how it is called, and its stores."""
        made = getattr(self.factory, "func", self.factory)
        head = f"{getattr(made, '_described', 'process with')} {called(self.factory, self.uses)}"
        calls = [] if self.calls is None else [calls_text(self.calls)]
        return [head, *calls, *self.store_rows()]

    @property
    def timer_store(self) -> str:
        """The name of the store that holds its timers."""
        return f"{self.name}.timers"

    def store_rows(self) -> list[str]:
        """Return its stores, in words."""
        tables = [
            f"broadcast store {t.name} of {t.origin} by ({', '.join(t.key)})" for t in self.tables
        ]
        return [*map(store_text, self.stores), *tables]

    def fingerprint(self, stage: StageView, before: Flow) -> dict[str, Any]:
        """Return the stores."""
        return {"kind": "process", "stores": [store_mark(spec) for spec in self.stores]}

    @property
    def state_stores(self) -> tuple[StoreSpec, ...]:
        """Those that it declares."""
        return self.stores

    @property
    def broadcast_stores(self) -> tuple[BroadcastSpec, ...]:
        """Those that it declares."""
        return self.tables

    def is_timed(self, flows: Mapping[str, Flow]) -> bool:
        """Its context has event times wherever there are any."""
        return not any(flows[name].untimed for name in self.inputs)

    @property
    def message_function(self) -> Any:
        """The class; another factory says nothing."""
        is_class = isinstance(getattr(self.factory, "func", self.factory), type)
        return self.factory if is_class else None


def calls_text(calls: CallPolicy) -> str:
    """Return how calls are made, in words."""
    how = f"in {calls.threads} threads" if calls.style == THREAD else f"by {calls.style}"
    most = "as many open as the settings say" if calls.most is None else f"up to {calls.most} open"
    orders = {
        IN: "take effect in the order of messages",
        OUT: "take effect as they end",
        KEY: "one after the other for each key",
    }
    timeout = ""
    if calls.timeout_ms is not None:
        timeout = f", timeout {duration_text(calls.timeout_ms)}"
    return f"calls {how}, {most} in a task, {orders[calls.order]}{timeout}"


@dataclass(frozen=True)
class Generate(FlatMapMessages):
    """``monoid``: partial results by key, of which an epoch sends one for each key.

    ``function`` is the user's factory; the results are the key's columns and the partial result,
    see ``graph.states``. With ``every_ms`` keys are separated by the instant they will count at.
    """

    every_ms: int | None = None

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the key and the partial result; refuse readers that would depend on epochs."""
        for reader in _readers(walk, self.name):
            if isinstance(reader, PartitionBy):
                for total in _readers(walk, reader.name):
                    _check_total(walk, total)
            elif not isinstance(reader, SendToSink | KeepForSink):
                walk.report(
                    reader,
                    "reads what a monoid keeps on a server; read the totals there, or keep them "
                    "with state='local' and every=",
                )
        return super().flow(walk, before)

    def describe(self) -> list[str]:
        """Return the class, and the columns that it reads."""
        return [f"partial results by key with {called(self.function, self.uses)}"]


def _check_total(walk: Planning, total: Operator) -> None:
    is_total = isinstance(total, RunningAggregate) and any(
        aggregate.is_per_epoch for _, aggregate in total.aggregates
    )
    if not is_total or not isinstance(total, RunningAggregate) or total.every_ms is not None:
        return
    for reader in _readers(walk, total.name):
        walk.report(
            reader,
            f"reads the totals of {total.name!r}, which sends none: they are combined once an "
            "epoch, and epochs end anywhere; give monoid(..., every=)",
        )


def _readers(walk: Planning, name: str) -> list[Operator]:
    return [operator for operator in walk.graph.operators if name in operator.inputs]
