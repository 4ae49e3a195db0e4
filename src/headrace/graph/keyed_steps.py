"""Methods of a stream that bring equal keys together and keep state for each."""

from __future__ import annotations

import re
from typing import Self

from headrace.graph.aggregates import Aggregate
from headrace.graph.arguments import (
    TABLE_KINDS,
    attempt,
    check_kind,
    checked_aggregates,
    checked_window,
)
from headrace.graph.deduplication import checked_ids, checked_spans
from headrace.graph.durations import Duration, duration_ms
from headrace.graph.operators import (
    COLUMNAR,
    EXCHANGE,
    VIAS,
    Deduplicate,
    Operator,
    PartitionBy,
    RunningAggregate,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.sites import user_site
from headrace.graph.steps import BY, Steps
from headrace.graph.windows import LATE_SIDE, Window


class KeyedSteps(Steps):
    """``partition_by``, ``aggregate``, ``window``, ``deduplicate``."""

    _gathered: Self | None = None

    def partition_by(
        self,
        *columns: str,
        via: str = EXCHANGE,
        tasks: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Send each message to the task that owns its key; what follows may keep state.

        Args:
            *columns: the key; messages with equal values meet in one task, in order.
            via: ``exchange``: what comes before and after are steps of one epoch; or ``bus``:
                messages wait in an internal stream of the bus, and each side has epochs of its
                own, so that a slow one does not hold up the other.
            tasks: how many share the keys in a new job; ``headrace jobs rescale`` changes it later.
                Default: the setting ``job.tasks``.
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
            if tasks is not None and (type(tasks) is not int or tasks < 1):
                wrong.append(f"tasks={tasks!r}; expected a whole number from 1 on")
            way = via if via in VIAS else EXCHANGE
            return PartitionBy(chosen, (self.name,), site, keys, way, tasks)

        kind = re.sub(r"[^A-Za-z0-9._-]", "-", BY + "_".join(keys))
        return self._add(kind, name, make, keys)

    def _together(self) -> Self:
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
    ) -> Self:
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
    ) -> Self:
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
