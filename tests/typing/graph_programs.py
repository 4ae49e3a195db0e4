"""Programs that must type-check, and lines that must not.

Read by ``make check``, never run: where a wrong line carries an ignore, mypy would report
the ignore as unused if it ever accepted the line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_type

import msgspec
from tests.support.plans import Aggregate, JobGraph, StoreSpec

import headrace as hr


class Visit(msgspec.Struct):
    page: str
    seconds: float


class Counter:
    def process(self, message: Any, context: hr.Context) -> None:
        context.emit(message)


class Typed:
    def open(self, context: hr.Context) -> None:
        self.last: hr.Store[Visit] = context.store("last")

    def process(self, visit: Visit, context: hr.Context) -> None:
        assert_type(self.last.get(visit.page), Visit | None)
        assert_type(self.last.get(visit.page, 0), Visit | int)
        self.last.put(visit.page, visit)
        self.last.put(visit.page, 1)  # type: ignore[arg-type]
        assert_type(list(self.last.scan()), list[tuple[Any, Visit]])
        self.last.delete(visit.page)
        assert visit.page not in self.last


def to_visit(message: Any) -> Visit:
    return Visit(message.page, message.seconds)


def to_visits(message: Any) -> Iterable[Visit]:
    yield to_visit(message)


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    source = g.input("clicks", time="at", out_of_orderness="10s", schema=Visit)
    assert_type(source, hr.Stream)
    parts = source.map(to_visit).flat_map(to_visits).filter(hr.col("seconds") > 1)
    pages = parts.partition_by("page")
    pages.window(hr.tumbling("1h", allowed_lateness="1m"), n=hr.agg.count()).send_to(
        g.output("hourly")
    )
    assert_type(pages.join(pages, within="1m", suffix="_next"), hr.Stream)
    last = pages.table(name="last")
    assert_type(last, hr.Table[hr.Stream])
    assert_type(pages.join(last, how="left", columns=["seconds"], suffix="_last"), hr.Stream)
    users = g.table("users", key=("page",), priority=1)
    assert_type(last.join(users, how="full").changes(), hr.Stream)
    pages.aggregate(every="1d", store="memory", top=hr.agg.top_k("seconds", keep=("page",)))
    pages.process(Counter, {"seen": int}, returns=Visit).send_to(g.output("seen", partitions=2))
    pages.process(lambda: Counter(), (hr.store("more", list[int], "memory"),))  # noqa: PLW0108
    source.map("page", hr.lit(1).alias("one")).send_to(g.output("ones"))
    short = source.split(short=hr.col("seconds") < 1, home=lambda click: click.page == "/")
    assert_type(short["short"], hr.Stream)
    together = short["home"].union(short["default"], pages.deduplicate("page", within="1h"))
    assert_type(together, hr.Stream)
    sides = source.map(to_visit, sides={"broken": Visit})
    assert_type(sides.side("broken"), hr.Stream)


assert_type(visits, hr.Job)
assert_type(visits.build(), JobGraph)
assert_type(hr.store("seen"), StoreSpec)


def wrong(g: hr.Graph) -> None:
    source = g.input("clicks")
    source.map(7)  # type: ignore[arg-type]
    source.filter("seconds > 1")  # type: ignore[arg-type]
    source.flat_map(7)  # type: ignore[arg-type]
    source.partition_by(1)  # type: ignore[arg-type]
    source.window("1h", n=hr.agg.count())  # type: ignore[arg-type]
    source.window(hr.tumbling(3600), n=hr.agg.count())  # type: ignore[arg-type]
    source.aggregate(n=len)  # type: ignore[arg-type]
    source.aggregate(every=60, n=hr.agg.count())  # type: ignore[arg-type]
    source.send_to(7)  # type: ignore[arg-type]
    source.merge("other")  # type: ignore[arg-type]
    source.union("other")  # type: ignore[arg-type]
    source.join("other", within="1m")  # type: ignore[arg-type]
    source.join(source, within=60)  # type: ignore[arg-type]
    source.table(history=60)  # type: ignore[arg-type]
    source.table().join(source)  # type: ignore[arg-type]
    source.split(short=7)  # type: ignore[arg-type]
    source.deduplicate(7)  # type: ignore[arg-type]
    source.deduplicate(within=60)  # type: ignore[arg-type]
    source.map(to_visit, sides=Visit)  # type: ignore[arg-type]
    source.group(max)  # type: ignore[attr-defined]
    hr.job(visits)  # type: ignore[arg-type]
    unknown: Aggregate = hr.agg.count().named("n")  # type: ignore[attr-defined]
    del unknown
    source.window(hr.tumbling("1h"), hr.agg.count())  # type: ignore[arg-type]
