"""What the tables of aggregates and windows hold: columns, buckets and their numbers on disk.

``kept_aggregates`` are the partial results of an operator, the user's and those that windows need
beside them. The bucket of a row is the end of its window for tumbling windows; 2 * end of a pane,
or 2 * end of a window + 1, where windows overlap; the end of a slice as long as the gap for
sessions; a constant for count and global windows. ``Clusters`` numbers the buckets of windows that
keep what was sent apart from what waits.

In ``Clusters`` a *place* is the end of a window, or of a slice of sessions. What was sent of it is
under 2 * place; what waits for its end under 2 * place + 1; what waits for an instant before that
under a number that holds the *step*, the end of a piece of event time, and the place: beyond
``WAITING``, or for a step before 1970 below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.graph.aggregates import Aggregate, Count, Extreme
from headrace.graph.operators import COLUMNAR, Operator, RunningAggregate, WindowAggregate
from headrace.graph.windows import CountWindow, GlobalWindow, Session, Window
from headrace.plan.stages import UNKEYED, Stage
from headrace.records.schema import TableLayout
from headrace.runtime.chunk import Ints, Mask
from headrace.runtime.windows.aggregation import Aggregation
from headrace.runtime.windows.partial_table import partial_layout

Aggregating = RunningAggregate | WindowAggregate
Aggregates = tuple[tuple[str, Aggregate], ...]

TIME, SEEN = "__time", "__seen"
"""Columns of rows: event time, and that at which a row counts."""

COUNT_COLUMN = "__n.count"
FIRST_COLUMN, LAST_COLUMN = "__first.min", "__last.max"
FIRST_SEEN, LAST_SEEN = "__since.min", "__until.max"

WAITING = 1 << 62
NEVER = 1 << 62
_LEAST_WAITING = 1 << 61
"""Between what places make, and what steps before 1970 do."""

_MOST = 1 << 48
"""Later than any event time in ms, and with a minus before any."""


def table_layouts(stage: Stage, operator: Aggregating) -> dict[str, TableLayout]:
    """Return the layout of an operator's store by its name, where that is columnar."""
    if operator.store.kind != COLUMNAR:
        return {}
    layout = partial_layout(
        aggregation_of(stage, operator),
        key_schema(stage, operator),
        buckets=has_buckets(operator),
        ttl_ms=operator.store.ttl_ms,
    )
    return {operator.store.name: layout}


def aggregation_of(stage: Stage, operator: Aggregating) -> Aggregation:
    """Return all aggregates of an operator, as expressions; made once for all tasks."""
    name = f"aggregation:{operator.name}"
    if name not in stage.derived:
        kept = kept_aggregates(operator, stage.schemas[operator.inputs[0]])
        stage.derived[name] = Aggregation(operator.name, *kept)
    made: Aggregation = stage.derived[name]
    return made


def key_schema(stage: Stage, operator: Operator) -> pa.Schema:
    """Return the key columns of a table."""
    source = stage.schemas[operator.inputs[0]]
    keys = stage.keys_of(operator)
    return pa.schema([source.field(key) for key in keys] or [(UNKEYED, pa.int64())])


def has_buckets(operator: Aggregating) -> bool:
    """Say whether rows are by bucket and key."""
    return isinstance(operator, WindowAggregate) or operator.every_ms is not None


def kept_aggregates(operator: Aggregating, source: pa.Schema) -> tuple[Aggregates, pa.Schema]:
    """Return all aggregates that the store of an operator keeps, and the columns they are of.

    Args:
        operator: with the user's aggregates.
        source: schema of the messages.
    """
    own = operator.aggregates
    window = operator.window if isinstance(operator, WindowAggregate) else None
    timed = source.append(pa.field(TIME, pa.int64()))
    if window is None:
        return own, source
    if window.is_triggered and window.is_timed:
        timed = timed.append(pa.field(SEEN, pa.int64()))
        if isinstance(window, Session):
            own += _extremes(TIME, "__first", "__last", timed)
        if window.early_rows is not None:
            own += (("__n", Count()),)
        if window.early_idle_ms is not None or window.early_within_ms is not None:
            own += _extremes(SEEN, "__since", "__until", timed)
        return own, timed
    by_rows, has_times = isinstance(window, CountWindow), isinstance(window, Session)
    if isinstance(window, GlobalWindow):
        changes_totals = window.every_ms is not None and window.updates != "replace"
        by_rows, has_times = window.rows is not None, window.idle_ms is not None or changes_totals
    if has_times:
        return own + _extremes(TIME, "__first", "__last", timed), timed
    return ((*own, ("__n", Count())) if by_rows else own), source


def _extremes(column: str, first: str, last: str, source: pa.Schema) -> Aggregates:
    least, most = Extreme(column).bind(source), Extreme(column, is_max=True).bind(source)
    return ((first, least), (last, most))


@dataclass(frozen=True)
class Clusters:
    """How clusters are numbered.

    Args:
        step_ms: length of a step; 0 where nothing waits for one.
        ahead_ms: how far the place of a row may be after its step.
        behind_ms: how far before.
    """

    step_ms: int = 0
    ahead_ms: int = 0
    behind_ms: int = 0

    @property
    def _span(self) -> int:
        return self.ahead_ms + self.behind_ms + 1

    def steps(self, moments: Ints) -> Ints:
        """Return the step in which each moment is."""
        return (moments // self.step_ms + 1) * self.step_ms

    def waiting(self, steps: Ints, places: Ints) -> Ints:
        """Return the clusters of rows that wait: for a step, or with ``NEVER`` for the end."""
        if not self.step_ms:
            return 2 * places + 1
        is_waiting = steps < NEVER
        known = np.where(is_waiting, steps, places)
        beside = known - places + self.ahead_ms
        numbers = WAITING + known // self.step_ms * self._span + beside
        return np.where(is_waiting, numbers, 2 * places + 1)

    def is_sent(self, clusters: Ints) -> Mask:
        """Say which rows were sent."""
        chosen: Mask = (clusters < _LEAST_WAITING) & (clusters % 2 == 0)
        return chosen

    def read(self, clusters: Ints) -> tuple[Ints, Ints]:
        """Return the place and the step of each; ``NEVER`` is that of rows that wait for none."""
        places, steps = clusters >> 1, np.full(len(clusters), NEVER)
        is_waiting = clusters >= _LEAST_WAITING
        if is_waiting.any():
            numbers, beside = np.divmod(clusters[is_waiting] - WAITING, self._span)
            steps[is_waiting] = numbers * self.step_ms
            places[is_waiting] = steps[is_waiting] - beside + self.ahead_ms
        return places, steps

    def ranges(self, last_place: int, last_step: int) -> list[tuple[int, int]]:
        """Return from which to which cluster rows are, up to a place or a step."""
        found = [(-2 * _MOST, 2 * min(last_place, _MOST) + 1)]
        if self.step_ms:
            number = min(last_step, _MOST) // self.step_ms + 1
            found.append((_LEAST_WAITING, WAITING + min(number * self._span, WAITING - 2)))
        return [(low, high) for low, high in found if low <= high]


def clusters_of(window: Window) -> Clusters:
    """Return how the rows of a window with triggers are kept."""
    step_ms = window.early_ms or window.early_idle_ms or 0
    if isinstance(window, Session):
        return Clusters(step_ms, window.gap_ms, step_ms + window.grace_ms)
    return Clusters(step_ms, window.width_ms, step_ms)


def steps_of(window: Window) -> int | None:
    """Return with each how many messages a window sends results, if what was sent is kept apart."""
    if isinstance(window, CountWindow):
        return window.early_rows
    if isinstance(window, GlobalWindow) and window.updates != "replace":
        return window.rows
    return None
