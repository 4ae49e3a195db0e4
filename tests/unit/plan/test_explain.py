"""A plan is printed and drawn so that a person sees what runs where and what is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.support.plans import StreamInfo, explain, mermaid, plan
from tests.unit.plan.radar import STREAMS, radar

import headrace as hr

EXPLAINED = """\
job delay-radar: 3 levels, 4 stages, 10 tasks, 512 key groups

level 0
  stage 0: 4 tasks, one for each input partition
    flights
      input flights: 4 partitions
      columns origin, dest, carrier, dep_delay (4 of 7)
      event time departed_at, up to 10m late
    flights.filter
      filter col("dep_delay").is_not_null()
    -> stage 1 by (origin, dest)
      sends origin, dest, dep_delay; event time and watermark
      or partial results of flights, mean, worst, where keys repeat
      drops carrier
    -> stage 2 by (carrier)
      sends carrier; event time and watermark
      or partial results of flights, where keys repeat
      drops origin, dest, dep_delay

level 1
  stage 1: 2 tasks, each a range of key groups of (origin, dest)
    from stage 0 by flights.by_origin_dest
    hourly
      window of 1h, grace 5m
      flights = count()
      mean = mean(dep_delay)
      worst = max(dep_delay)
      store hourly (columnar)
      keeps 32 B for each key and window, until 5m after its end
    hourly.to_routes
      output routes: 2 partitions by (origin, dest)
      columns origin, dest, window_start, window_end, flights, mean, worst
    -> stage 3 by (window_start)
      sends origin, dest, window_start, mean; event time and watermark
      drops window_end, flights, worst
  stage 2: 2 tasks, each a range of key groups of (carrier)
    from stage 0 by flights.by_carrier
    flights.by_carrier.aggregate
      totals every 1d
      flights = count()
      store flights.by_carrier.aggregate (columnar)
      keeps 8 B for each key, and while they change for each step
    flights.by_carrier.aggregate.to_carriers
      output carriers: 2 partitions by (carrier)
      columns carrier, at, flights

level 2
  stage 3: 2 tasks, each a range of key groups of (window_start)
    from stage 1 by hourly.by_window_start, watermark 5m behind
    worst
      window of 1h
      top = top_k(mean, 10, origin, dest)
      store worst (columnar)
      keeps top for each key and window
    worst.to_worst
      output worst: 1 partition by (window_start)
      columns window_start, window_end, top
"""


class Mine:
    def process(self, message: Any, context: hr.Context) -> None: ...


def is_big(message: Any) -> bool:
    return bool(message.price > 100)


def all_kinds(g: hr.Graph) -> None:
    merged = g.input("a").merge(g.input("b"))
    kept = merged.filter(is_big, uses=["price"]).map("customer", hr.col("price") * 2)
    kept.map_batches(lambda frame: frame, returns={"customer": str}).send_to(g.output("x"))
    keyed = kept.partition_by("customer").partition_by("price")
    keyed.process(Mine, {"seen": int}, returns={"customer": str}).send_to(g.output("y"))
    keyed.aggregate(n=hr.agg.count())


def drawn(function: Any) -> tuple[str, str]:
    schema = pa.schema([("customer", pa.string()), ("price", pa.int64()), ("note", pa.string())])
    info = StreamInfo(schema, 2)
    made = plan(hr.job("kinds")(function).build(), {"a": info, "b": info})
    return explain(made), mermaid(made)


def test_a_plan_is_explained() -> None:
    assert explain(plan(radar.build(), STREAMS, tasks=2)) == EXPLAINED


def test_every_kind_of_operator_is_explained() -> None:
    text, _ = drawn(all_kinds)
    for row in (
        "merge of a, b",
        "filter with is_big, uses price",
        'map to col("customer"), [(col("price")) * (dyn int: 2)]',
        "map_batches with <lambda>",
        "process with Mine",
        "store seen (rocksdb)",
        "totals after each message",
        "output x: 2 partitions by task",
    ):
        assert f"      {row}\n" in text


def test_results_without_a_key_are_in_the_first_partition() -> None:
    def whole(g: hr.Graph) -> None:
        g.input("a").window(hr.count_window(3), n=hr.agg.count()).send_to(
            g.output("x", partitions=4)
        )

    assert "      output x: 4 partitions, all to the first\n" in drawn(whole)[0]


def test_a_plan_fits_a_narrow_terminal() -> None:
    text = explain(plan(radar.build(), STREAMS, tasks=2), width=48)

    assert max(map(len, text.splitlines())) <= 49
    assert "  stage 0: 4 tasks, one for each input partition\n" in text
    assert text.split() == EXPLAINED.split()


def test_long_rows_are_broken_at_words() -> None:
    def function(g: hr.Graph) -> None:
        columns = [hr.lit(n).alias(f"a_rather_long_column_{n}") for n in range(9)]
        g.input("a").map(*columns).send_to(g.output("x"))

    text, _ = drawn(function)
    assert max(map(len, text.splitlines())) <= 100
    assert "a_rather_long_column_8" in text


def test_a_plan_is_drawn() -> None:
    lines = mermaid(plan(radar.build(), STREAMS, tasks=2)).splitlines()
    assert lines[0] == "flowchart TB"
    assert '  stream0[("flights")]' in lines
    assert '  subgraph stage1["stage 1: 2 tasks by origin, dest"]' in lines
    assert '    op0["flights.filter<br/>filter col(&quot;dep_delay&quot;).is_not_null()"]' in lines
    assert '  op0 == "origin, dest, dep_delay" ==> op1' in lines
    assert '  op1 == "origin, dest, window_start, mean" ==> op3' in lines
    assert "  op3 --> stream3" in lines
    assert sum(line.strip().startswith("subgraph") for line in lines) == lines.count("  end")


def test_every_edge_of_a_drawing_joins_nodes_that_exist() -> None:
    _, text = drawn(all_kinds)
    lines = [line.strip() for line in text.splitlines()]
    nodes = {line.split("[", 1)[0].split("(", 1)[0] for line in lines if line.endswith("]")}
    nodes |= {line.split("([", 1)[0] for line in lines if line.endswith("])")}
    edges = [line.split() for line in lines if "-->" in line or "==>" in line]
    assert len(edges) == 10
    assert {edge[0] for edge in edges} | {edge[-1] for edge in edges} <= nodes
