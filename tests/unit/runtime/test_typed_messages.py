"""Functions get their messages as what they are annotated with."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Protocol, TypedDict

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError, MessageTypeError, UserFunctionError
from headrace.testing import TestDriver

UTC = datetime.UTC
MOMENT = datetime.datetime(2013, 1, 31, 5, 15, tzinfo=UTC)


class State(enum.Enum):
    OPEN = "open"
    PAID = "paid"


class Item(msgspec.Struct):
    sku: str
    qty: int = 1


@dataclasses.dataclass
class Address:
    city: str
    zip: str | None = None


ITEM = pa.struct([("sku", pa.string()), ("qty", pa.int64())])
ORDERS = {
    "id": pa.int64(),
    "price": pa.float64(),
    "state": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
    "items": pa.list_(ITEM),
    "to": pa.struct([("city", pa.string()), ("zip", pa.string())]),
    "tags": pa.list_(pa.string()),
    "tax": pa.decimal128(9, 2),
    "note": pa.string(),
}
ORDER = {
    "id": 7,
    "price": 2.5,
    "state": "paid",
    "at": MOMENT,
    "items": [{"sku": "a", "qty": 2}],
    "to": {"city": "Bonn", "zip": None},
    "tags": ["x", "y"],
    "tax": Decimal("1.25"),
    "note": None,
}


class Struct(msgspec.Struct):
    id: int
    price: float
    state: State
    at: datetime.datetime
    items: list[Item]
    to: Address
    tags: set[str]
    tax: Annotated[Decimal, pa.decimal128(9, 2)]
    note: str | None
    more: int = 5


@dataclasses.dataclass
class Data:
    id: int
    price: float
    state: State
    at: datetime.datetime
    items: list[Item]
    to: Address
    tags: set[str]
    tax: Decimal
    note: str | None
    more: int = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    more: int = 5
    note: str | None
    tax: Decimal
    tags: set[str]
    to: Address
    items: list[Item]
    at: datetime.datetime
    state: State
    price: float
    id: int


class Named(NamedTuple):
    id: int
    price: float
    state: State
    at: datetime.datetime
    items: list[Item]
    to: Address
    tags: set[str]
    tax: Decimal
    note: str | None
    more: int = 5


class Out(msgspec.Struct):
    id: int
    state: State
    first: Item
    cities: list[Address]


def driver_of(build: Callable[[hr.Graph], Any], **options: Any) -> TestDriver:
    @hr.job("typed")
    def typed(g: hr.Graph) -> None:
        build(g)

    driver = TestDriver(typed, tasks=1, key_groups=4, **options)
    driver.create("orders", ORDERS)
    return driver


def run(
    function: Callable[..., Any], *rows: dict[str, Any], **options: Any
) -> list[dict[str, Any]]:
    def build(g: hr.Graph) -> None:
        g.input("orders").map(function, name="o", **options).send_to(g.output("out", partitions=1))

    with driver_of(build) as driver:
        driver.feed("orders", rows or [ORDER])
        driver.run()
        return driver.output("out")


@pytest.mark.parametrize("kind", [Struct, Data, Strict, Named])
def test_a_message_is_made_as_the_class_that_a_function_takes(kind: Any) -> None:
    def seen(order: Any) -> Out:
        assert type(order) is kind
        assert (order.id, order.price, order.at, order.note) == (7, 2.5, MOMENT, None)
        assert (order.state, order.items, order.tags) == (State.PAID, [Item("a", 2)], {"x", "y"})
        assert (order.to, order.tax, order.more) == (Address("Bonn"), Decimal("1.25"), 5)
        return Out(order.id, order.state, order.items[0], [order.to])

    seen.__annotations__["order"] = kind
    (row,) = run(seen)

    assert row == {
        "id": 7,
        "state": "paid",
        "first": {"sku": "a", "qty": 2},
        "cities": [{"city": "Bonn", "zip": None}],
    }


class Keys(TypedDict):
    id: int
    state: Literal["open", "paid"]
    missing: NotRequired[int]


class HasId(Protocol):
    id: int


def test_a_message_is_a_dict_where_that_is_asked_for() -> None:
    def all_of(order: dict[str, Any]) -> Any:
        assert order == ORDER
        order["id"] += 1  # its own, nobody else sees it
        return {"id": order["id"]}

    def two_of(order: Keys) -> Any:
        assert order == {"id": 7, "state": "paid"}
        return {"id": order["id"]}

    def with_attributes(order: HasId) -> Any:
        return {"id": order.id}

    for function, expected in ((all_of, 8), (two_of, 7), (with_attributes, 7)):
        assert run(function, returns={"id": int}) == [{"id": expected}]


def test_a_class_names_the_columns_that_are_read() -> None:
    class Few(msgspec.Struct):
        price: float
        id: int

    def few(order: Few) -> dict[str, Any]:
        return {"id": order.id}

    @hr.job("few")
    def job(g: hr.Graph) -> None:
        g.input("orders").map(few, returns={"id": int}).send_to(g.output("out"))

    with TestDriver(job) as driver:
        driver.create("orders", ORDERS)
        (stage,) = driver.start()._plan.stages
        assert sorted(stage.inputs[0].columns) == ["id", "price"]


class Orders:
    def __init__(self, least: int = 0) -> None:
        self.least = least

    def process(self, order: Data, context: hr.Context) -> None:
        assert type(order) is Data
        if order.id >= self.least:
            context.emit(Out(order.id, order.state, Item("z"), []))


def explode(order: Data) -> Iterator[Out]:
    for item in order.items:
        yield Out(order.id, order.state, item, [order.to])


def is_paid(order: Data) -> bool:
    return order.state is State.PAID


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.flat_map(explode),
        lambda s: s.filter(is_paid).flat_map(explode),
        lambda s: s.split(paid=is_paid)["paid"].flat_map(explode),
        lambda s: s.process(Orders, returns=Out),
        lambda s: s.process(functools.partial(Orders, 7), returns=Out),
        lambda s: s.partition_by("id").process(Orders, stores={"n": int}, returns=Out),
    ],
    ids=["flat_map", "filter", "split", "process", "partial", "keyed"],
)
def test_all_that_take_functions_take_classes(step: Callable[[Any], Any]) -> None:
    def build(g: hr.Graph) -> None:
        step(g.input("orders")).send_to(g.output("out", partitions=1))

    with driver_of(build) as driver:
        driver.feed("orders", [ORDER])
        driver.run()
        assert [(row["id"], row["state"]) for row in driver.output("out")] == [(7, "paid")]


@dataclasses.dataclass
class Short:
    id: int
    note: str | None


def test_an_input_names_the_class_for_functions_that_name_none() -> None:
    def build(g: hr.Graph) -> None:
        kept = g.input("orders", schema=Short).filter(lambda short: type(short) is Short)
        named = kept.map(lambda short: {"name": type(short).__name__}, returns={"name": str})
        named.map(
            lambda message: {"both": f"{message.name} {type(message).__name__}"},
            returns={"both": str},
        ).send_to(g.output("out"))

    with driver_of(build) as driver:
        driver.feed("orders", [ORDER])
        driver.run()
        assert driver.output("out") == [{"both": "Short Message"}]


class Other(msgspec.Struct):
    id: str


class Missing(msgspec.Struct):
    id: int
    size: int


class Nested(msgspec.Struct):
    items: list[Missing]


class Pair(NamedTuple):
    city: str


class Within(msgspec.Struct):
    to: Pair


def annotated(kind: Any) -> Callable[[Any], Any]:
    def function(order: Any) -> Any:
        return {"id": 1}

    function.__annotations__["order"] = kind
    return function


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Other, "takes Other, whose field 'id' is str, but its column is int64"),
        (Missing, r"takes Missing, whose field 'size' no column fills; columns are \['id', "),
        (Nested, "field 'items' has items, and an item takes Missing, whose field 'id' no column"),
        (Within, "field 'to' is Pair, a named tuple within a message: use a dataclass or struct"),
        (int, "takes order: int, but gets messages; annotate it with a dataclass, msgspec struct"),
        ("Ordr", "annotation 'Ordr' of 'order' in .*function cannot be resolved: name 'Ordr' is"),
    ],
    ids=["type", "missing", "nested", "named tuple", "no record", "unknown"],
)
def test_a_class_that_does_not_fit_is_told_before_anything_runs(kind: Any, message: str) -> None:
    with pytest.raises(GraphError, match=rf"operator 'o' \(.*test_typed.*py:\d+\): .*{message}"):
        run(annotated(kind), returns={"id": int})


def test_a_branch_whose_class_does_not_fit_is_told() -> None:
    def build(g: hr.Graph) -> None:
        g.input("orders").split(paid=annotated(Other))["paid"].send_to(g.output("out"))

    with (
        driver_of(build) as driver,
        pytest.raises(GraphError, match="branch 'paid' takes Other, whose field 'id' is str, but"),
    ):
        driver.start()


def test_a_null_where_the_class_wants_a_value_is_told_with_record_and_line() -> None:
    with pytest.raises(
        MessageTypeError,
        match=r"operator 'o' takes Data at .*test_typed_messages\.py:\d+, but 'price' is null; let "
        r"it be optional: \| None, or set such records aside with on_error=; found \{'id': 7",
    ):
        run(is_paid_row, ORDER, ORDER | {"price": None}, returns={"id": int})


def is_paid_row(order: Data) -> Any:
    return {"id": order.id}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "lost"}, "'state' does not fit: invalid enum value 'lost'"),
        ({"items": [{"sku": None, "qty": 1}]}, r"'items.\[0\].sku' does not fit: expected `str`"),
        ({"to": None}, "'to' does not fit: expected `object`, got `null`"),
    ],
)
def test_a_value_that_the_class_does_not_allow_is_told(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(MessageTypeError, match=message):
        run(is_paid_row, ORDER, ORDER | change, returns={"id": int})


@dataclasses.dataclass
class Checked:
    id: int

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("an id is never negative")


def test_what_the_class_itself_refuses_is_told_with_the_record() -> None:
    def checked(order: Checked) -> Any:
        return {"id": order.id}

    with pytest.raises(
        UserFunctionError,
        match=r"'o' raised ValueError: an id is never negative at .*py:\d+ on record \{'id': -1\}",
    ):
        run(checked, ORDER, ORDER | {"id": -1}, returns={"id": int})


@pytest.mark.parametrize("is_process", [False, True])
def test_records_of_which_no_message_can_be_made_are_set_aside(is_process: bool) -> None:
    def build(g: hr.Graph) -> None:
        orders = g.input("orders")
        if is_process:
            done = orders.process(Orders, returns=Out, name="o", on_error="dead_letter")
        else:
            done = orders.flat_map(explode, name="o", on_error="dead_letter")
        done.send_to(g.output("out", partitions=1))

    with driver_of(build) as driver:
        driver.feed("orders", [ORDER, ORDER | {"id": None}, ORDER | {"state": "x"}, ORDER])
        driver.run()
        assert len(driver.output("out")) == 2
        letters = driver.output("typed.dead")
    assert [(row["offset"], row["code"]) for row in letters] == [(1, "HR113"), (2, "HR113")]
