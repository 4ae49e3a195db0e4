"""Record classes that are sent by value are whole in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]
import msgspec

import headrace
from headrace.coordinator.plan_files import dumps

JOB = """
from __future__ import annotations

import dataclasses
import enum
import typing

import msgspec


class State(enum.Enum):
    OPEN = "open"


class Item(msgspec.Struct, frozen=True):
    "An item."

    sku: str
    qty: int = 1
    tags: list[str] = msgspec.field(default_factory=list)
    MOST: typing.ClassVar[int] = 9

    def double(self) -> Item:
        return Item(self.sku, 2 * self.qty)


@dataclasses.dataclass
class Line:
    state: State
    item: Item


class Order(msgspec.Struct, array_like=True):
    lines: list[Line]
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError("below zero")


class Large(Order, kw_only=True):
    note: str


class Camel(msgspec.Struct, tag="camel", rename="camel"):
    one_two: int


class Tree(msgspec.Struct):
    leaves: int


def make(sku: str) -> Order:
    return Order([Line(State.OPEN, Item(sku).double())], 2)
"""
READER = """
import json, sys
import cloudpickle, msgspec

kinds = cloudpickle.loads(open(sys.argv[1], "rb").read())
Item, Order, Large, Camel, make = (kinds[n] for n in ("Item", "Order", "Large", "Camel", "make"))
made = make("a")
stored = msgspec.msgpack.encode(made)
refused = []
for call in (lambda: Order([], -1), lambda: setattr(Item("x"), "qty", 2), lambda: Large([], 1)):
    try:
        call()
    except Exception as error:
        refused.append(type(error).__name__)
print(json.dumps({
    "repr": repr(msgspec.msgpack.decode(stored, type=Order)),
    "plain": msgspec.msgpack.decode(stored),
    "doc": Item.__doc__, "most": Item.MOST, "large": repr(Large([], 1, note="n")),
    "is order": isinstance(Large([], 1, note="n"), Order),
    "camel": msgspec.json.encode(Camel(1)).decode(), "refused": refused,
}))
"""


def test_structs_and_dataclasses_are_whole_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "shop_of_test.py").write_text(JOB)
    sys.path.insert(0, str(tmp_path))
    try:
        import shop_of_test as shop  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    cloudpickle.register_pickle_by_value(shop)
    names = ("Item", "Order", "Large", "Camel", "make")
    (tmp_path / "kinds").write_bytes(dumps({name: getattr(shop, name) for name in names}))
    del sys.modules["shop_of_test"]

    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path / "kinds"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])},
    )

    assert json.loads(done.stdout) == {
        "repr": "Order(lines=[Line(state=<State.OPEN: 'open'>, item=Item(sku='a', qty=2, "
        "tags=[]))], total=2)",
        "plain": [[{"state": "open", "item": {"sku": "a", "qty": 2, "tags": []}}], 2],
        "doc": "An item.",
        "most": 9,
        "large": "Large(lines=[], total=1, note='n')",
        "is order": True,
        "camel": '{"type":"camel","oneTwo":1}',
        "refused": ["ValueError", "AttributeError", "TypeError"],
    }


def test_within_one_process_a_class_stays_itself() -> None:
    class Local(msgspec.Struct):
        n: int

        def more(self) -> Local:
            return Local(self.n + 1)

    found, again = cloudpickle.loads(dumps((Local, Local(1).more())))

    assert found is Local
    assert again == Local(2)
    assert Local(1).more() == Local(2)
