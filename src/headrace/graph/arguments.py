"""Checks of what users give to the methods of ``Stream``; each notes what is wrong and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import Aggregate
from headrace.graph.operators import FAIL, ON_ERROR, Operator, Process, StoreSpec
from headrace.graph.signatures import call_mistake, name_of
from headrace.graph.sites import user_names
from headrace.graph.tables import BroadcastSpec
from headrace.graph.types import returned_schema, to_schema
from headrace.graph.windows import Tumbling, Window

STORE_KINDS = ("rocksdb", "memory")
TABLE_KINDS = ("columnar", "rocksdb", "memory")
PROCESS_KINDS = (*STORE_KINDS, "remote")
Keys = tuple[str, ...] | None
T = TypeVar("T")


def attempt(wrong: list[str], call: Callable[[], T], otherwise: T) -> T:
    """Return what a check gives, or note its mistake and go on with a stand-in."""
    try:
        return call()
    except InvalidInputError as error:
        wrong.append(error.message)
        return otherwise


def is_function(part: object) -> bool:
    """Say whether it is a function of messages, not an expression on columns."""
    return callable(part) and not isinstance(part, pl.Expr)


def shown(value: object) -> str:
    """Return a value and its type, for a message."""
    return f"{value!r:.60} ({type(value).__name__})"


def with_on_error(wrong: list[str], operator: Operator, on_error: object) -> Operator:
    """Check what becomes of rows that an operator refuses, and return it with that."""
    if on_error == FAIL:
        return operator
    if on_error not in ON_ERROR:
        wrong.append(f"on_error={on_error!r}; expected one of {ON_ERROR}")
        return operator
    if isinstance(operator, Process) and any(spec.kind == "remote" for spec in operator.stores):
        wrong.append(
            f"on_error={on_error!r} takes back what a failed call wrote, which a remote store "
            "cannot: catch the errors in process, or use a store of another kind"
        )
    return replace(operator, on_error=str(on_error))


def checked_function(
    wrong: list[str], method: str, function: Any, uses: Sequence[str] | None
) -> tuple[str, ...] | None:
    """Check a function for messages or batches; return the columns it uses."""
    if not is_function(function):
        wrong.append(f"{method} takes a function; found {shown(function)}")
    else:
        argument = "frame" if method == "map_batches" else "message"
        mistake = call_mistake(function, (argument,))
        if mistake is not None:
            wrong.append(f"function {name_of(function)} {mistake}")
    return checked_uses(wrong, uses)


def checked_uses(wrong: list[str], uses: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check the columns that a function says it uses."""
    if uses is None:
        return None
    columns = (uses,) if isinstance(uses, str) else tuple(uses)
    if not columns or not all(isinstance(column, str) for column in columns):
        wrong.append(f"uses= takes names of columns, at least one; found {list(columns)}")
    elif len(set(columns)) < len(columns):
        wrong.append(f"uses= names a column twice in {list(columns)}")
    return columns


def returned(
    wrong: list[str], method: str, function: Any, returns: Any, *, many: bool = False
) -> pa.Schema | None:
    """Return the columns of a function's result, given or read from its annotation."""
    if not is_function(function):
        return None
    none: pa.Schema | None = None
    if returns is not None:
        return attempt(wrong, lambda: to_schema(returns), none)
    before, names = len(wrong), user_names()
    schema = attempt(wrong, lambda: returned_schema(function, names, many=many), none)
    if schema is None and len(wrong) == before:
        wanted = "Iterable[Record]" if many else "Record"
        wrong.append(
            f"what function {name_of(function)} returns to {method} is not known; give returns=, "
            f"or annotate it with -> {wanted}, a msgspec struct, dataclass or TypedDict"
        )
    return schema


def checked_aggregates(
    wrong: list[str], method: str, aggregates: Mapping[str, Any], keys: Keys, taken: set[str]
) -> tuple[tuple[str, Aggregate], ...]:
    """Check the aggregates of ``aggregate`` and ``window`` and return the good ones."""
    if keys is None:
        wrong.append(f"{method} keeps state for each key: put partition_by before it")
    if not aggregates:
        wrong.append(f"{method} has no aggregates; add one such as n=hr.agg.count()")
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, Aggregate):
            wrong += [f"{name}: {text}" for text in aggregate.check()]
        else:
            wrong.append(f"{name}= takes an aggregate of hr.agg; found {shown(aggregate)}")
        if name in (keys or ()):
            wrong.append(f"aggregate {name!r} has the name of a key column; rename it")
        elif name in taken:
            wrong.append(f"aggregate {name!r} has the name of a column of {method}; rename it")
    return tuple((n, a) for n, a in aggregates.items() if isinstance(a, Aggregate))


def checked_window(wrong: list[str], window: object) -> Window:
    """Check what says which messages belong together, and return it or a stand-in."""
    if isinstance(window, Window):
        wrong += window.mistakes
        return window
    wrong.append(f'window takes a window such as hr.tumbling("1h"); found {shown(window)}')
    return Tumbling(1)


def check_kind(
    wrong: list[str], name: str, kind: object, kinds: tuple[str, ...] = STORE_KINDS
) -> None:
    """Check the kind of a store."""
    if kind not in kinds:
        wrong.append(f"store {name!r} is of kind {kind!r}; expected one of {kinds}")


def _check_remote(wrong: list[str], spec: StoreSpec) -> None:
    """Check what is for one kind only."""
    if spec.kind == "remote":
        if spec.remote is not None:
            wrong += [f"store {spec.name!r}: {mistake}" for mistake in spec.remote.mistakes()]
        if not spec.changelog:
            wrong.append(f"store {spec.name!r} is remote and never has a changelog; leave it out")
    elif spec.remote is not None:
        wrong.append(
            f"store {spec.name!r} is of kind {spec.kind!r}, but url= and remote= are for "
            "kind='remote'"
        )


def checked_stores(
    wrong: list[str], stores: Any, keys: Keys
) -> tuple[tuple[StoreSpec, ...], tuple[BroadcastSpec, ...]]:
    """Return the keyed and the broadcast stores of ``process``."""
    tables: list[BroadcastSpec] = []
    if isinstance(stores, Mapping):
        specs = [StoreSpec(str(name), value=value) for name, value in stores.items()]
        if any(isinstance(value, StoreSpec | BroadcastSpec) for value in stores.values()):
            wrong.append(
                "stores= has hr.store or hr.broadcast as a type in a dict; give them as a list, "
                "such as stores=[hr.store('seen', int)]"
            )
    else:
        given = list(stores) if isinstance(stores, Sequence | set) else [stores]
        specs = [spec for spec in given if isinstance(spec, StoreSpec)]
        tables = [spec for spec in given if isinstance(spec, BroadcastSpec)]
        bad = [spec for spec in given if not isinstance(spec, StoreSpec | BroadcastSpec)]
        if bad:
            found = ", ".join(map(shown, bad))
            wrong.append(f"stores= takes a dict of names and types, or hr.store; found {found}")
    if keys is None and any(spec.kind != "remote" for spec in specs):
        wrong.append("process keeps state for each key: put partition_by before it")
    for spec in specs:
        check_kind(wrong, spec.name, spec.kind, PROCESS_KINDS)
        _check_remote(wrong, spec)
    return tuple(specs), tuple(tables)
