"""``map``, ``flat_map`` and ``filter`` with a function on one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.operators import FilterMessages, FlatMapMessages, MapMessages
from headrace.graph.sites import function_site
from headrace.plan.stages import CallLimits
from headrace.task.chunk import Chunk, Ints
from headrace.task.dead_letters import Refused
from headrace.task.messages.mapped import NO_LIMITS, MessageCalls, too_many
from headrace.task.node import Node
from headrace.task.parcels import Parcels


class MessageNode(Node):
    """Calls a function for each message.

    Args:
        operator: with the function.
        source: schema of the messages.
        schema: schema of the results; not used by ``filter``.
        limits: of each call.
    """

    def __init__(
        self,
        operator: MapMessages | FlatMapMessages | FilterMessages,
        *,
        source: pa.Schema,
        schema: pa.Schema,
        limits: CallLimits = NO_LIMITS,
    ) -> None:
        super().__init__(operator.name)
        assert operator.function is not None
        self._kind, self._limits = type(operator), limits
        sides = () if isinstance(operator, FilterMessages) else operator.sides
        site = function_site(operator.function)
        self._parcels = Parcels(operator.name, schema, sides, site)
        convert: dict[type, Callable[[Any], Any]] = {
            FilterMessages: bool,
            FlatMapMessages: self._collected,
        }
        self._calls = MessageCalls(
            operator.name,
            operator.function,
            source=source,
            uses=operator.uses,
            limits=limits,
            convert=convert.get(self._kind),
            takes=operator.takes,
        )

    def push(self, chunk: Chunk) -> None:
        """Call the function for each row."""
        chunk, results = self._calls.results(chunk, self.guard)
        if self._kind is FilterMessages:
            kept = chunk.filter(np.fromiter(results, np.bool_, len(results)))
            self.counts["filtered"] += chunk.rows - kept.rows
            self.emit(kept)
        elif self._kind is MapMessages:
            self._send(chunk, results, None)
        else:
            flat = list(chain.from_iterable(results))
            sizes = np.fromiter(map(len, results), np.int64, len(results))
            if flat:
                self._send(chunk, flat, np.repeat(np.arange(len(results)), sizes))

    def _send(self, chunk: Chunk, results: list[Any], rows: Ints | None) -> None:
        """Send results on, one for each row unless ``rows`` says of which row each is."""
        try:
            parcels = self._parcels.packed(results)
        except InvalidInputError as error:
            of_row: Sequence[int] = range(len(results)) if rows is None else rows.tolist()
            if self.guard is None:
                raise self._parcels.told(error, results, of_row, chunk.record) from error
            fitting = self._fitting(chunk, results, of_row)
            rows = np.array([of_row[at] for at in fitting], np.int64)
            parcels = self._parcels.packed([results[at] for at in fitting])
        for parcel in parcels:
            self.emit(parcel.of(chunk, rows), parcel.side)

    def _fitting(self, chunk: Chunk, results: list[Any], rows: Sequence[int]) -> list[int]:
        """Return the places of the results of those rows of which all fit the declared columns."""
        assert self.guard is not None
        unfit: dict[int, Refused] = {}
        for row, result in zip(rows, results, strict=True):
            if row not in unfit:
                try:
                    self._parcels.packed([result])
                except InvalidInputError as error:
                    unfit[row] = Refused(row, error)
        self.guard.take(chunk, list(unfit.values()))
        return [at for at, row in enumerate(rows) if row not in unfit]

    def _collected(self, several: Any) -> list[Any]:
        """Run what is returned to its end: a generator is the user's code, too."""
        limit = self._limits.rows
        if type(several) is list and (limit is None or len(several) <= limit):
            return several.copy()  # the function may go on with its own
        if isinstance(several, str | bytes | Mapping) or not isinstance(several, Iterable):
            found = "None" if several is None else f"a {type(several).__name__} {several!r}"
            raise FunctionResultError(
                f"operator {self.name!r} returned {found:.200}; flat_map must return an iterable "
                "of messages, empty when there is nothing",
                operator=self.name,
            )
        if limit is None:
            return list(several)
        collected = list(islice(several, limit + 1))
        if len(collected) > limit:
            raise too_many(self.name, limit)
        return collected
