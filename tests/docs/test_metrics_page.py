"""The table of metrics is what a driver answers: names, types, labels and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families
from tests.support.watching import TABLE, metrics_text, new_live_job, show_parts

import headrace as hr
from headrace.testing import TestDriver

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "observation.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `headrace_")]


class Last:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("last").put(message.user, message.n)


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders", time="at").partition_by("user")
    orders.process(Last, stores={"last": int})
    orders.window(hr.tumbling("1s"), n=hr.agg.sum("n")).send_to(g.output("totals"))


def test_the_page_has_the_table() -> None:
    assert [
        f"| `{one.shown}` | {one.kind} | {', '.join(one.labels) or '-'} | {one.text} |"
        for one in TABLE
    ] == ROWS


def test_the_endpoint_has_the_table() -> None:
    with TestDriver(shop, slots=2, hosts=2, standby_copies=1) as driver:
        columns = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
        driver.create("orders", columns, time="at")
        live = new_live_job("shop", driver.settings, driver.clock)
        for n in range(3):
            driver.feed("orders", [{"user": "ann", "n": n, "at": 1_000_000 + n}])
            summary = driver.advance()
            assert summary is not None
            show_parts(live, driver)
            live.observe(summary)
        text = metrics_text(live).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(found) == {one.name for one in TABLE}
    bare = {"headrace_copy_behind_epochs", "headrace_copy_behind_seconds", "headrace_sink_rows"}
    for one in TABLE:
        family = found[one.name]
        assert (family.type, family.documentation) == (one.kind, one.text)
        labels = {frozenset(s.labels) - {"le"} for s in family.samples}
        if one.name not in {*bare, "headrace_alert_firing"}:  # of what this job does not have
            assert labels == {frozenset(one.all_labels)}, one.name


def test_names_have_the_units_that_prometheus_asks_for() -> None:
    for one in TABLE:
        assert not one.name.endswith(("_total", "_ms", "_mb", "_count", "_sum", "_bucket"))
        assert one.name.startswith("headrace_")
        if one.kind == "histogram":
            assert one.name.endswith("_seconds")
