"""Partial results over old data that a real Redis server is given: added once, whatever dies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.servers.test_redis_partials import COLUMNS, Fed, job, totals
from tests.support.changes import MergeOutcome, merge_run
from tests.support.limits import limit
from tests.support.servers import RedisServer

from headrace import Job
from headrace.testing import TestDriver, crash_at


def merge(code: Job, home: Path) -> MergeOutcome:
    return merge_run(code, home)


@pytest.mark.parametrize("point", ["sink.part_sent", "merge.appended"])
def test_old_rows_are_added_to_totals_once(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    limit(monkeypatch, sink_rows=5, redis_batch_rows=3, redis_in_flight=2)
    clicks, fed = job(server.url), Fed(1)
    with (
        TestDriver(clicks, home=tmp_path, memory_bus=False, start="latest") as live,
        totals(server) as view,
    ):
        live.create("in", COLUMNS)
        fed.feed(live, 40)
        live.run()
        assert dict(view.items()) == {}
        fed.feed(live, 40)
        live.run()
        live.crash()
        apart = dataclasses.replace(clicks, name="clicks-backfill", apart="backfill")
        span = {"in": {"to_offset": "40"}}
        with TestDriver(apart, home=tmp_path, memory_bus=False, inputs=span) as run:
            run.finish()
        with crash_at(point, 2):
            merge(clicks, tmp_path)
        assert dict(view.items()) != fed.wanted
        merge(clicks, tmp_path)
        assert dict(view.items()) == fed.wanted
        merge(clicks, tmp_path)
        assert dict(view.items()) == fed.wanted
