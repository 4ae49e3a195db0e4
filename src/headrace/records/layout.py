"""The columns of a table that a task keeps: its keys, its values, and what beside them.

A run of a table is a sorted list of rows: ``__hash``, then ``__cluster`` and ``__written``
where the table has them, the key columns, the value columns, and ``__deleted`` only where
the run has deletions. ``state.columnar`` keeps such tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.records.schema import normalise_schema

HASH, CLUSTER, WRITTEN, DELETED = "__hash", "__cluster", "__written", "__deleted"
_OWN = frozenset((HASH, CLUSTER, WRITTEN, DELETED))


@dataclass(frozen=True)
class TableLayout:
    """What a table's rows are made of.

    Args:
        keys: the columns that name a row, at least one; nulls are values of their own.
        values: the columns beside them, of any type that can be stored.
        cluster: whether rows are ordered by an integer before their hash, as windows are by
            their end; it is part of the key.
        ttl_ms: how long after it was written a row is there; for ever when ``None``.
        by_event: whether rows are written at event times of their own, and gone by the watermark
            instead of the wall clock.
        repeats: whether several rows may have one key; none is laid over another, or deleted.

    Raises:
        InvalidInputError: no key, a name twice, or a type that cannot be stored.
    """

    keys: pa.Schema
    values: pa.Schema
    cluster: bool = False
    ttl_ms: int | None = None
    by_event: bool = False
    repeats: bool = False

    def __post_init__(self) -> None:
        """Check the names, and bring the types to their stored form."""
        names = [*self.keys.names, *self.values.names]
        doubled = sorted({name for name in names if names.count(name) > 1 or name in _OWN})
        if doubled or not self.keys.names:
            raise InvalidInputError(
                f"a table cannot have keys {self.keys.names} and values {self.values.names}: "
                + (f"columns {doubled} are there twice" if doubled else "it needs a key")
                + "; rename or add columns"
            )
        if self.ttl_ms is not None and self.ttl_ms <= 0:
            raise InvalidInputError(f"a table's ttl_ms is {self.ttl_ms}; give at least 1, or None")
        object.__setattr__(self, "keys", normalise_schema(self.keys))
        object.__setattr__(self, "values", normalise_schema(self.values))

    @property
    def first_key(self) -> int:
        """The place of the first key column in a run."""
        return 1 + self.cluster + (self.ttl_ms is not None)

    @property
    def first_value(self) -> int:
        """The place of the first value column in a run."""
        return self.first_key + len(self.keys)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a run without deletions; its metadata tells the layout."""
        fields = [pa.field(HASH, pa.uint64())]
        if self.cluster:
            fields.append(pa.field(CLUSTER, pa.int64()))
        if self.ttl_ms is not None:
            fields.append(pa.field(WRITTEN, pa.int64()))
        told = {"keys": str(len(self.keys)), "ttl_ms": str(self.ttl_ms or 0)}
        if self.by_event:
            told["clock"] = "event"
        if self.repeats:
            told["rows"] = "repeat"
        return pa.schema([*fields, *self.keys, *self.values], metadata=told)

    @cached_property
    def schema_with_deletes(self) -> pa.Schema:
        """The columns of a run with deletions."""
        return self.schema.append(pa.field(DELETED, pa.bool_()))

    @classmethod
    def of(cls, schema: pa.Schema) -> TableLayout:
        """Return the layout of a run from its schema.

        Raises:
            InvalidInputError: it is no run's schema.
        """
        told = schema.metadata or {}
        if b"keys" not in told or schema.names[:1] != [HASH]:
            raise InvalidInputError(f"columns {schema.names} are no run of a table")
        own = [name for name in schema.names if name in _OWN]
        begin, keys = len(own) - (DELETED in own), int(told[b"keys"])
        fields = [field for field in schema if field.name not in _OWN]
        ttl_ms = int(told[b"ttl_ms"]) or None
        assert begin == 1 + (CLUSTER in own) + (ttl_ms is not None)
        by_event = told.get(b"clock") == b"event"
        values = pa.schema(fields[keys:])
        repeats = told.get(b"rows") == b"repeat"
        return cls(pa.schema(fields[:keys]), values, CLUSTER in own, ttl_ms, by_event, repeats)
