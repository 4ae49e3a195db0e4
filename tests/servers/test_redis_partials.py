"""Totals of monoids on a real Redis: appended once whatever dies, never read to be added to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.servers.conftest import calls
from tests.support.limits import limit
from tests.support.servers import RedisServer, compact_partials, encode_key, read_partials

import headrace as hr
from headrace import Job
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.sinks import ReceiverAwayError, RedisTotals
from headrace.testing import FAULT_POINTS, TestDriver, each_at

COLUMNS = {"page": pa.string(), "n": pa.int64()}
STEPS = ("epoch.", "commit.", "slot.", "sink.")
NOT_PASSED = ("epoch.output_published", "slot.merge", "slot.segment", "slot.exchange", "sink.")
POINTS = [p for p in FAULT_POINTS if p.startswith(STEPS) and not p.startswith(NOT_PASSED)]
POINTS += ["sink.part_sent", "sink.committed"]


class Clicks(hr.MonoidProcessor[tuple[str, int], int]):
    def process(self, event: Any) -> Iterator[tuple[tuple[str, int], int]]:
        yield (event.page, event.n % 3), event.n
        yield ("all", 0), event.n

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


def job(url: str, **options: Any) -> Job:
    @hr.job("clicks")
    def clicks(g: hr.Graph) -> None:
        state = hr.sinks.redis_partials(url, "clicks:", **options)
        g.input("in").monoid(Clicks, {"page": str, "third": int}, state)

    return clicks


def totals(server: RedisServer) -> RedisTotals:
    return hr.sinks.redis_partials(server.url, "clicks:").totals(Clicks)


class Fed:
    """Rows that were fed, and what their totals are."""

    def __init__(self, seed: int) -> None:
        self.rng, self.wanted = random.Random(seed), Counter[tuple[str, int]]()

    def feed(self, driver: TestDriver, count: int) -> None:
        rows: list[dict[str, Any]] = [
            {"page": f"p{self.rng.randrange(5)}", "n": self.rng.randrange(1, 50)}
            for _ in range(count)
        ]
        for row in rows:
            self.wanted[row["page"], row["n"] % 3] += row["n"]
            self.wanted["all", 0] += row["n"]
        driver.feed("in", rows)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, redis_batch_rows=3, redis_in_flight=2)


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_adds_each_row_once(server: RedisServer, point: str) -> None:
    fed = Fed(1)
    with TestDriver(job(server.url, compact_at=4), tasks=2) as driver, totals(server) as view:
        driver.create("in", COLUMNS, partitions=3)
        for nth in (1, 2, 1, 3):
            fed.feed(driver, 40)
            assert driver.advance_with_crash(point, nth) or nth > 1
            driver.run()
            assert dict(view.items()) == fed.wanted
            assert view.get_many(list(fed.wanted)) == list(fed.wanted.values())


def test_nothing_is_read_to_add_to_it(server: RedisServer, backdoor: Any) -> None:
    fed = Fed(2)
    with TestDriver(job(server.url)) as driver, totals(server) as view:
        driver.create("in", COLUMNS)
        for _ in range(5):
            fed.feed(driver, 30)
            driver.run()
        assert (calls(backdoor, "lrange"), calls(backdoor, "get")) == (0, 0)
        assert backdoor.llen(b"clicks:" + encode_key(("all", 0))) == 5
        assert dict(view.items()) == fed.wanted


def test_lists_are_kept_short_and_say_the_same(server: RedisServer, backdoor: Any) -> None:
    fed = Fed(3)
    with TestDriver(job(server.url, compact_at=3), slots=1) as driver, totals(server) as view:
        driver.create("in", COLUMNS)
        for _ in range(10):
            fed.feed(driver, 30)
            driver.run()
            names = [name for name in backdoor.keys("clicks:*") if b"progress" not in name]
            assert max(map(backdoor.llen, names)) < 3
            assert dict(view.items()) == fed.wanted
        long = sum(backdoor.llen(name) > 1 for name in names)
        assert view.compact() == long
        assert dict(view.items()) == fed.wanted


def test_whoever_puts_together_late_changes_nothing(server: RedisServer, backdoor: Any) -> None:
    fed = Fed(4)
    with TestDriver(job(server.url)) as driver, totals(server) as view:
        driver.create("in", COLUMNS)
        for _ in range(2):
            fed.feed(driver, 30)
            driver.run()
        name = b"clicks:" + encode_key(("all", 0))

        class Slow:
            """Another puts together and a job appends between its reading and its writing."""

            def joined(self, partials: list[bytes]) -> bytes:
                view.compact()
                fed.feed(driver, 10)
                driver.run()
                return view._merge.joined(partials)

        assert compact_partials(backdoor, [name], Slow()) == 0  # type: ignore[arg-type]
        assert len(read_partials(backdoor, [name])[0]) == 2
        assert dict(view.items()) == fed.wanted


def test_a_key_that_nothing_was_added_to_has_the_identity(server: RedisServer) -> None:
    with totals(server) as view:
        assert view.get(("none", 0)) == 0
        assert list(view.items()) == []


def test_a_server_that_dies_is_waited_for_and_gets_each_row_once(
    durable_server: RedisServer,
) -> None:
    fed = Fed(5)
    with TestDriver(job(durable_server.url), tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=2)
        fed.feed(driver, 40)
        driver.run()
        durable_server.kill()
        fed.feed(driver, 40)
        with pytest.raises(ReceiverAwayError, match="does not answer"):
            driver.run()
        assert durable_server.start()
        driver.crash()
        fed.feed(driver, 5)
        driver.run()
        with totals(durable_server) as view:
            assert dict(view.items()) == fed.wanted


def test_a_server_that_dies_in_mid_epoch_gets_the_rest(durable_server: RedisServer) -> None:
    fed = Fed(8)
    with TestDriver(job(durable_server.url), tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=2)
        fed.feed(driver, 60)

        away = pytest.raises(ReceiverAwayError)
        with each_at("sink.part_sent", durable_server.kill), away:
            driver.run()
        assert durable_server.start()
        with totals(durable_server) as view:
            assert 0 < len(dict(view.items())) < len(fed.wanted)
            driver.run()
            assert dict(view.items()) == fed.wanted


def test_an_entry_of_another_program_stops_the_job_and_loses_nothing(
    server: RedisServer, backdoor: Any
) -> None:
    fed, name = Fed(6), b"clicks:" + encode_key(("all", 0))
    backdoor.set(name, b"theirs")
    with TestDriver(job(server.url)) as driver, totals(server) as view:
        driver.create("in", COLUMNS, partitions=2)
        fed.feed(driver, 40)
        with pytest.raises(InvalidInputError, match="is no list"):
            driver.run()
        driver.crash()
        backdoor.delete(name)
        driver.run()
        assert dict(view.items()) == fed.wanted


def test_totals_of_another_type_say_so(server: RedisServer, backdoor: Any) -> None:
    backdoor.rpush(b"clicks:" + encode_key(("all", 0)), b"\xa1x")
    with totals(server) as view, pytest.raises(CorruptDataError, match="does not read as"):
        view.get(("all", 0))


def test_a_login_that_is_refused_is_told(server: RedisServer) -> None:
    url = server.url.replace("redis://", "redis://nobody:wrong@")
    with TestDriver(job(url)) as driver:
        driver.create("in", COLUMNS)
        driver.feed("in", [{"page": "a", "n": 1}])
        with pytest.raises(InvalidInputError, match="refuses this login"):
            driver.run()


def test_a_graph_without_local_state_runs_bounded(server: RedisServer, tmp_path: Path) -> None:
    del tmp_path
    fed = Fed(7)
    with TestDriver(job(server.url), tasks=2) as driver, totals(server) as view:
        driver.create("in", COLUMNS, partitions=2)
        fed.feed(driver, 100)
        driver.finish()
        assert dict(view.items()) == fed.wanted
