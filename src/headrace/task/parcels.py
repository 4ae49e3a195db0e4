"""What a user's functions send, sorted by where it goes: on, or to a side; as batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import FunctionResultError, InvalidInputError
from headrace.graph.operators import Sides, Site
from headrace.graph.sides import MAIN, To
from headrace.records.messages import from_messages
from headrace.task.chunk import Chunk, Ints


class Parcel(NamedTuple):
    """Messages that go one way: the side, their batch, their places among all (``None``: all)."""

    side: str
    batch: pa.RecordBatch
    places: list[int] | None

    def of(self, chunk: Chunk, rows: Sequence[int] | Ints | None) -> Chunk:
        """Return the messages as rows made of those of a chunk.

        Args:
            chunk: they were made of.
            rows: of which row each of all messages is; ``None``: one of each, in order.
        """
        if self.places is None:
            if rows is None:
                return chunk.with_batch(self.batch)
            return chunk.derive(self.batch, np.asarray(rows, np.int64))
        own = self.places if rows is None else [rows[at] for at in self.places]
        return chunk.derive(self.batch, np.asarray(own, np.int64))


class Parcels:
    """Sorts the messages of one operator.

    Args:
        operator: its name.
        schema: of what is sent on; ``None``: nothing may be.
        sides: columns of each side.
        site: of the function, for errors.
    """

    def __init__(
        self, operator: str, schema: pa.Schema | None, sides: Sides = (), site: Site | None = None
    ) -> None:
        self._operator, self._schema = operator, schema
        self._sides, self._site = dict(sides), site or Site()

    @property
    def sides(self) -> list[str]:
        """The sides that are declared."""
        return list(self._sides)

    def unknown(self, side: object) -> FunctionResultError:
        """Return the error for a message to a side that is not declared."""
        return FunctionResultError(
            f"operator {self._operator!r} sent a message to side {side!r}, but declares "
            f"{self.sides or 'none'}; add it to sides={{...}}",
            operator=self._operator,
        )

    def packed(self, messages: Sequence[Any]) -> list[Parcel]:
        """Return messages in parcels, none of them empty; what goes on comes first.

        Raises:
            FunctionResultError: a message does not fit the columns that it should have, or
                names a side that is not declared.
        """
        places: dict[str, list[int]] = {}
        if self._sides:
            for at, message in enumerate(messages):
                side = message.side if type(message) is To else MAIN
                places.setdefault(side, []).append(at)
        if not places or list(places) == [MAIN]:
            return [Parcel(MAIN, self._main(messages), None)] if messages else []
        parcels = []
        if MAIN in places:
            own = places.pop(MAIN)
            parcels.append(Parcel(MAIN, self._main([messages[at] for at in own]), own))
        for side, own in places.items():
            if side not in self._sides:
                raise self.unknown(side)
            name = f"{self._operator}.{side}"
            batch = from_messages([messages[at].message for at in own], self._sides[side], name)
            parcels.append(Parcel(side, batch, own))
        return parcels

    def told(
        self,
        error: InvalidInputError,
        messages: Sequence[Any],
        rows: Sequence[int] | None,
        record: Callable[[int], dict[str, Any]],
    ) -> InvalidInputError:
        """Return the error of messages that do not fit with the user's line, and what it met.

        Args:
            error: of ``packed``.
            messages: that were given to it.
            rows: of which row each of them is made; ``None``: one of each, in order.
            record: returns a row.
        """
        for at, message in enumerate(messages):
            try:
                self.packed([message])
            except FunctionResultError as first:
                row = at if rows is None else rows[at]
                return first.met(str(self._site), record(row))
            except InvalidInputError:
                break
        return error

    def _main(self, messages: Sequence[Any]) -> pa.RecordBatch:
        if self._schema is None:
            self._refuse_sides(messages)
            raise InvalidInputError(
                f"operator {self._operator!r} emitted {messages[0]!r:.200} but declares no "
                "columns; give process(returns=...)",
                operator=self._operator,
            )
        try:
            return from_messages(messages, self._schema, self._operator)
        except FunctionResultError:
            self._refuse_sides(messages)
            raise

    def _refuse_sides(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if type(message) is To:
                raise self.unknown(message.side)
