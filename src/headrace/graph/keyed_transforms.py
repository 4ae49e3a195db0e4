"""Methods of a stream that bring equal keys together and keep state for each.

``partition_by``, ``aggregate``, ``window``, ``deduplicate``, ``in_order``; then ``process`` with a
class of the user's own, and ``monoid``: totals of a ``MonoidProcessor``, here or on a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import pyarrow as pa

from headrace.durations import Duration, duration_ms
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate, NamedAggregate
from headrace.graph.diagnostics import (
    TABLE_KINDS,
    attempt,
    carrier_mistakes,
    check_kind,
    checked_aggregates,
    checked_ids,
    checked_retention,
    checked_stores,
    checked_uses,
    checked_window,
    given_aggregates,
    shown,
)
from headrace.graph.introspection import user_names, user_site
from headrace.graph.joins import keys_mistake
from headrace.graph.operators import (
    COLUMNAR,
    EXCHANGE,
    FAIL,
    LATE_WAYS,
    VIAS,
    Deduplicate,
    Generate,
    InOrder,
    Operator,
    PartitionBy,
    Process,
    RunningAggregate,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.processors import (
    PARTIAL,
    MonoidProcessor,
    MonoidTotal,
    PartialSink,
    ProcessSeveral,
    StatefulProcessor,
    check_local,
    checked_calls,
    checked_inputs,
    contract_mistakes,
    contract_of,
    given_mistakes,
    multi_input_mistakes,
    returned_type,
    state_type,
    with_state,
)
from headrace.graph.shared_stores import BroadcastSpec
from headrace.graph.stateless_transforms import BY, StreamBase
from headrace.graph.types import arrow_type, to_schema
from headrace.graph.windows import LATE_SIDE, Window


def _via_mistakes(via: object) -> list[str]:
    if via in VIAS:
        return []
    if isinstance(via, str) and "://" in via:
        return carrier_mistakes(via)
    expected = ", ".join(map(repr, VIAS))
    return [f"via is {via!r}; expected {expected} or an address such as kafka://HOST:9092/TOPIC"]


class KeyedTransforms(StreamBase):
    """``partition_by``, ``aggregate``, ``window``, ``deduplicate``."""

    _gathered: Self | None = None

    def partition_by(
        self,
        *columns: str,
        via: str = EXCHANGE,
        tasks: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Send each message to the task that owns its key; later operators can keep state.

        Args:
            *columns: the key; messages with equal values meet in one task, in order.
            via: ``exchange``: the operators before and after are steps of one epoch; or ``bus``:
                messages wait in an internal stream of the bus, and each side has its own epochs,
                so that a slow side does not hold up the other. With an address, such as
                ``kafka://HOST:9092/TOPIC``, a topic of the job's own carries that stream.
            tasks: number of tasks that share the keys in a new job; change it later with
                ``headrace jobs rescale``. Default: the setting ``job.tasks``.
            name: of the operator; by default made of the columns.
        """
        site = user_site()
        keys = tuple(column for column in columns if isinstance(column, str))

        def make(chosen: str, wrong: list[str]) -> Operator:
            if len(keys) < len(columns) or not keys:
                wrong.append(f"partition_by takes names of columns; found {list(columns)}")
            if len(set(keys)) < len(keys):
                wrong.append(f"partition_by names a column twice in {list(keys)}")
            mistakes = _via_mistakes(via)
            wrong += mistakes
            if tasks is not None and (type(tasks) is not int or tasks < 1):
                wrong.append(f"tasks={tasks!r}; expected a whole number from 1 on")
            way = EXCHANGE if mistakes else via
            return PartitionBy(chosen, (self.name,), site, keys, way, tasks)

        kind = re.sub(r"[^A-Za-z0-9._-]", "-", BY + "_".join(keys))
        return self._add(kind, name, make, keys)

    def gather(self) -> Self:
        """Send all messages to one task, as if they had one key, whatever key they have now.

        A window or an aggregate without ``partition_by`` before it does that by itself.
        """
        if self._gathered is not None:
            return self._gathered
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            return PartitionBy(chosen, (self.name,), site, ())

        self._gathered = self._add(f"{BY}nothing", None, make, ())
        return self._gathered

    def aggregate(
        self,
        *columns: NamedAggregate | Mapping[str, Aggregate],
        every: Duration | None = None,
        store: str = "columnar",
        name: str | None = None,
        ttl: Duration | None = None,
        **aggregates: Aggregate,
    ) -> Self:
        """Compute totals for each key over all messages so far.

        Args:
            *columns: aggregates with the names of their columns: ``hr.agg.count().alias("n")``, or
                a dict by name.
            every: emit the totals of changed keys each time event time passes a multiple of it,
                with column ``at``. Default: the new totals after each message.
            store: ``columnar``; or ``rocksdb`` or ``memory``, with totals as entries by key.
            name: of the operator; its state is stored under it.
            ttl: time to live: totals of a key without a message for this long, by the wall clock
                of the epochs, start over. Default: they stay.
            **aggregates: by name of the result column.
        """
        site, early = user_site(), list[str]()
        options: dict[str, Any] = {"every": every, "store": store, "name": name, "ttl": ttl}
        found = given_aggregates(early, "aggregate", columns, aggregates, options)
        every, store, name, ttl = options.values()

        def make(chosen: str, wrong: list[str]) -> Operator:
            every_ms = ttl_ms = None
            if ttl is not None:
                ttl_ms = attempt(wrong, lambda: duration_ms(ttl, "ttl"), None)
            if every is not None:
                every_ms = attempt(wrong, lambda: duration_ms(every, "every"), None)
            taken = {"at"} if every is not None else set()
            wrong += early
            kept = checked_aggregates(wrong, "aggregate", found, self.keys, taken)
            check_kind(wrong, chosen, store, TABLE_KINDS)
            self._diagnostics.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, store, ttl_ms=ttl_ms)
            return RunningAggregate(chosen, (self.name,), site, kept, every_ms, spec)

        return self._add("aggregate", name, make, self.keys)

    def window(
        self,
        window: Window,
        *columns: NamedAggregate | Mapping[str, Aggregate],
        store: str = "columnar",
        name: str | None = None,
        **aggregates: Aggregate,
    ) -> Self:
        """Compute aggregates for each key and window, emitted once when it closes.

        The result has the key, ``window_start``, ``window_end`` and the aggregates; its event time
        is the last millisecond of the window. Windows without event time have no bounds. Without a
        ``partition_by`` before it, the window covers all messages, without a key column, and its
        results go to the first partition of an output.

        Args:
            window: such as ``hr.tumbling("1h")``, ``hr.hopping("1h", every="5m")``,
                ``hr.sliding("1h")``, ``hr.session("30m")``, ``hr.count_window(100)`` or
                ``hr.global_window()``.
            *columns: aggregates with the names of their columns: ``hr.agg.count().alias("n")``, or
                a dict by name.
            store: ``columnar``; or ``rocksdb`` or ``memory``, with totals as entries by key.
            name: of the operator; its state is stored under it.
            **aggregates: by name of the result column.
        """
        if self.keys is None:
            return self.gather().window(window, *columns, store=store, name=name, **aggregates)
        site, early = user_site(), list[str]()
        options: dict[str, Any] = {"store": store, "name": name}
        found = given_aggregates(early, "window", columns, aggregates, options)
        store, name = options.values()

        def make(chosen: str, wrong: list[str]) -> Operator:
            shape = checked_window(wrong, window)
            taken = {*shape.heads, *shape.flags}
            wrong += early
            kept = checked_aggregates(wrong, "window", found, self.keys, taken)
            check_kind(wrong, chosen, store, TABLE_KINDS)
            self._diagnostics.claim_stores(wrong, chosen, [chosen])
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
        """Pass on the first row of each id, and drop later rows with the same id.

        A row with null in its id has no id, and is passed on.

        Args:
            *columns: the id; the key must be among them. Default: the key.
            within: how far apart in event time rows with the same id are duplicates; ids are
                removed when the watermark is this far past. A row that is this far behind the
                watermark is late, and dropped.
            ttl: without ``within``, how long an id is kept by the wall clock of the epochs.
                Default: forever.
            name: of the operator; its ids are stored under it.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            ids = checked_ids(wrong, columns, self.keys)
            within_ms, kept_ms = checked_retention(wrong, within, ttl)
            self._diagnostics.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, COLUMNAR, ttl_ms=kept_ms)
            return Deduplicate(chosen, (self.name,), site, ids, within_ms, spec)

        return self._add("deduplicate", name, make, self.keys)


class OrderTransforms(StreamBase):
    """``in_order``."""

    def in_order(self, *, late: str = "drop", name: str | None = None) -> Self:
        """Pass rows on in the order of event time, each when the watermark has passed it.

        Later operators see the rows of a key in one order, whatever their partitions and epochs:
        by event time; for equal times, rows of one partition in their own order. Rows wait for the
        watermark, in a table.

        Args:
            late: ``drop``: rows behind the watermark of their own partition are counted.
                ``side_output``: they also go unchanged to the side output ``late`` of the result.
            name: of the operator; waiting rows are stored under it.
        """
        site = user_site()

        def make(chosen: str, wrong: list[str]) -> Operator:
            if not self.keys:
                wrong.append("in_order keeps rows by their key: put partition_by before it")
            if late not in LATE_WAYS:
                wrong.append(f"in_order(late={late!r}); expected one of {LATE_WAYS}")
            self._diagnostics.claim_stores(wrong, chosen, [chosen])
            spec = StoreSpec(chosen, COLUMNAR, ttl_ms=1)
            return InOrder(chosen, (self.name,), site, late, spec)

        made = self._add("in_order", name, make, self.keys)
        if late == LATE_WAYS[1]:
            made._sides[LATE_SIDE] = made._port(LATE_SIDE, site)  # noqa: SLF001 - of the same class
        return made


class ProcessTransforms(StreamBase):
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
        """Run your class, one instance for each task.

        The class has ``process(message, context)`` and can have ``open(context)``,
        ``on_timer(timer, context)`` and ``close()``; it emits with ``context.emit``. Or it derives
        from ``hr.StatelessProcessor`` or ``hr.StatefulProcessor``, which return their outputs. If
        ``process`` is ``async def``, many calls are open at a time: see the guide.

        Args:
            factory: the class, or a function without arguments that returns an instance.
            stores: a dict of store names and value types, or ``hr.store(...)`` and
                ``hr.broadcast(...)`` for each; the latter are read-only. A ``StatefulProcessor``
                always has one; declare a store called ``state`` to choose its kind.
            returns: columns of the emitted messages; without it, nothing can be emitted.
            uses: the columns that it reads; its message has only these. Default: all.
            name: of the operator; its timers are stored under it.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
            sides: columns of each side output that it can emit to with
                ``context.emit(..., to=...)``.
            max_concurrency: most open calls in a task: of ``async def process``, of
                ``process_async(message, context, callback)``, or of threads. Default: that of the
                settings, or the number of threads.
            order: in which such calls take effect: ``in``: that of the messages; ``out``: as they
                end; ``key``: as they end, those of one key in order. Default: ``in``.
            timeout: of one call of ``async def process`` or of a thread. Default: that of the
                settings.
            callback_timeout: how long the callback of ``process_async`` can take.
            threads: run a plain ``process`` in a pool of this many threads.
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
            self._diagnostics.claim_stores(wrong, chosen, [spec.name for spec in specs])
            for table in tables:
                self._diagnostics.claim_table(wrong, table)
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
            wrong += multi_input_mistakes(factory, list(streams))
            specs, tables = checked_stores(wrong, stores, self.keys)
            self._diagnostics.claim_stores(wrong, chosen, [spec.name for spec in specs])
            for table in tables:
                self._diagnostics.claim_table(wrong, table)
            schema = None
            if returns is not None:
                schema = attempt(wrong, lambda: to_schema(returns), None)
            names = list(streams)[: len(inputs)]
            sources = checked_inputs(wrong, factory, names, uses, user_names())
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
            if not isinstance(stream, StreamBase):
                wrong.append(f"process of several streams takes streams; found {shown(stream)}")
                continue
            if stream._diagnostics is not self._diagnostics:  # noqa: SLF001 - of the same class
                wrong.append(f"stream {stream.name!r} belongs to another graph")
            elif stream.name in found:
                wrong.append(f"stream {stream.name!r} is given twice")
            elif mistake := keys_mistake(self.name, self.keys, stream.name, stream.keys, "process"):
                wrong.append(mistake)
            found.append(stream.name)
        return tuple(found)


LOCAL, VALUE = "local", "value"


class MonoidTransforms(StreamBase):
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
        """Compute totals by keys that a ``MonoidProcessor`` derives from messages.

        Needs no ``partition_by``. Partial results of a key are combined in memory. An epoch sends
        one for each key, either to the task that stores the key's total, or to a server, which
        appends it to the key's entry without reading that. Emitted rows have the key and the
        column ``value``.

        Args:
            factory: the class, or ``functools.partial`` of it.
            key: names and types of the key's columns.
            state: ``"local"``; or a server, such as ``hr.sinks.redis_partials(url, ...)``, whose
                totals you read with ``totals(factory)`` of the same object.
            every: for local state: emit the totals of changed keys each time event time passes a
                multiple of it, with column ``at``. Default: nothing is emitted.
            store: for local state: ``columnar``, ``rocksdb`` or ``memory``.
            uses: the columns the class reads. Default: all.
            name: of the operator; its state is stored under it.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
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
            function = cast("Any", factory)
            return Generate(
                chosen, (self.name,), site, function, columns, uses=read, every_ms=every_ms
            )

        made = self._add("generate", None, generate, (), on_error)
        if isinstance(state, PartialSink):
            cast("Any", made).send_to(state.of(factory, total.state), name)
            return made
        keys = [column for column in columns.names if column != PARTIAL]
        keyed = cast("Any", made).partition_by(*keys)

        def keep(chosen: str, mistakes: list[str]) -> Operator:
            check_kind(mistakes, chosen, store, TABLE_KINDS)
            self._diagnostics.claim_stores(mistakes, chosen, [chosen])
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
