"""Messages a second that ``map`` makes of columns and back, by the class of messages, as JSON.

    python bench/messages.py [--rows 100000]

One operator in one thread: rows of a whole number, a fraction, text and a time become messages of a
class, a function makes a result of the same class of each, and the results become columns again. By
processor time, the best of three. ``make`` is the first step alone; ``nested`` rows have a number,
an enum and a list of two structs.
"""

from __future__ import annotations

import argparse
import datetime
import enum
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa

from headrace.graph.operators import MapMessages
from headrace.runtime.chunk import Chunk
from headrace.runtime.stateless import MessageNode
from headrace.runtime.user_calls import MessageMaker

TRIES = 3
MOMENT = datetime.datetime(2013, 1, 31, tzinfo=datetime.UTC)


class State(enum.Enum):
    """A value that is stored as text."""

    OPEN = "open"
    PAID = "paid"


class Item(msgspec.Struct):
    """A record within a message."""

    sku: str
    cents: int


class Struct(msgspec.Struct):
    """A msgspec struct."""

    id: int
    price: float
    name: str
    at: datetime.datetime


@dataclass
class Data:
    """A dataclass."""

    id: int
    price: float
    name: str
    at: datetime.datetime


@dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass that cannot be changed."""

    id: int
    price: float
    name: str
    at: datetime.datetime


class Named(NamedTuple):
    """A named tuple."""

    id: int
    price: float
    name: str
    at: datetime.datetime


class Typed(TypedDict):
    """A typed dict."""

    id: int
    price: float
    name: str
    at: datetime.datetime


class Nested(msgspec.Struct):
    """A struct with a list of structs and an enum, which are checked."""

    id: int
    state: State
    items: list[Item]


def rows_of(count: int) -> pa.RecordBatch:
    """Return rows of plain columns, and of nested ones."""
    items = [{"sku": "a", "cents": 1}, {"sku": "b", "cents": 2}]
    return pa.record_batch(
        {
            "id": pa.array(range(count), pa.int64()),
            "price": pa.array([n / 4 for n in range(count)]),
            "name": pa.array([f"name {n % 1000}" for n in range(count)]),
            "at": pa.array([MOMENT] * count, pa.timestamp("us", tz="UTC")),
            "state": pa.array([("open", "paid")[n % 2] for n in range(count)]),
            "items": pa.array([items] * count),
        }
    )


def rate(count: int, call: Callable[[], object]) -> int:
    """Return how many a second, of the best try."""
    best = float("inf")
    for _ in range(TRIES):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return round(count / best)


def measured(batch: pa.RecordBatch) -> dict[str, dict[str, int]]:
    """Return the rates of all classes."""
    plain = batch.select(["id", "price", "name", "at"])
    again: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "message": (None, lambda m: (m.id, m.price, m.name, m.at)),
        "struct": (Struct, lambda m: Struct(m.id, m.price, m.name, m.at)),
        "dataclass": (Data, lambda m: Data(m.id, m.price, m.name, m.at)),
        "dataclass, frozen": (Frozen, lambda m: Frozen(m.id, m.price, m.name, m.at)),
        "named tuple": (Named, lambda m: Named(m.id, m.price, m.name, m.at)),
        "typed dict": (Typed, lambda m: {**m}),
        "dict": (dict, lambda m: {**m}),
    }
    found: dict[str, dict[str, int]] = {}
    for name, (takes, function) in again.items():
        maker = MessageMaker("bench", plain.schema, None, takes)
        operator = MapMessages("bench", function=function, takes=takes)
        node = MessageNode(operator, source=plain.schema, schema=plain.schema)
        chunk = Chunk(plain)
        found[name] = {
            "make": rate(plain.num_rows, lambda maker=maker: maker.make(plain)),
            "map": rate(plain.num_rows, lambda node=node, chunk=chunk: node.push(chunk)),
        }
    nested = MessageMaker("bench", batch.schema, None, Nested)
    loose = MessageMaker("bench", batch.schema, ["id", "state", "items"], None)
    found["nested struct"] = {"make": rate(batch.num_rows, lambda: nested.make(batch))}
    found["nested message"] = {"make": rate(batch.num_rows, lambda: loose.make(batch))}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    print(json.dumps(measured(rows_of(parser.parse_args().rows)), indent=2))


if __name__ == "__main__":
    main()
