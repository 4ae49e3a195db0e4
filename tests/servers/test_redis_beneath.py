"""Partial results over old data that a real Redis server is given: added once, whatever dies."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.servers.test_redis_partials import COLUMNS, Fed, job, totals

from headrace.bench.redis import RedisServer
from headrace.cli.jobs.merging import Brought, merge_into
from headrace.clock import SystemClock
from headrace.faults import injected
from headrace.graph.jobs import Job
from headrace.testing import TestDriver


class Died(BaseException):
    """The process that merges ends here."""


def merge(code: Job, home: Path) -> Brought:
    return merge_into("clicks", "clicks-backfill", code, (), 10.0, home, SystemClock())


@pytest.mark.parametrize("point", ["sink.part_sent", "merge.appended"])
def test_old_rows_are_added_to_totals_once(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr("headrace.coordinator.reprocessing.giving.ROWS", 5)
    monkeypatch.setattr("headrace.sinks.redis_appending.BATCH_ROWS", 3)
    monkeypatch.setattr("headrace.sinks.redis_receiver.IN_FLIGHT", 2)
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
        passed: list[str] = []

        def die(name: str) -> None:
            passed.append(name)
            if passed.count(point) == 2:
                raise Died

        with injected(die, (point,)), pytest.raises(Died):
            merge(clicks, tmp_path)
        assert dict(view.items()) != fed.wanted
        merge(clicks, tmp_path)
        assert dict(view.items()) == fed.wanted
        merge(clicks, tmp_path)
        assert dict(view.items()) == fed.wanted
