"""``table`` and its joins as data, in plans and in words, and every mistake in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import JobPlan, JoinKept, KeepTable, StreamInfo, explain, mermaid, plan

import headrace as hr

NAMES = {"member": int, "name": str, "at": int}
CLICKS = {"member": int, "page": str, "at": int}
Build = Callable[[hr.Graph], Any]


def planned(build: Build, **streams: StreamInfo) -> JobPlan:
    return plan(hr.job("j")(build).build(), streams)


def rows(g: hr.Graph, name: str = "clicks", schema: Any = None, **more: Any) -> hr.Stream:
    return g.input(name, schema=schema or CLICKS, **more)


def clicks(g: hr.Graph, **more: Any) -> hr.Stream:
    return rows(g, **more).partition_by("member")


def names(g: hr.Graph, **more: Any) -> hr.Table:
    return g.table("names", "member", schema=NAMES, **more)


def out(stream: hr.Stream, g: hr.Graph) -> None:
    stream.send_to(g.output("out"))


def joined(g: hr.Graph, *, table: Any = None, **more: Any) -> None:
    out(clicks(g).join(table or names(g), **{"columns": ["name"], **more}), g)


def itself(g: hr.Graph) -> None:
    table = names(g)
    table.join(table)


def ring(g: hr.Graph) -> None:
    stream = clicks(g)
    out(stream.join(stream.partition_by("member").table(), suffix="_2"), g)


MISTAKES: dict[str, Build] = {
    r"table keeps a row for each key: put partition_by\(": lambda g: rows(g).table(),
    r"join with a table looks up its key: put partition_by\(": lambda g: rows(g).join(names(g)),
    r"with the key \['a', 'b'\]|has the key": lambda g: clicks(g).join(
        g.table("t", ["a", "b"], schema={"a": int, "b": int, "c": int})
    ),
    "cast one of them with map": lambda g: joined(
        g, table=g.table("t", "member", schema={"member": str, "name": str})
    ),
    r"expected one of \('left', 'inner'\)": lambda g: joined(g, how="full"),
    r"expected one of \('inner', 'left', 'full'\)": lambda g: names(g).join(
        names(g, name="other"), how="outer"
    ),
    r"as_of='then'\); expected one of": lambda g: joined(g, as_of="then"),
    'give it history="..."': lambda g: joined(g, as_of="event"),
    'is joined with as_of="event"': lambda g: joined(
        g, table=names(g, time="at", history="1h"), how="left"
    ),
    "within=, before=, after=, allowed_lateness= and late= are for two streams": lambda g: joined(
        g, within="1h"
    ),
    "as_of= is for tables": lambda g: out(
        clicks(g, time="at").join(
            clicks(g, name="b", time="at"), within="1s", as_of="event", suffix="_b"
        ),
        g,
    ),
    r"columns \['at', 'page'\]|columns \['at'\] would be there twice": lambda g: joined(
        g, columns=None
    ),
    "no column 'nam'": lambda g: joined(g, columns=["nam"]),
    r"join takes a table: give it .table\(\)": lambda g: names(g).join(clicks(g)),  # type: ignore[arg-type]
    r"changes\(\) is for tables without history": lambda g: names(g, history="1h").changes(),
    "tables with history= are joined with streams only": lambda g: names(g, history="1h").join(
        names(g, name="other")
    ),
    "history= counts event time, which input 'names' has not": lambda g: joined(
        g, table=names(g, history="1h"), as_of="event"
    ),
    "needs event time, which input 'clicks' has not": lambda g: joined(
        g, table=names(g, time="at", history="1h"), as_of="event"
    ),
    r'take via="bus" out of': lambda g: joined(
        g, table=rows(g, "n", NAMES).partition_by("member", via="bus").table()
    ),
    "'is_deleted', which the table has": lambda g: out(
        g.table("t", "member", schema={"member": int, "is_deleted": bool}).changes(), g
    ),
    "is joined with itself": itself,
    "belongs to another graph": lambda g: joined(g, table=OTHER[0]),
    "priority is 1.5; expected a whole number": lambda g: rows(g, priority=1.5),
    "history is 'soon'; expected a duration": lambda g: names(g, history="soon"),
    "would have to wait for itself": ring,
}
OTHER: list[hr.Table] = []


@hr.job("other")
def other(g: hr.Graph) -> None:
    OTHER[:] = [names(g)]


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_what_to_do(text: str) -> None:
    with pytest.raises(hr.GraphError):
        other.build()  # nothing reads its table
    with pytest.raises(hr.GraphError, match=text):
        planned(MISTAKES[text])


def test_a_table_of_an_input_is_short_for_three_steps() -> None:
    def short(g: hr.Graph) -> None:
        out(clicks(g).join(names(g, priority=2), columns=["name"]), g)

    def long(g: hr.Graph) -> None:
        own = g.input("names", schema=NAMES, priority=2).partition_by("member").table()
        out(clicks(g).join(own, columns=["name"]), g)

    def operators(build: Build) -> list[str]:
        made = hr.job("j")(build).build().operators
        return sorted(repr(type(o)) + o.name for o in made)

    assert operators(short) == operators(long)


def test_keys_may_have_other_names() -> None:
    def build(g: hr.Graph) -> None:
        table = g.table("t", "id", schema={"id": int, "name": str})
        out(clicks(g).join(table), g)

    [stage] = [s for s in planned(build).stages if s.keyed]
    join = next(o for o in stage.operators if isinstance(o, JoinKept))
    assert (join.by, join.columns) == (("member",), (("name", "name"),))
    assert stage.schemas[join.name].names == ["member", "page", "at", "name"]


def test_a_table_keeps_all_columns_and_says_which_delete() -> None:
    made = planned(lambda g: joined(g, table=names(g, time="at")))
    [stage] = [s for s in made.stages if s.keyed]
    table = next(o for o in stage.operators if isinstance(o, KeepTable))
    assert table.values == ("name",)
    sent = {e.operator: e for e in stage.receives}
    assert sent["names.by_member"].schema.names == ["member", "name", "at"]


def test_only_what_is_asked_for_its_time_carries_it() -> None:
    def build(g: hr.Graph) -> None:
        first = names(g, time="at")
        second = g.table("plans", "member", schema=NAMES, time="at")
        found = clicks(g, time="at").join(first, columns=["name"])
        found.window(hr.tumbling("1s"), n=hr.agg.count()).send_to(g.output("out"))
        changes = second.changes()
        changes.window(hr.tumbling("1s"), n=hr.agg.count()).send_to(g.output("changed"))
        more = clicks(g, name="more", time="at").join(second, columns=["name"])
        more.send_to(g.output("told"))

    made = planned(build)
    timeless = {e.operator: e.timeless for s in made.stages for e in s.receives}
    assert timeless == {
        "names.by_member": True,
        "plans.by_member": False,
        "clicks.by_member": False,
        "more.by_member": False,
    }
    timed = {b.operator: b.is_timed for s in made.stages for b in s.inputs}
    assert timed == {"names": False, "plans": True, "clicks": True, "more": True}


def test_explain_and_the_diagram_tell_of_tables() -> None:
    def build(g: hr.Graph) -> None:
        table = names(g, time="at", history="1h", priority=3)
        found = clicks(g, time="at").join(table, columns=["name"], as_of="event")
        plans = g.table("plans", "member", schema={"member": int, "plan": str})
        seen = found.aggregate(n=hr.agg.count()).table(name="seen")
        plans.join(seen, how="full").changes().send_to(g.output("plans-seen"))

    made = planned(build)
    text = explain(made)
    for line in (
        "read first, up to the end that it has when the job begins",
        "priority 3: read before inputs with a lower one",
        "table: versions of 1h of each key (member)",
        "inner join with table names.by_member.table as of event time",
        "table: last row of each key (member)",
        "full join of tables plans.by_member.table and seen",
        "changes of table",
        "store clicks.by_member.join (columnar)",
    ):
        assert line in text
    assert "inner join with table" in mermaid(made)


def test_a_stream_with_a_time_of_its_own_deletes_by_the_others() -> None:
    schema = pa.schema([("member", pa.int64()), ("name", pa.string()), ("at", pa.int64())])
    info = StreamInfo(schema, 2, "at")

    def build(g: hr.Graph) -> None:
        out(clicks(g).join(g.table("names", "member"), columns=["name"]), g)

    [stage] = [s for s in planned(build, names=info).stages if s.keyed]
    table = next(o for o in stage.operators if isinstance(o, KeepTable))
    assert table.values == ("name",)
