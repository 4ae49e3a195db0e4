"""Values whose schemas are in a registry: each begins with the number of the one it was made by.

They are read by the rules of their format: what a value has is resolved from the writer's schema to
the newest one of the topic, as it was when the writer's was first met. Columns that neither has are
null. Values of a number that the registry does not have are bad, one by one.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import extras
from headrace.bus import StreamSpec
from headrace.errors import InvalidInputError
from headrace.kafka.address import TopicAddress
from headrace.kafka.formats import ColumnDecoder
from headrace.kafka.registry import (
    HEAD_BYTES,
    KINDS,
    Registered,
    is_headed,
    not_headed,
    number_of,
    registry_of,
)

Wrong = list[tuple[int, InvalidInputError]]
"""Which of a list of values are not as expected, and why."""

Reader = Callable[[Sequence[bytes]], tuple[pa.RecordBatch, Wrong]]
"""Makes rows of what is behind the head of values of one schema."""

UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, AttributeError)
"""What Arrow and Python raise of a value that is not of a column's type."""


class RegisteredDecoder(ColumnDecoder):
    """Reads values by the schemas of their numbers."""

    libraries: tuple[str, ...] = ()
    """Modules without which it reads nothing."""

    def __init__(self, spec: StreamSpec, address: TopicAddress) -> None:
        super().__init__(spec, address)
        self._kind = KINDS[address.option("format")]
        self._readers: dict[tuple[int, tuple[str, ...]], Reader] = {}
        self._schemas: dict[int, tuple[Registered, Registered | None]] = {}

    @abstractmethod
    def reader(self, schema: Registered, newest: Registered | None, kinds: pa.Schema) -> Reader:
        """Return what reads values of a schema.

        Args:
            schema: of the writer.
            newest: of the topic; ``None``: there is none, or it is that of the writer.
            kinds: the columns that are wanted.

        Raises:
            InvalidInputError: the schema cannot be read.
        """

    def rows(
        self, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, Wrong]:
        """Return values as these columns, and those that are not such: which, and why."""
        heads = {value[:HEAD_BYTES] for value in values}
        if len(heads) == 1 and is_headed(*heads):
            return self._of_one(number_of(*heads), values, wanted)
        groups: dict[int | None, list[int]] = {}
        for place, value in enumerate(values):
            groups.setdefault(number_of(value), []).append(place)
        wrong = [(place, not_headed(values[place])) for place in groups.pop(None, ())]
        parts, order = [_empty(self.kinds(wanted))], []
        for number, places in groups.items():
            batch, bad = self._of_one(number, [values[place] for place in places], wanted)
            gone = {at for at, _ in bad}
            wrong += [(places[at], error) for at, error in bad]
            order += [place for at, place in enumerate(places) if at not in gone]
            parts.append(batch)
        whole = pa.concat_batches(parts)
        return whole.take(pa.array(np.argsort(np.array(order, np.int64)))), wrong

    def _of_one(
        self, number: int | None, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, Wrong]:
        assert number is not None
        try:
            read = self._reader(number, wanted)
        except InvalidSchemaError as error:
            return _empty(self.kinds(wanted)), [(at, error) for at in range(len(values))]
        return read([value[HEAD_BYTES:] for value in values])

    def _reader(self, number: int, wanted: tuple[str, ...]) -> Reader:
        key = (number, wanted)
        if key not in self._readers:
            schema, newest = self._schemas_of(number)
            if schema.kind != self._kind:
                raise InvalidSchemaError(
                    f"schema {number} is of {schema.kind}, expected {self._kind}: format is "
                    f"{self.address.option('format')}"
                )
            for module in self.libraries:
                extras.load(module, "a topic with a schema registry")
            try:
                self._readers[key] = self.reader(schema, newest, self.kinds(wanted))
            except InvalidInputError as error:
                raise InvalidSchemaError(error.message) from error
        return self._readers[key]

    def _schemas_of(self, number: int) -> tuple[Registered, Registered | None]:
        """Return a schema, and the newest one of the topic, looked up when a number is new."""
        if number not in self._schemas:
            registry = registry_of(self.address)
            schema = registry.schema(number)
            if schema is None:
                raise InvalidSchemaError(
                    f"found schema {number}, which the schema registry at {registry.url} does not "
                    "have"
                )
            newest = registry.newest(self.address.subject)
            if newest is not None and (newest.number == number or newest.kind != schema.kind):
                newest = None
            self._schemas[number] = schema, newest
        return self._schemas[number]


def unwritable(
    schema: pa.Schema,
    language: str,
    names: re.Pattern[str],
    written: Callable[[pa.DataType, str], object],
) -> list[str]:
    """Return what rows of a schema cannot be written as.

    Args:
        schema: of the rows.
        language: of schemas, by its name.
        names: what a field can be called.
        written: makes the type of a field; raises ``InvalidInputError`` where there is none.
    """
    wrong = [
        f"column {name!r} is no name in {language}; rename it: letters, digits and '_'"
        for name in schema.names
        if not names.fullmatch(name)
    ]
    for field in schema:
        try:
            written(field.type, field.name)
        except InvalidInputError as error:
            wrong.append(error.message)
    return wrong


class InvalidSchemaError(InvalidInputError):
    """No value of a schema can be read; those who meet it say so of each."""


def _empty(kinds: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=kinds)


def rows_of(
    records: Sequence[Any], kinds: pa.Schema, get: Callable[[Any, str], Any], wrong: Wrong
) -> tuple[pa.RecordBatch, Wrong]:
    """Return records as columns; those that do not fit are wrong.

    Args:
        records: in the order of the values; an error in the place of one that is wrong already.
        kinds: the columns.
        get: returns what a record has for a column.
        wrong: those that are known.
    """
    bad = dict(wrong)
    good = [(at, one) for at, one in enumerate(records) if at not in bad]
    try:
        batch = _batch([one for _, one in good], kinds, get)
    except UNFIT:
        fit = []
        for at, one in good:
            try:
                _batch([one], kinds, get)
                fit.append(one)
            except UNFIT as error:
                said = str(error).splitlines()[0] if str(error) else type(error).__name__
                bad[at] = InvalidInputError(f"a field does not fit its column: {said}")
        batch = _batch(fit, kinds, get)
    return batch, sorted(bad.items())


def _batch(
    records: Sequence[Any], kinds: pa.Schema, get: Callable[[Any, str], Any]
) -> pa.RecordBatch:
    if not records:
        return _empty(kinds)
    arrays = [pa.array([get(one, field.name) for one in records], field.type) for field in kinds]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)
