"""``Stream``: the fluent API. Each method adds one operator to the graph and runs nothing.

Functions and expressions are told apart by type: a Polars expression works on columns, any
other callable on messages. Mistakes go to the graph, which reports all of them at build.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from headrace.graph.aggregates import Aggregate
from headrace.graph.arguments import (
    TABLE_KINDS,
    attempt,
    check_kind,
    checked_aggregates,
    checked_stores,
    checked_uses,
    checked_window,
    shown,
)
from headrace.graph.deduplication import checked_ids, checked_spans
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.ledger import Output, SinkOutput
from headrace.graph.operators import (
    COLUMNAR,
    EXCHANGE,
    FAIL,
    VIAS,
    Deduplicate,
    JoinTable,
    Operator,
    PartitionBy,
    Process,
    RunningAggregate,
    SendTo,
    SendToSink,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.route_steps import RouteSteps
from headrace.graph.row_steps import RowSteps
from headrace.graph.signatures import process_mistakes
from headrace.graph.sinks import Sink
from headrace.graph.sites import user_site
from headrace.graph.steps import BY
from headrace.graph.tables import (
    JOIN_WAYS,
    BroadcastSpec,
    as_broadcast,
    join_columns,
    taken_columns,
)
from headrace.graph.types import to_schema
from headrace.graph.window_steps import WindowSteps
from headrace.graph.windows import LATE_SIDE, Window


class Stream(RowSteps, RouteSteps, WindowSteps):
    """What leaves one operator; each method adds the next operator and returns its stream."""

    _gathered: Stream | None = None

    def partition_by(self, *columns: str, via: str = EXCHANGE, name: str | None = None) -> Stream:
        """Send each message to the task that owns its key; what follows may keep state.

        Args:
            *columns: the key; messages with equal values meet in one task, in order.
            via: ``exchange``: what comes before and after are steps of one epoch; or ``bus``:
                messages wait in an internal stream of the bus, and each side has epochs of its
                own, so that a slow one does not hold up the other.
            name: of the operator; by default made of the columns.
        """
        site = user_site()
        keys = tuple(column for column in columns if isinstance(column, str))

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(keys) < len(columns) or not keys:
                wrong.append(f"partition_by takes names of columns; found {list(columns)}")
            if len(set(keys)) < len(keys):
                wrong.append(f"partition_by names a column twice in {list(keys)}")
            if via not in VIAS:
                wrong.append(f"via is {via!r}; expected {' or '.join(map(repr, VIAS))}")
            return PartitionBy(chosen, (self.name,), site, keys, via if via in VIAS else EXCHANGE)

        kind = re.sub(r"[^A-Za-z0-9._-]", "-", BY + "_".join(keys))
        return self._add(kind, name, make, keys)

    def _together(self) -> Stream:
        """Send all messages to one task, as if they had one key; once, for all that need it."""
        if self._gathered is not None:
            return self._gathered
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            return PartitionBy(chosen, (self.name,), site, ())

        self._gathered = self._add(f"{BY}nothing", None, make, ())
        return self._gathered

    def aggregate(
        self,
        every: Duration | None = None,
        store: str = "columnar",
        name: str | None = None,
        ttl: Duration | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Keep totals for each key over all messages so far.

        Args:
            every: send the totals of changed keys each time event time passes a multiple of
                it, with column ``at``. Default: the new totals after each message.
            store: ``columnar``; or ``rocksdb`` or ``memory``, where totals are entries by key.
            name: of the operator; its state is kept by it.
            ttl: time to live: totals of a key that had no message for so long, by the wall
                clock of the epochs, begin anew. Default: they stay.
            **aggregates: by name of the result column.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            every_ms = ttl_ms = None
            if ttl is not None:
                ttl_ms = attempt(wrong, lambda: duration_ms(ttl, "ttl"), None)
            if every is not None:
                every_ms = attempt(wrong, lambda: duration_ms(every, "every"), None)
            taken = {"at"} if every is not None else set()
            kept = checked_aggregates(wrong, "aggregate", aggregates, self.keys, taken)
            check_kind(wrong, chosen, store, TABLE_KINDS)
            self._ledger.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, store, ttl_ms=ttl_ms)
            return RunningAggregate(chosen, (self.name,), site, kept, every_ms, spec)

        return self._add("aggregate", name, make, self.keys)

    def window(
        self,
        window: Window,
        store: str = "columnar",
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Keep totals for each key and window, sent once when it closes.

        The result has the key, ``window_start``, ``window_end`` and the aggregates; its event
        time is the last millisecond of the window. Windows without event time have neither.
        Without a ``partition_by`` before it, all messages are of one key, which no column shows.

        Args:
            window: such as ``hr.tumbling("1h")``, ``hr.hopping("1h", every="5m")``,
                ``hr.sliding("1h")``, ``hr.session("30m")``, ``hr.count_window(100)`` or
                ``hr.global_window()``.
            store: ``columnar``; or ``rocksdb`` or ``memory``, where totals are entries by key.
            name: of the operator; its state is kept by it.
            **aggregates: by name of the result column.
        """
        if self.keys is None:
            return self._together().window(window, store, name, **aggregates)
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            shape = checked_window(wrong, window)
            taken = {*shape.heads, *shape.flags}
            kept = checked_aggregates(wrong, "window", aggregates, self.keys, taken)
            check_kind(wrong, chosen, store, TABLE_KINDS)
            self._ledger.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, store)
            return WindowAggregate(chosen, (self.name,), site, shape, kept, spec)

        made = self._add("window", name, make, self.keys)
        if isinstance(window, Window) and window.late == "side_output":
            made._sides[LATE_SIDE] = made._port(LATE_SIDE, site)  # noqa: SLF001 - of the same class
        return made

    def deduplicate(
        self,
        *columns: str,
        within: Duration | None = None,
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> Self:
        """Pass on the first row of each id, and none that follows with the same one.

        A row with null in its id has none, and is passed on.

        Args:
            *columns: the id; the key must be among them. Default: the key.
            within: how far in event time a row with the same id is another copy; ids are
                forgotten once the watermark is so far past. A row that is itself so far behind
                the watermark is late, and dropped.
            ttl: without ``within``, how long an id is kept by the wall clock of the epochs.
                Default: for good.
            name: of the operator; its ids are kept by it.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            ids = checked_ids(wrong, columns, self.keys)
            within_ms, kept_ms = checked_spans(wrong, within, ttl)
            self._ledger.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, COLUMNAR, ttl_ms=kept_ms)
            return Deduplicate(chosen, (self.name,), site, ids, within_ms, spec)

        return self._add("deduplicate", name, make, self.keys)

    def process(
        self,
        factory: Callable[[], Any],
        stores: Mapping[str, Any] | Sequence[StoreSpec | BroadcastSpec] = (),
        returns: Any = None,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Run a class of your own, one instance for each task.

        The class has ``process(message, context)`` and may have ``open(context)``,
        ``on_timer(timer, context)`` and ``close()``; it sends with ``context.emit``.

        Args:
            factory: the class, or a function without arguments that makes an instance.
            stores: a dict of store names and value types, or ``hr.store(...)`` and
                ``hr.broadcast(...)`` for each; the latter are only read.
            returns: columns of what it emits; nothing may be emitted without.
            uses: the columns it reads; its message has only these. Default: all.
            name: of the operator; its timers are kept by it.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
            sides: columns of each side that it may send to with ``context.emit(..., to=...)``.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            wrong += process_mistakes(factory)
            specs, tables = checked_stores(wrong, stores, self.keys)
            self._ledger.claim_stores(wrong, chosen, [spec.name for spec in specs])
            for table in tables:
                self._ledger.claim_table(wrong, table)
            schema = None
            if returns is not None:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            columns = checked_uses(wrong, uses)
            return Process(chosen, (self.name,), site, factory, schema, columns, specs, tables)

        return self._add("process", name, make, self.keys, on_error, sides)

    def join_table(
        self,
        table: BroadcastSpec,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: str = "left",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """Add columns of a broadcast store, looked up by the key of each message.

        Needs no ``partition_by``: each task has the whole table. Null matches nothing.

        Args:
            table: from ``hr.broadcast``.
            on: the columns with the key: in the order of the table's key, or a dict from
                column to key column. Default: columns of the same names.
            how: ``left`` keeps messages without a match, with nulls; ``inner`` drops them.
            columns: of the table to add, or a dict from new name to column. Default: all but
                the key.
            name: of the operator.
        """
        site = user_site()
        spec = as_broadcast(table)

        def make(chosen: str, wrong: list[str]) -> Operator:
            if spec is None:
                wrong.append(f"join_table takes hr.broadcast(...); found {shown(table)}")
                return JoinTable(chosen, (self.name,), site)
            self._ledger.claim_table(wrong, spec)
            if how not in JOIN_WAYS:
                wrong.append(f"join_table(how={how!r}); expected one of {JOIN_WAYS}")
            by = join_columns(wrong, spec, on)
            return JoinTable(chosen, (self.name,), site, spec, by, how, taken_columns(columns))

        return self._add("join_table", name, make, self.keys)

    def send_to(self, output: Output | SinkOutput | Sink, name: str | None = None) -> None:
        """Append the messages to an output stream, or send them to a receiver outside.

        Args:
            output: from ``Graph.output`` or ``Graph.output_sink``; or a sink, such as
                ``hr.sinks.parquet(folder)``.
            name: of the operator; a sink knows by it which epochs it has.
        """
        site = user_site()
        if isinstance(output, Sink):
            output = SinkOutput(self._ledger, output, site)
            self._ledger.add_sink(output)
        target = _as_output(output)

        def make(chosen: str, wrong: list[str]) -> Operator:
            if target is None:
                wrong.append(f'send_to takes g.output("name") or a sink; found {shown(output)}')
                return SendTo(chosen, (self.name,), site)
            if target.ledger is not self._ledger:
                wrong.append(f"output {target.label!r} belongs to another graph")
            self._ledger.mark_sent(target)
            if isinstance(target, SinkOutput):
                return SendToSink(chosen, (self.name,), site, sink=target.sink)
            return SendTo(chosen, (self.name,), site, target.stream, target.partitions)

        self._add(f"to_{'output' if target is None else target.label}", name, make, self.keys)


def _as_output(value: object) -> Output | SinkOutput | None:
    return value if isinstance(value, Output | SinkOutput) else None
