"""``headrace jobs why`` over branches, sides and ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.cli import done

import headrace as hr
from headrace.testing import TestDriver


def sort(message: Any) -> Any:
    return hr.to("big", {"id": message.id}) if message.id > 3 else {"id": message.id}


@hr.job("routed")
def routed(g: hr.Graph) -> None:
    parts = g.input("events").split(odd=hr.col("id") % 2 == 1, name="parts")
    sorted_ = parts["odd"].map(sort, returns={"id": int}, sides={"big": {"id": int}}, name="sort")
    sorted_.side("big").send_to(g.output("big"))
    sorted_.partition_by("id").deduplicate(name="once").send_to(g.output("once"))


def test_what_became_of_rows_is_told_of_each_branch(tmp_path: Path) -> None:
    with TestDriver(routed, tasks=2, home=tmp_path) as driver:
        driver.create("events", {"id": pa.int64()})
        driver.feed("events", [{"id": key} for key in (1, 1, 2, 3, 4, 5)])
        driver.run()
        driver.feed("events", [{"id": 1}, {"id": 3}])
        driver.run()
        why = json.loads(done("jobs", "why", "routed", "--json", "--home", tmp_path))

    told = {one["name"]: (one["received"], one["sent"], one["others"]) for one in why["operators"]}
    assert told["parts"] == (8, 6, {"unmatched": 2})
    assert told["parts.odd"] == (6, 6, {})
    assert told["sort"] == (6, 6, {})
    assert told["sort.big"] == (1, 1, {})
    assert told["once"] == (5, 2, {"duplicates": 3})
    stops = {one["operator"]: (one["stopped_at"], one["reason"]) for one in why["ends"]}
    assert stops["once.to_once"] == ("once", "it sent none of the rows that it got since")
