"""``Graph``, ``Stream`` and ``job``: the fluent API. Building a graph runs nothing.

A job's function is given a ``Graph``, whose inputs begin all streams; each method of a ``Stream``
adds one operator. Functions and expressions differ by type: a Polars expression works on
columns, any other callable on messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

from headrace import plugins
from headrace.config import read_start
from headrace.durations import Duration, duration_ms
from headrace.errors import GraphError, InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.diagnostics import (
    GraphDiagnostics,
    Output,
    SinkOutput,
    at_address,
    attempt,
    name_mistake,
    plain_name,
    shown,
    sink_at,
    with_on_error,
)
from headrace.graph.event_times import (
    ConfidentLateness,
    TimeSource,
    checked_lateness,
    checked_time,
)
from headrace.graph.introspection import (
    call_mistake,
    failure_site,
    function_site,
    renamed_arguments,
    user_site,
)
from headrace.graph.joins import JoinTransforms, Table, TableTransforms
from headrace.graph.keyed_transforms import (
    KeyedTransforms,
    MonoidTransforms,
    OrderTransforms,
    ProcessTransforms,
)
from headrace.graph.operators import (
    FAIL,
    ON_ERROR,
    FrameSource,
    Input,
    JobGraph,
    KeepForSink,
    Operator,
    SendTo,
    SendToSink,
    Site,
    StoreSpec,
    frame_stream,
)
from headrace.graph.semantics import read_semantics
from headrace.graph.shared_stores import BroadcastSpec
from headrace.graph.sinks import DailyTable, Sink
from headrace.graph.stateless_transforms import RoutingTransforms, RowTransforms
from headrace.graph.types import is_record, to_schema
from headrace.graph.window_transforms import WindowTransforms


class Stream(
    RowTransforms,
    RoutingTransforms,
    KeyedTransforms,
    OrderTransforms,
    WindowTransforms,
    ProcessTransforms,
    MonoidTransforms,
    JoinTransforms,
    TableTransforms,
):
    """The output of an operator; each method adds the next operator and returns its stream."""

    def send_to(self, output: Output | SinkOutput | Sink | str, name: str | None = None) -> None:
        """Append the messages to an output stream, or send them to a sink.

        Args:
            output: the name of a stream, or an address, as for ``Graph.output``; what that or
                ``Graph.output_sink`` made; or a sink, such as ``hr.sinks.parquet(folder)``.
            name: of the operator; a sink records under it which epochs it has.
        """
        site, output = user_site(), plain_name(output)
        if isinstance(output, str) and "://" in output:
            output = sink_at(self._diagnostics, output, site)
        elif isinstance(output, str):
            output = self._diagnostics.output_of(output, site)
        elif isinstance(output, Sink):
            output = SinkOutput(self._diagnostics, output, site)
            self._diagnostics.add_sink(output, [])
        target = _as_output(output)

        def make(chosen: str, wrong: list[str]) -> Operator:
            if target is None:
                wrong.append(
                    f'send_to takes "name", g.output("name") or a sink; found {shown(output)}'
                )
                return SendTo(chosen, (self.name,), site)
            if target.diagnostics is not self._diagnostics:
                wrong.append(f"output {target.label!r} belongs to another graph")
            self._diagnostics.mark_sent(target)
            if isinstance(target, SinkOutput):
                parts = (target.sink, target.semantics, target.named, target.address)
                made = SendToSink(chosen, (self.name,), site, *parts)
                if isinstance(target.sink, DailyTable) and target.sink.late in ON_ERROR:
                    return with_on_error(wrong, made, target.sink.late)
                return made
            to = (target.stream, target.partitions, target.semantics)
            return SendTo(chosen, (self.name,), site, *to)

        self._add(f"to_{'output' if target is None else target.label}", name, make, self.keys)

    @property
    def upstream(self) -> JobGraph:
        """The operators that it is made by, each after the ones it reads."""
        before = self._diagnostics.before(self.name)
        return JobGraph(self._diagnostics.job, tuple(o for o in before if isinstance(o, Operator)))

    def sql(
        self,
        query: str,
        *,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        **others: Stream | Table[Stream],
    ) -> Stream:
        """Filter, aggregate or join with a query in SQL, as in SQL apps.

        The columns of what it reads must be known: give ``schema=`` to inputs. Needs
        ``headrace[sql]``.

        Args:
            query: one ``SELECT``, which reads this stream as ``input``, or by its name. It can have
                windows, such as ``FROM input [5 minutes]``, and ``EMIT`` at its end.
            name: names of operators and stores begin with it. Default: the stream's, and ``sql``.
            options: of windows and joins: ``allowed_lateness``, ``late``, ``updates``, ``topk``.
                With ``late`` as ``side_output``, ``side("late")`` of the result has late rows.
            functions: those that the query calls, by name; their annotations declare what they
                return, as with ``CREATE FUNCTION`` in an app.
            **others: other streams and tables that it reads, by name.

        Example:
            >>> import headrace as hr
            >>> @hr.job("spending")
            ... def spending(g: hr.Graph) -> None:
            ...     orders = g.input("orders", schema={"user": str, "price": float})
            ...     spent = orders.sql("SELECT user, sum(price) AS cents FROM input GROUP BY user")
            ...     spent.send_to("spending")
            >>> "orders.sql" in [operator.name for operator in spending.build().operators]
            True

        Raises:
            InvalidInputError: the query has a mistake, or columns are not known; shows where.
        """
        query_stream = plugins.load(plugins.QUERIES, "sql")
        prefix = name or self._diagnostics.prefix(f"{self._anchor}.sql")
        made: Stream
        made, sides = query_stream(
            self, query, prefix, user_site(), options or {}, others, functions
        )
        made._sides.update(sides)  # noqa: SLF001 - of the same class
        return made


def _as_output(value: object) -> Output | SinkOutput | None:
    return value if isinstance(value, Output | SinkOutput) else None


class Graph:
    """Collects the operators of one job, and all mistakes in them.

    Example:
        >>> import headrace as hr
        >>> @hr.job("totals")
        ... def totals(g: hr.Graph) -> None:
        ...     orders = g.input("orders", time="at").partition_by("customer")
        ...     orders.aggregate(spent=hr.agg.sum("price")).send_to(g.output("spending"))
        >>> [operator.name for operator in totals.build().operators][:2]
        ['orders', 'orders.by_customer']
    """

    def __init__(self, diagnostics: GraphDiagnostics) -> None:
        self._diagnostics = diagnostics

    @renamed_arguments(lateness="out_of_orderness")
    def input(  # noqa: PLR0913, PLR0917 - an input has so many options
        self,
        stream: str,
        time: TimeSource | None = None,
        out_of_orderness: Duration | ConfidentLateness = "0s",
        schema: Any = None,
        name: str | None = None,
        ahead: Duration | None = None,
        on_error: str = FAIL,
        start: str | datetime | None = None,
        idle: Duration | None = None,
        bootstrap: bool | None = None,
        priority: int = 0,
        idle_closes: bool = False,
    ) -> Stream:
        """Read a stream of the bus.

        Args:
            stream: its name, an alias, or a pattern such as ``errors.*`` for all matching streams,
                also future ones; all with the same columns. Or the address of a log elsewhere,
                such as ``kafka://host:9092/topic``; or a pattern of such, with ``*`` in the name.
            time: its event-time column; an expression, or a function of a message, see
                ``hr.event_time``; or ``hr.processing_time()``. By default the stream's own
                column, if it has one.
            out_of_orderness: how far out of order its records can be; the watermark stays this far
                behind the highest event time seen in each partition. With
                ``hr.confidence(0.99)``, it follows the delays of the stream.
            schema: as for ``returns``; finds mistakes without a bus. With a record class, messages
                have this class for functions without an annotation.
            name: of the operator; by default the stream's.
            ahead: how far an event time can be ahead of the epoch's wall clock. A later one is an
                error, because it would close every window before it. Default: no limit.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a record whose event time is null,
                before the year 1, after 9999 or too far ahead.
            start: where a new job starts to read: ``earliest``, ``latest``, or an event time of
                the stream, UTC without a time zone. Default: the setting ``job.start``.
            idle: how long, by the wall clock of epochs, a partition that was read to its end can
                be without new rows before it no longer holds windows back. Its later rows are
                judged by the watermark that was reached without it. Default: no limit.
            bootstrap: read it before any other input, to the end that it has when the job is
                created. Default: true for inputs of tables.
            priority: inputs with a higher priority are read first whenever they have rows.
            idle_closes: with ``idle=``: when all partitions are idle, event time passes the ends of
                all windows that have records, so that these are sent. Later records of them are
                late.
        """
        wrong: list[str] = []
        address, stream = "", plain_name(stream)
        if isinstance(stream, str) and "://" in stream:
            found = at_address(wrong, stream, "an input")
            address, stream = stream, found if "*" in found else str(name or found)
        plain = stream.replace("*", "all") if isinstance(stream, str) else stream
        if (mistake := name_mistake(plain, "a stream")) is not None:
            wrong.append(mistake)
        column, event = checked_time(wrong, time)
        lateness_ms, followed = checked_lateness(wrong, out_of_orderness)
        ahead_ms = idle_ms = None
        if ahead is not None:
            ahead_ms = attempt(wrong, lambda: duration_ms(ahead, "ahead", least=0), None)
        if idle is not None:
            idle_ms = attempt(wrong, lambda: duration_ms(idle, "idle"), None)
        given = (idle, ahead, out_of_orderness)
        if event is not None and event.is_clock and given != (None, None, "0s"):
            wrong.append("idle=, ahead= and out_of_orderness= are for event time; leave them out")
        if idle_closes and idle is None:
            wrong.append('idle_closes=True is for an input with idle=, such as idle="30s"')
        begin = None
        if start is not None:
            begin = attempt(wrong, lambda: read_start(start), None)
        columns: pa.Schema | None = None
        if schema is not None:
            columns = attempt(wrong, lambda: to_schema(schema), None)
        if columns is not None and column is not None and column not in columns.names:
            wrong.append(f"event time: {unknown_column(column, columns.names)}")
        if not isinstance(priority, int) or isinstance(priority, bool):
            wrong.append(f"priority is {priority!r}; expected a whole number")
        chosen = self._diagnostics.name(wrong, name, str(plain))
        site = user_site()
        operator = Input(
            chosen,
            (),
            site,
            stream,
            column,
            lateness_ms,
            columns,
            ahead_ms,
            begin,
            event=event,
            confidence=followed,
            idle_ms=idle_ms,
            idle_closes=idle_closes,
            bootstrap=bootstrap,
            priority=priority,
            takes=schema if is_record(schema) else None,
            address=address,
        )
        self._diagnostics.add(with_on_error(wrong, operator, on_error), wrong)
        return Stream(self._diagnostics, chosen, None, chosen)

    def input_dataframe(
        self,
        name: str,
        frame: Callable[[Any], Any],
        *,
        key: str | Sequence[str] = (),
        partitions: int | None = None,
        **options: Any,
    ) -> Stream:
        """Read a Spark DataFrame, batch or streaming, from any source of Spark.

        The driver appends its rows to an internal stream of the job, each once, whatever crashes;
        the job reads that. For a streaming DataFrame, Spark's checkpoint in the job's storage is
        the record of what was read. With ``--bounded``, the DataFrame is read to its end first; a
        batch one then goes to files of the run instead of a stream.

        Args:
            name: of the operator, and of its internal stream ``JOB.NAME.dataframe``.
            frame: gets the Spark session and returns the DataFrame, in the driver, at each start.
            key: columns that determine the partition of the internal stream. By default, rows stay
                in the order of Spark's tasks.
            partitions: of the internal stream. Default: the number of tasks of a keyed stage.
            **options: ``time``, ``out_of_orderness``, ``schema``, ``ahead``, ``on_error``,
                ``idle``, ``idle_closes``, ``bootstrap`` and ``priority``, as for ``input``. With
                ``time=`` rows are sorted by it: those of a batch DataFrame all, of a streaming one
                within a batch.
        """
        stream = self.input(frame_stream(self._diagnostics.job, str(name)), name=name, **options)
        wrong: list[str] = []
        given: Any = frame
        keys = (key,) if isinstance(key, str) else tuple(key)
        if not callable(given):
            wrong.append(
                f"found {shown(given)}; expected a function of the Spark session that returns a "
                "DataFrame, such as lambda spark: spark.read.parquet(folder)"
            )
        if partitions is not None and (not isinstance(partitions, int) or partitions < 1):
            wrong.append(f"partitions is {partitions!r}; expected a number above zero")
        for text in wrong:
            self._diagnostics.report(f"operator {name!r}", user_site(), text)
        self._diagnostics.amend(str(name), frame=FrameSource(frame, keys, partitions))
        return stream

    def table(
        self,
        stream: str,
        key: str | Sequence[str],
        *,
        history: Duration | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Table[Stream]:
        """Read a stream as a table: the last row of each key.

        Short for ``g.input(stream, ...).partition_by(*key).table(...)``.

        Args:
            stream: its name.
            key: its key columns.
            history: keep row versions by event time; see ``Stream.table``.
            name: of the operator; its rows are stored under it.
            **options: other arguments of ``input``.
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        rows = self.input(stream, **options).partition_by(*keys)
        return rows.table(history=history, name=name)

    def output(
        self, stream: str, partitions: int | None = None, semantics: str | None = None
    ) -> Output | SinkOutput:
        """Name a stream that ``send_to`` appends to.

        Args:
            stream: its name; created if it does not exist. Or the address of a log elsewhere, such
                as ``kafka://host:9092/topic``, which is written as a sink.
            partitions: of a new stream. Default: the number of tasks of the sending stage.
            semantics: ``exactly_once``, ``at_least_once`` or ``at_most_once``: how often a result
                appears in it after failures. Default: the job's.
        """
        wrong: list[str] = []
        chosen = attempt(wrong, lambda: read_semantics(semantics, "semantics"), None)
        stream = plain_name(stream)
        if isinstance(stream, str) and "://" in stream:
            if partitions is not None:
                wrong.append("partitions= is for streams; say it in the address: ?partitions=")
            return sink_at(self._diagnostics, stream, user_site(), chosen, wrong)
        output = Output(self._diagnostics, stream, partitions, user_site(), chosen)
        self._diagnostics.add_output(output, wrong)
        return output

    def output_sink(self, sink: Sink, semantics: str | None = None) -> SinkOutput:
        """Name a receiver outside Headrace that ``send_to`` sends to.

        Args:
            sink: such as ``hr.sinks.parquet(folder)`` or ``hr.sinks.postgres(url, table)``;
                ``explain`` shows its guarantee.
            semantics: ``exactly_once``, or ``at_most_once``: each epoch is passed on once, and
                lost if that fails. Default: the job's.
        """
        wrong: list[str] = []
        chosen = attempt(wrong, lambda: read_semantics(semantics, "semantics"), None)
        output = SinkOutput(self._diagnostics, sink, user_site(), chosen)
        self._diagnostics.add_sink(output, wrong)
        return output

    @renamed_arguments(grace="allowed_lateness")
    def output_table(  # noqa: PLR0913 - a table has so many options
        self,
        name: str,
        partition_by: str = "day",
        *,
        time: str | None = None,
        sort_by: str | Sequence[str] = (),
        late: str = "add",
        allowed_lateness: Duration = "0s",
        retention: Duration | None = None,
        format: str = "parquet",
        semantics: str | None = None,
    ) -> SinkOutput:
        """Name a table of the warehouse; ``send_to`` adds each row to its day.

        Readers use ``warehouse/NAME/*/*.parquet``, below the setting ``home``; the folder of a day
        is ``ds=2013-01-31``. They see complete epochs, each once.

        Args:
            name: of the table, which only this job writes.
            partition_by: ``day``, in UTC.
            time: the column that determines the day. Default: the event time.
            sort_by: columns that the rows of a file are sorted by. Default: ``time``.
            late: what happens to a row whose day was complete when it was read: ``add`` it and
                count it in ``_SUCCESS``, ``drop``, ``dead_letter`` or ``fail``. Except for
                ``add``, this also applies to rows without a time, which are otherwise an error.
            allowed_lateness: how far the watermark must be past a day for the day to be complete.
            retention: how long days are kept, such as ``90d``, from the newest one. Default: all.
            format: ``parquet``, or ``delta`` for a Delta table.
            semantics: as for ``output_sink``.
        """
        wrong: list[str] = []
        if (mistake := name_mistake(name, "a table")) is not None:
            wrong.append(mistake)
        if partition_by != "day":
            wrong.append(f"partition_by is {partition_by!r}; expected 'day'")
        by = (sort_by,) if isinstance(sort_by, str) else tuple(dict.fromkeys(sort_by))
        chosen = attempt(wrong, lambda: read_semantics(semantics, "semantics"), None)
        table = DailyTable(name, time, by, late, allowed_lateness, retention, format)
        output = SinkOutput(self._diagnostics, table, user_site(), chosen)
        self._diagnostics.add_sink(output, wrong)
        return output

    def process(
        self,
        streams: Mapping[str, Stream],
        factory: Callable[[], Any],
        stores: Mapping[str, Any] | Sequence[StoreSpec | BroadcastSpec] = (),
        returns: Any = None,
        uses: Mapping[str, Sequence[str]] | None = None,
        name: str | None = None,
        on_error: str = FAIL,
        sides: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Run your class over several streams of one key, one instance for each task.

        The class has a method ``process_NAME(message, context)`` for each stream, or
        ``process(message, context)`` for streams without one, where ``context.input`` is the
        stream's name. As for one stream, it can have ``open``, ``on_timer`` and ``close``. Stores
        and timers are shared. Messages of one epoch are handled by event time, those of one stream
        in their own order.

        Args:
            streams: by name. All are partitioned by the same number of columns, of the same types;
                the key of the result has the names of the first.
            factory: the class, or a function without arguments that returns an instance.
            stores: a dict of store names and value types, or ``hr.store(...)`` and
                ``hr.broadcast(...)`` for each; the latter are only read.
            returns: columns of the emitted messages; without it, nothing can be emitted.
            uses: for each stream, the columns to read. Default: all.
            name: of the operator; its timers are stored under it.
            on_error: ``fail``, ``drop`` or ``dead_letter``, for a message on which it raises.
            sides: columns of each side output that it can emit to with
                ``context.emit(..., to=...)``.
        """
        given: Any = streams
        first = next(iter(given.values()), None) if isinstance(given, Mapping) else None
        if not isinstance(first, Stream):
            raise InvalidInputError(
                "g.process takes a dict of streams, such as {'orders': orders, 'clicks': clicks}; "
                f"found {shown(given)}"
            )
        return first._process_with(  # noqa: SLF001 - of the same package
            streams, factory, stores, returns, uses, name, on_error, sides
        )


def with_suffixed_outputs(graph: JobGraph, suffix: str) -> JobGraph:
    """Return a graph that sends to other streams: the names it has, a dot, and a suffix.

    What it would send to a sink, which has no other name, it keeps in a stream by the names of the
    job and the operator.
    """

    def own(operator: Operator) -> Operator:
        if isinstance(operator, SendTo):
            stream = f"{operator.stream}.{suffix}"
            return replace(operator, stream=stream, output=operator.stream)
        if isinstance(operator, SendToSink):
            stream = f"{graph.name}.{operator.name}"
            return KeepForSink(operator.name, operator.inputs, operator.site, stream)
        return operator

    return replace(graph, operators=tuple(map(own, graph.operators)))


@dataclass(frozen=True)
class Job:
    """A job's name and the function that builds its graph.

    Args:
        name: under which the job is deployed and its state stored.
        function: called with a ``Graph`` once for each build.
        state_semantics, output_semantics: as of ``job``.
        merge: as of ``job``.
        apart: if not empty, outputs are separate streams: their names, a dot, and this.
    """

    name: str
    function: Callable[[Graph], object] = field(compare=False)
    state_semantics: str | None = None
    output_semantics: str | None = None
    apart: str = ""
    merge: Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any] | None] | None = field(
        default=None, compare=False
    )

    def __repr__(self) -> str:
        """Return the name, and where the function is defined."""
        return f"<job {self.name!r} of {self.site}>"

    def _repr_html_(self) -> str:
        """Return the drawn graph, or its mistakes, for notebooks."""
        try:
            return self.build()._repr_html_()
        except GraphError as error:
            return f"<pre>{escape(str(error))}</pre>"

    @property
    def site(self) -> Site:
        """Where the function is defined."""
        return function_site(self.function)

    def build(self) -> JobGraph:
        """Run the function once and return the graph; nothing else runs.

        Raises:
            GraphError: every mistake of the graph, each with its operator and the user's line.
        """
        diagnostics = GraphDiagnostics(self.name)
        if (mistake := name_mistake(self.name, "a job")) is not None:
            diagnostics.report("job", self.site, mistake)
        wrong: list[str] = []
        state = attempt(
            wrong, lambda: read_semantics(self.state_semantics, "state_semantics"), None
        )
        output = attempt(
            wrong, lambda: read_semantics(self.output_semantics, "output_semantics"), None
        )
        for text in wrong:
            diagnostics.report("job", self.site, text)
        if (mistake := call_mistake(self.function, ("g",))) is not None:
            diagnostics.report(f"function of job {self.name!r}", self.site, mistake)
            raise GraphError(self.name, diagnostics.mistakes)
        try:
            self.function(Graph(diagnostics))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            diagnostics.report("the job's function failed", failure_site(error, self.site), text)
            raise GraphError(self.name, diagnostics.mistakes) from error
        built = diagnostics.finish()
        if not built.operators and not diagnostics.mistakes:
            diagnostics.report(
                "job", self.site, "its function builds nothing; begin with g.input(...)"
            )
        if diagnostics.mistakes:
            raise GraphError(self.name, diagnostics.mistakes)
        built = replace(built, state_semantics=state, output_semantics=output)
        return with_suffixed_outputs(built, self.apart) if self.apart else built


def job(
    name: str,
    *,
    state_semantics: str | None = None,
    output_semantics: str | None = None,
    merge: Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any] | None] | None = None,
) -> Callable[[Callable[[Graph], object]], Job]:
    """Turn a function that builds a graph into a ``Job``.

    Args:
        name: under which the job is deployed and its state stored; letters, digits, ``.``, ``_``
            and ``-``.
        state_semantics: ``exactly_once``, ``at_least_once`` or ``at_most_once``: how often an
            input record counts in the job's state after failures. Default: the setting
            ``job.state_semantics``.
        output_semantics: the same for results, in outputs without semantics of their own. Default:
            the setting ``job.output_semantics``, or as the state.
        merge: a function of the live row of a key (``None`` if there is none) and the row of a
            backfill. It returns the row to append to the live stream, or to put into a keyed sink,
            or ``None`` for nothing. Default: the live row wins.

    Raises:
        InvalidInputError: the decorator was used without a name.
    """
    if not isinstance(name, str):
        raise InvalidInputError('a job needs a name: write @hr.job("name") above its function')

    def decorate(function: Callable[[Graph], object]) -> Job:
        return Job(name, function, state_semantics, output_semantics, merge=merge)

    return decorate
