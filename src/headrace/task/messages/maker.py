"""Makes messages of batches: as what the function takes, a whole batch at a time."""

from __future__ import annotations

import datetime
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa

from headrace.errors import HeadraceError, InvalidInputError, MessageTypeError
from headrace.graph.message_classes import bare, record_fields
from headrace.graph.operators import Site
from headrace.records.messages import columns_to_lists, message_type, to_messages
from headrace.task.chunk import Chunk
from headrace.task.dead_letters import Guard, Refused, without
from headrace.task.messages.calls import UserFunctionError

_AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_ROW = re.compile(r"^\$\[(\d+)\]\.?")
_TIMES = (datetime.datetime, datetime.date, datetime.timedelta)
_PLAIN = frozenset((bool, int, float, str, bytes, Decimal, Any, object, *_TIMES))


class _Column(NamedTuple):
    """How a column becomes a field: ``kind``, a list type, where values are converted."""

    name: str
    kind: Any | None
    is_optional: bool


class MessageMaker:
    """Makes the messages of one operator.

    Args:
        operator: its name.
        schema: of the rows.
        uses: columns that messages have; ``None``: all.
        takes: ``dict``, a record class, or ``None`` for a message with attributes.
        site: of the function, for errors.
        nested: the column whose lists of structs are lists of messages, where ``takes`` is none.
    """

    def __init__(
        self,
        operator: str,
        schema: pa.Schema,
        uses: Sequence[str] | None,
        takes: Any = None,
        site: Site | None = None,
        nested: str | None = None,
    ) -> None:
        self._operator, self._takes, self._site = operator, takes, site or Site()
        self.columns = list(uses) if uses is not None else list(schema.names)
        self._fields: list[_Column] = []
        if takes is None:
            kept = pa.schema([schema.field(name) for name in self.columns])
            kind = message_type("Message", kept)
            self._make: Callable[[pa.RecordBatch], list[Any]] = lambda b: to_messages(
                b, kind, nested
            )
        elif takes is dict:
            self._make = _dicts(self.columns)
        else:
            self._make = self._records(takes)

    def make(self, batch: pa.RecordBatch) -> list[Any]:
        """Return one message for each row.

        Raises:
            MessageTypeError: a row that does not fit the class; names the first one.
            UserFunctionError: the class itself raised.
        """
        try:
            return self._make(batch.select(self.columns))
        except HeadraceError:
            raise
        except Exception as error:
            if batch.num_rows > 1:  # the class's own: find the record
                for row in range(batch.num_rows):
                    self.make(batch.slice(row, 1))
            met = batch.select(self.columns).to_pylist()[0]
            raise UserFunctionError.of(self._operator, error, met, "record") from error

    def of(self, chunk: Chunk, guard: Guard | None) -> tuple[Chunk, list[Any]]:
        """Return the rows of which messages can be made, and these; the guard takes the others."""
        try:
            return chunk, self.make(chunk.batch)
        except InvalidInputError:
            if guard is None:
                raise
        refused = list(self._refused(chunk.batch))
        guard.take(chunk, refused)
        chunk = without(chunk, refused)
        return chunk, self.make(chunk.batch)

    def _refused(self, batch: pa.RecordBatch) -> Iterator[Refused]:
        for row in range(batch.num_rows):
            try:
                self.make(batch.slice(row, 1))
            except InvalidInputError as error:
                yield Refused(row, error)

    def _records(self, takes: Any) -> Callable[[pa.RecordBatch], list[Any]]:
        known = {field.name: field for field in record_fields(takes)}
        self.columns = [name for name in known if name in self.columns]
        self._fields = [_column(name, known[name].hint) for name in self.columns]
        names = list(self.columns)
        if typing.is_typeddict(takes):
            whole: Callable[[list[list[Any]]], list[Any]] = _dicts_of(names)
        elif names == _positional(takes)[: len(names)] and names:
            whole = lambda lists: list(map(takes, *lists))  # noqa: E731
        else:
            whole = lambda lists: [takes(**row) for row in _dicts_of(names)(lists)]  # noqa: E731

        def make(batch: pa.RecordBatch) -> list[Any]:
            if not names:
                return [takes() for _ in range(batch.num_rows)]
            return whole(self._values(batch))

        return make

    def _values(self, batch: pa.RecordBatch) -> list[list[Any]]:
        lists = columns_to_lists(batch)
        for at, (column, field) in enumerate(zip(batch.columns, self._fields, strict=True)):
            if not field.is_optional and column.null_count:
                row = lists[at].index(None)
                raise self._unfit(batch, row, field.name, "is null; let it be optional: | None")
            if field.kind is not None:
                lists[at] = self._converted(batch, field, lists[at])
        return lists

    def _converted(self, batch: pa.RecordBatch, field: _Column, values: list[Any]) -> list[Any]:
        try:
            made: list[Any] = msgspec.convert(values, field.kind)
        except msgspec.ValidationError as error:
            found = _AT.fullmatch(str(error))
            path = (found and found["path"]) or "$[0]"
            row = _ROW.match(path)
            assert row is not None
            inner = path[row.end() :].replace("[...]", "[]")
            name = ".".join(part for part in (field.name, inner) if part)
            reason = found["reason"] if found else str(error)
            text = f"does not fit: {reason[:1].lower()}{reason[1:]}"
            raise self._unfit(batch, int(row[1]), name, text) from error
        return made

    def _unfit(self, batch: pa.RecordBatch, row: int, field: str, text: str) -> MessageTypeError:
        record = batch.slice(row, 1).to_pylist()[0]
        at = f" at {self._site}" if self._site.file else ""
        return MessageTypeError(
            f"operator {self._operator!r} takes {self._takes.__name__}{at}, but {field!r} {text}, "
            f"or set such records aside with on_error=; found {record!r:.300}",
            operator=self._operator,
        )


def _column(name: str, hint: Any) -> _Column:
    kind, is_optional = bare(hint)
    is_column_type = isinstance(kind, pa.DataType | pl.DataType) or (
        isinstance(kind, type) and issubclass(kind, pl.DataType)
    )
    if is_column_type or kind in _PLAIN:
        return _Column(name, None, is_optional)
    item: Any = typing.Optional[kind] if is_optional else kind  # noqa: UP045 - known at run time
    return _Column(name, list[item], True)


def _positional(takes: Any) -> list[str]:
    """The fields that a record class takes by position, in order."""
    if issubclass(takes, tuple):
        return list(takes._fields)
    return list(takes.__match_args__)


def _dicts(names: Sequence[str]) -> Callable[[pa.RecordBatch], list[Any]]:
    make = _dicts_of(names)
    if not names:
        return lambda batch: [{} for _ in range(batch.num_rows)]
    return lambda batch: make(columns_to_lists(batch))


def _dicts_of(names: Sequence[str]) -> Callable[[list[list[Any]]], list[Any]]:
    """Make dicts of columns: by way of structs, which is twice as quick, where names allow it."""
    if all(name.isidentifier() for name in names):
        kind = message_type("Message", pa.schema([(name, pa.null()) for name in names]))
        return lambda lists: list(map(msgspec.structs.asdict, map(kind, *lists)))
    return lambda lists: list(map(dict, map(zip, repeat(names), zip(*lists, strict=True))))
