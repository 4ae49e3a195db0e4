"""``Graph``: what a job's function is given; its inputs begin all streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.config.starts import read_start
from headrace.errors import InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.arguments import attempt, shown, with_on_error
from headrace.graph.daily import DailyTable
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.frames import FrameSource, frame_stream
from headrace.graph.kept_tables import Table
from headrace.graph.ledger import Ledger, Output, SinkOutput, name_mistake
from headrace.graph.operators import FAIL, Input, StoreSpec
from headrace.graph.semantics import read_semantics
from headrace.graph.sinks import Sink
from headrace.graph.sites import user_site
from headrace.graph.streams import Stream
from headrace.graph.tables import BroadcastSpec
from headrace.graph.times import ConfidentLateness, TimeSource, checked_lateness, checked_time
from headrace.graph.types import is_record, to_schema


class Graph:
    """Collects the operators of one job, and every mistake in them.

    Example:
        >>> import headrace as hr
        >>> @hr.job("totals")
        ... def totals(g: hr.Graph) -> None:
        ...     orders = g.input("orders", time="at").partition_by("customer")
        ...     orders.aggregate(spent=hr.agg.sum("price")).send_to(g.output("spending"))
        >>> [operator.name for operator in totals.build().operators][:2]
        ['orders', 'orders.by_customer']
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def input(  # noqa: PLR0913, PLR0917 - what an input may be told
        self,
        stream: str,
        time: TimeSource | None = None,
        lateness: Duration | ConfidentLateness = "0s",
        schema: Any = None,
        name: str | None = None,
        ahead: Duration | None = None,
        on_error: str = FAIL,
        start: str | datetime | None = None,
        idle: Duration | None = None,
        bootstrap: bool | None = None,
        priority: int = 0,
    ) -> Stream:
        """Read a stream of the bus.

        Args:
            stream: its name, an alias, or a pattern such as ``errors.*`` for all streams that
                match it, also those that come later, all with the same columns.
            time: its event-time column; an expression, or a function of a message, see
                ``hr.event_time``; or ``hr.processing_time()``. By default the stream's own
                column, if it has one.
            lateness: how far out of order its records may be; the watermark stays this far
                behind the highest event time seen in each partition. With
                ``hr.confidence(0.99)`` it follows the delays of the stream.
            schema: what ``returns`` takes; lets mistakes be found before a bus is at hand. Of a
                record class, messages are made as it where functions do not say otherwise.
            name: of the operator; by default the stream's.
            ahead: how far an event time may be ahead of the epoch's wall clock; one further
                ahead, which would close every window before it, is an error. Default: any.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a record whose event time is
                null, before 1970, after 9999 or too far ahead.
            start: where a new job begins to read: ``earliest``, ``latest``, or an event time
                of the stream's own, UTC where it names no zone. By default what the setting
                ``job.start`` says.
            idle: how long, by the wall clock of epochs, a partition that was read to its end
                may bring nothing before it no longer holds windows back. What it brings later
                is late behind the watermark that was reached without it. Default: for ever.
            bootstrap: read it to the end that it has when the job begins before any other input.
                Default: where a table is made of it.
            priority: inputs with a higher one are read first whenever they have rows.
        """
        wrong: list[str] = []
        plain = stream.replace("*", "all") if isinstance(stream, str) else stream
        if (mistake := name_mistake(plain, "a stream")) is not None:
            wrong.append(mistake)
        column, event = checked_time(wrong, time)
        lateness_ms, followed = checked_lateness(wrong, lateness)
        ahead_ms = idle_ms = None
        if ahead is not None:
            ahead_ms = attempt(wrong, lambda: duration_ms(ahead, "ahead", least=0), None)
        if idle is not None:
            idle_ms = attempt(wrong, lambda: duration_ms(idle, "idle"), None)
        if event is not None and event.is_clock and (idle, ahead, lateness) != (None, None, "0s"):
            wrong.append("idle=, ahead= and lateness= are for event time; leave them out")
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
        chosen = self._ledger.name(wrong, name, str(plain))
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
            bootstrap=bootstrap,
            priority=priority,
            takes=schema if is_record(schema) else None,
        )
        self._ledger.add(with_on_error(wrong, operator, on_error), wrong)
        return Stream(self._ledger, chosen, None, chosen)

    def input_dataframe(
        self,
        name: str,
        frame: Callable[[Any], Any],
        *,
        key: str | Sequence[str] = (),
        partitions: int | None = None,
        **options: Any,
    ) -> Stream:
        """Read a Spark DataFrame, batch or streaming: files, JDBC, Kafka, any source Spark has.

        The driver appends its rows to an internal stream of the job, each once, whoever dies; the
        job reads that. For a streaming DataFrame Spark's checkpoint, in the job's storage, is the
        truth of what was read. With ``--bounded`` the DataFrame is read to its end first.

        Args:
            name: of the operator, and of its internal stream ``JOB.NAME.dataframe``.
            frame: gets the Spark session and returns the DataFrame, in the driver, at each start.
            key: columns by whose values rows are placed in partitions of the internal stream. By
                default rows stay in the order in which Spark's tasks have them.
            partitions: of the internal stream. Default: as many as a keyed stage has tasks.
            **options: ``time``, ``lateness``, ``schema``, ``ahead``, ``on_error``, ``idle``,
                ``bootstrap`` and ``priority``, as for ``input``. With ``time=`` rows are sorted by
                it: those of a batch DataFrame all, of a streaming one within a batch.
        """
        stream = self.input(frame_stream(self._ledger.job, str(name)), name=name, **options)
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
            self._ledger.report(f"operator {name!r}", user_site(), text)
        self._ledger.amend(str(name), frame=FrameSource(frame, keys, partitions))
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
        """Read a stream as a table: the last row of each key, kept by key.

        As ``g.input(stream, ...).partition_by(*key).table(...)``.

        Args:
            stream: its name.
            key: its key columns.
            history: keep versions by event time; see ``Stream.table``.
            name: of the operator; its rows are kept by it.
            **options: further arguments of ``input``.
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        rows = self.input(stream, **options).partition_by(*keys)
        return rows.table(history=history, name=name)

    def output(
        self, stream: str, partitions: int | None = None, semantics: str | None = None
    ) -> Output:
        """Name a stream that ``send_to`` appends to.

        Args:
            stream: its name; made when it does not exist.
            partitions: of a new stream; by default as many as the sending stage has tasks.
            semantics: ``exactly_once``, ``at_least_once`` or ``at_most_once``: how often a result
                shows up in it although processes die. By default that of the job.
        """
        wrong: list[str] = []
        chosen = attempt(wrong, lambda: read_semantics(semantics, "semantics"), None)
        output = Output(self._ledger, stream, partitions, user_site(), chosen)
        self._ledger.add_output(output, wrong)
        return output

    def output_sink(self, sink: Sink, semantics: str | None = None) -> SinkOutput:
        """Name a receiver outside Headrace that ``send_to`` sends to.

        Args:
            sink: such as ``hr.sinks.parquet(folder)`` or ``hr.sinks.postgres(url, table)``; what
                it promises is said by ``explain``.
            semantics: ``exactly_once``, or ``at_most_once``: each epoch is handed over once, and
                is lost where that fails. By default that of the job.
        """
        wrong: list[str] = []
        chosen = attempt(wrong, lambda: read_semantics(semantics, "semantics"), None)
        output = SinkOutput(self._ledger, sink, user_site(), chosen)
        self._ledger.add_sink(output, wrong)
        return output

    def output_table(  # noqa: PLR0913 - what a table may be told
        self,
        name: str,
        partition_by: str = "day",
        *,
        time: str | None = None,
        sort_by: str | Sequence[str] = (),
        late: str = "add",
        grace: Duration = "0s",
        retention: Duration | None = None,
        format: str = "parquet",
        semantics: str | None = None,
    ) -> SinkOutput:
        """Name a table of the warehouse that ``send_to`` adds rows to, each to its day.

        Readers take ``warehouse/NAME/*/*.parquet``, below the setting ``home``; the folder of a
        day is ``ds=2013-01-31``. They see whole epochs, each once.

        Args:
            name: of the table, which this job alone writes.
            partition_by: ``day``, in UTC.
            time: the column whose day counts. Default: that of the event time.
            sort_by: columns that the rows of a file are sorted by. Default: ``time``.
            late: what becomes of a row whose day was complete when it came: ``add`` it and say so
                in the mark of the day, ``drop``, ``dead_letter`` or ``fail``. But for ``add``, it
                counts for rows without a time as well, which else are an error.
            grace: how far the watermark is past a day when the day is complete.
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
        table = DailyTable(name, time, by, late, grace, retention, format)
        output = SinkOutput(self._ledger, table, user_site(), chosen)
        self._ledger.add_sink(output, wrong)
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
        """Run a class of your own over several streams of one key, one instance for each task.

        The class has a method ``process_NAME(message, context)`` for each stream, or
        ``process(message, context)`` for all that have none of their own, where ``context.input``
        says which it is; and, as for one stream, may have ``open``, ``on_timer`` and ``close``.
        Stores and timers are shared. Messages that are read in one epoch come by event time, those
        of one stream in their own order.

        Args:
            streams: by the name that the class knows each by. All are partitioned by as many
                columns of the same types; the key of the result has the names of the first.
            factory: the class, or a function without arguments that makes an instance.
            stores: a dict of store names and value types, or ``hr.store(...)`` and
                ``hr.broadcast(...)`` for each; the latter are only read.
            returns: columns of what it emits; nothing may be emitted without.
            uses: for a stream, the columns of it that are read. Default: all.
            name: of the operator; its timers are kept by it.
            on_error: ``fail``, ``drop`` or ``dead_letter``: of a message it raises on.
            sides: columns of each side that it may send to with ``context.emit(..., to=...)``.
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
