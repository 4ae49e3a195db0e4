"""Aggregates that keep values or sketches, through exchange, stores, merges and inspection."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"k": pa.string(), "v": pa.int64(), "name": pa.string(), "at": pa.int64()}
AGGREGATES: dict[str, Any] = {
    "first": hr.agg.first("name", by="at"),
    "last": hr.agg.last("v", by="at"),
    "arrived": hr.agg.last("v"),
    "all": hr.agg.collect("v"),
    "rows": hr.agg.collect("v", "name"),
    "spread": hr.agg.variance("v"),
    "different": hr.agg.count_distinct("v"),
    "once": hr.agg.distinct("name"),
    "names": hr.agg.approx_distinct("name"),
    "middle": hr.agg.quantiles("v", [0.0, 0.5, 1.0]),
    "often": hr.agg.frequent("name", 1),
}


def rows_of(count: int) -> list[dict[str, Any]]:
    return [
        {"k": "ab"[n % 2], "v": (n * 7) % 11, "name": None if n % 5 == 0 else f"n{n % 3}", "at": n}
        for n in range(count)
    ]


def expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    values = [row["v"] for row in rows]
    names = [row["name"] for row in rows if row["name"] is not None]
    often = sorted((-n, name) for name, n in Counter(names).items())[:1]
    ordered = sorted(values)
    return {
        "first": names[0] if names else None,
        "last": values[-1],
        "arrived": values[-1],
        "all": values,
        "rows": [{"v": row["v"], "name": row["name"]} for row in rows],
        "spread": pytest.approx(statistics.variance(values)) if len(values) > 1 else None,
        "different": len(set(values)),
        "once": list(dict.fromkeys(names)),
        "names": len(set(names)),
        "middle": [ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]],
        "often": [{"name": name, "count": -n, "least": -n} for n, name in often],
    }


@pytest.mark.parametrize("store", ["columnar", "memory"])
def test_windows_and_totals_of_every_kind(store: str, tmp_path: Path) -> None:
    """Over several epochs, restarts and panes; then as ``headrace state`` shows them."""

    @hr.job("kinds")
    def kinds(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        keyed.window(hr.hopping("10ms", "5ms"), store=store, name="hops", **AGGREGATES).send_to(
            g.output("hops")
        )
        keyed.window(hr.session("3ms"), store=store, name="visits", **AGGREGATES).send_to(
            g.output("visits")
        )
        keyed.aggregate(store=store, name="totals", **AGGREGATES).send_to(g.output("totals"))

    rows = rows_of(24)
    with TestDriver(kinds, tasks=2, home=tmp_path, max_rows=5) as driver:
        driver.create("in", COLUMNS, time="at")
        for begin in range(0, 24, 8):
            driver.feed("in", rows[begin : begin + 8])
            driver.run()
            driver.crash()
        for name in ("totals", "hops", "visits"):
            text = done("state", "get", "kinds", name, "a", "--json", "--home", tmp_path)
            shown = [json.loads(line) for line in text.splitlines()]
            if name == "totals":
                wanted = expected([row for row in rows if row["k"] == "a"])
                assert wanted == {column: shown[0][column] for column in wanted}
            assert shown
        driver.finish()
        seen: dict[str, int] = Counter()
        for row in driver.output("totals"):
            seen[row["k"]] += 1
            mine = [r for r in rows if r["k"] == row["k"]][: seen[row["k"]]]
            assert {"k": row["k"], **expected(mine)} == row
        for row in driver.output("hops"):
            end = row["window_end"].microsecond // 1000
            mine = [r for r in rows if r["k"] == row["k"] and end - 10 <= r["at"] < end]
            assert expected(mine) == {name: row[name] for name in AGGREGATES}
        for row in driver.output("visits"):
            mine = [r for r in rows if r["k"] == row["k"]]
            assert expected(mine) == {name: row[name] for name in AGGREGATES}
