"""Drivers and slots that freeze before they send to a real server, and wake when others have sent.

What they still send changes nothing, not even where the server knows nothing of their epoch, as
after a job went on from a copy: its epochs are then of another lineage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.servers.conftest import ask
from tests.support.homes import Files
from tests.support.processes import SystemClock
from tests.support.servers import PostgresServer, RedisServer

import headrace as hr
from headrace.errors import NotOwnerError
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote
from headrace.graph.sinks import Receiver, Sink
from headrace.sinks import Prepared, RedisTotals, SinkEpoch, SinkSite
from headrace.state.remote_store import RemoteStore, Stamp
from headrace.testing import ManualClock, TestDriver, call_at

ROWS = pa.schema({"id": pa.int64(), "n": pa.int64()})


class Senders(ExitStack):
    """Drivers of one job that send to one sink."""

    def __init__(self, sink: Sink, home: Path, schema: pa.Schema = ROWS) -> None:
        super().__init__()
        self.sink, self._home, self._schema = sink, home, schema

    def driver(self, generation: int, origin: str = "first") -> Receiver:
        job, files = self._home.name, Files(sync=False)  # one of its own for each test
        site = SinkSite(job, "out", self._schema, SystemClock(), files, generation, origin)
        receiver = self.sink.open(site)
        self.callback(receiver.close)
        return receiver

    def epoch(self, number: int, *rows: tuple[int, Any], lineage: str = "a") -> SinkEpoch:
        path = self._home / f"{lineage}-{number}"
        if not path.exists():
            batch = pa.RecordBatch.from_arrays(
                [*map(pa.array, zip(*rows, strict=True))], schema=self._schema
            )
            Files(sync=False).write_new(path, self.sink.prepare([batch], self._schema))
        return SinkEpoch(lineage, number, (Prepared(path, len(rows)),))


def test_a_driver_frozen_in_its_transaction_does_not_hold_up_the_next_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """The server ends its connection, and with that its locks; its rows are not there."""
    sink = hr.sinks.postgres(postgres.url, "frozen", mode="upsert", key="id")
    with Senders(sink, tmp_path) as senders:
        old = senders.driver(1)
        old.commit(senders.epoch(1, (1, 1)))

        def take_over() -> None:
            senders.driver(2).commit(senders.epoch(2, (1, 20), (2, 20)))

        with call_at("sink.sent", take_over), pytest.raises(NotOwnerError, match="a newer driver"):
            old.commit(senders.epoch(2, (1, 20), (2, 20)))
    assert ask(postgres.url, "SELECT * FROM frozen ORDER BY id") == [(1, 20), (2, 20)]


def test_an_older_driver_overwrites_no_row_of_a_lineage_that_went_on_without_it(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    sink = hr.sinks.postgres(postgres.url, "lineages", mode="upsert", key="id")
    with Senders(sink, tmp_path) as senders:
        old, new = senders.driver(1), senders.driver(2)
        new.commit(senders.epoch(5, (1, 50), lineage="b"))
        for _ in range(2):
            with pytest.raises(NotOwnerError, match="of generation 1, stops"):
                old.commit(senders.epoch(9, (1, 9), lineage="a"))
        with pytest.raises(NotOwnerError):
            senders.driver(1)
        senders.driver(1, origin="another job of that name").commit(senders.epoch(1, (2, 2)))
    assert ask(postgres.url, "SELECT * FROM lineages ORDER BY id") == [(1, 50), (2, 2)]


def test_a_driver_of_a_job_that_was_deleted_and_begun_again_changes_no_row(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Its generation is no lower, and its lineage another: the origin tells."""
    sink = hr.sinks.postgres(postgres.url, "anew", mode="upsert", key="id")
    with Senders(sink, tmp_path) as senders:
        old = senders.driver(7)
        old.commit(senders.epoch(1, (1, 1)))

        def begin_again() -> None:
            senders.driver(3, origin="second").commit(senders.epoch(1, (1, 10), lineage="b"))

        with call_at("sink.sent", begin_again), pytest.raises(NotOwnerError, match="newer driver"):
            old.commit(senders.epoch(2, (1, 2), (2, 2)))
        with pytest.raises(NotOwnerError, match="of generation 7, stops"):
            old.commit(senders.epoch(2, (1, 2), (2, 2)))
        old.close()  # as a connection that broke
        with pytest.raises(NotOwnerError):
            old.commit(senders.epoch(2, (1, 2), (2, 2)))
        senders.driver(4, origin="second").commit(senders.epoch(2, (3, 30), lineage="b"))
    assert ask(postgres.url, "SELECT * FROM anew ORDER BY id") == [(1, 10), (3, 30)]


def test_who_opens_a_table_last_has_it_though_another_origin_had_a_higher_generation(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Nobody is shut out for good, but for the older drivers of each origin."""
    with Senders(hr.sinks.postgres(postgres.url, "turns"), tmp_path) as senders:
        first = senders.driver(5)
        other = senders.driver(1, origin="second")
        other.commit(senders.epoch(1, (1, 1), lineage="b"))
        with pytest.raises(NotOwnerError):
            senders.driver(4)
        other.commit(senders.epoch(2, (2, 2), lineage="b"))
        again = senders.driver(6)
        again.commit(senders.epoch(1, (3, 3)))
        for driver in (first, other):
            with pytest.raises(NotOwnerError):
                driver.commit(senders.epoch(9, (9, 9), lineage="c"))
    assert ask(postgres.url, "SELECT * FROM turns ORDER BY id") == [(1, 1), (2, 2), (3, 3)]


def test_rows_that_former_versions_noted_of_a_deleted_job_stop_nobody(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """They are all above zero."""
    with Senders(hr.sinks.postgres(postgres.url, "former"), tmp_path) as senders:
        for number in (2, 5):
            senders.driver(number, origin=f"of {number}")
        ask(postgres.url, "UPDATE headrace_drivers SET generation = abs(generation) RETURNING 1")
        senders.driver(6, origin="of 5").commit(senders.epoch(1, (1, 1)))
    assert ask(postgres.url, "SELECT * FROM former") == [(1, 1)]


def test_a_driver_of_another_user_is_refused_though_its_connection_stays(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.url
    other = url.replace("tester@", "other@")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE other LOGIN")
        connection.execute("GRANT ALL ON SCHEMA public TO other")
        with Senders(hr.sinks.postgres(url, "users", mode="upsert", key="id"), tmp_path) as senders:
            old = senders.driver(1)
            old.commit(senders.epoch(1, (1, 1)))
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO other")
            senders.sink = hr.sinks.postgres(other, "users", mode="upsert", key="id")
            senders.driver(2).commit(senders.epoch(5, (1, 50), lineage="b"))
            with pytest.raises(NotOwnerError, match="of generation 1, stops"):
                old.commit(senders.epoch(2, (1, 2)))
    assert ask(url, "SELECT * FROM users") == [(1, 50)]


def test_a_driver_goes_on_after_its_row_was_removed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with Senders(hr.sinks.postgres(postgres.url, "removed"), tmp_path) as senders:
        driver = senders.driver(3)
        ask(postgres.url, "DELETE FROM headrace_drivers RETURNING 1")
        driver.commit(senders.epoch(1, (1, 1)))
    job = tmp_path.name
    assert ask(postgres.url, f"SELECT generation FROM headrace_drivers WHERE job = '{job}'") == [
        (3,)
    ]


class Clicks(hr.MonoidProcessor[int, int]):
    def process(self, event: Any) -> Iterator[tuple[int, int]]:
        yield event.id, event.n

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


def clicks(url: str) -> hr.Job:
    @hr.job("clicks")
    def job(g: hr.Graph) -> None:
        g.input("in").monoid(Clicks, {"id": int}, hr.sinks.redis_partials(url, "clicks:"))

    return job


class Elsewhere(TestDriver):
    """A driver of the same home on another host, with stores of its own."""

    __test__ = False

    def state_dir(self, host: int) -> Path:
        return self.home / f"elsewhere-{host}"


def totals(server: RedisServer) -> dict[int, int]:
    partials = hr.sinks.redis_partials(server.url, "clicks:")
    with partials.totals(Clicks) as view:
        assert isinstance(view, RedisTotals)
        return dict(view.items())


@pytest.mark.parametrize("point", ["commit.published", "sink.due", "sink.part_sent"])
def test_partials_of_a_driver_whose_host_was_given_up_are_added_once(
    server: RedisServer, tmp_path: Path, point: str
) -> None:
    """It freezes with an epoch that the copy has not; another host goes on from the copy."""
    backup: dict[str, Any] = {"home": tmp_path, "memory_bus": False, "durability": "backup(30s)"}
    with TestDriver(clicks(server.url), **backup) as first:
        first.create("in", {"id": pa.int64(), "n": pa.int64()})
        first.feed("in", [{"id": 1, "n": 1}])
        first.run()
        first.copy()
        first.feed("in", [{"id": 1, "n": 10}, {"id": 2, "n": 10}])
        with Elsewhere(clicks(server.url), seed=7, **backup) as second:
            sent: list[dict[int, int]] = []

            def take_over() -> None:
                (first.settings.jobs_dir / "clicks" / "lease.json").unlink()
                sent.append(totals(server))
                second.run()

            refused = nullcontext() if point == "sink.part_sent" else pytest.raises(NotOwnerError)
            with call_at(point, take_over), refused:
                first.advance()
            [before] = sent
            expected = {1: before[1] + 10, 2: before.get(2, 0) + 10}
            assert totals(server) == expected


def test_a_sender_of_a_job_that_was_deleted_and_begun_again_adds_nothing(
    server: RedisServer, backdoor: Any, tmp_path: Path
) -> None:
    partials = hr.sinks.redis_partials(server.url, "anew:").of(Clicks, int)
    schema = pa.schema({"id": pa.int64(), "partial": pa.binary()})
    with Senders(partials, tmp_path, schema) as senders:
        old = senders.driver(7)
        old.commit(senders.epoch(1, (1, b"first")))

        def begin_again() -> None:
            senders.driver(3, origin="second").commit(senders.epoch(1, (1, b"new"), lineage="b"))

        with call_at("sink.part_sent", begin_again):
            old.commit(senders.epoch(2, (1, b"second")))
        for _ in range(2):
            with pytest.raises(NotOwnerError, match="of generation 7, stops"):
                old.commit(senders.epoch(3, (1, b"third")))
            old.close()  # as a connection that broke
        senders.driver(4, origin="second").commit(senders.epoch(2, (1, b"newer"), lineage="b"))
    [entry] = [name for name in backdoor.scan_iter("anew:*") if backdoor.type(name) == b"list"]
    assert backdoor.lrange(entry, 0, -1) == [b"first", b"second", b"new", b"newer"]


def test_of_two_homes_with_a_job_of_one_name_the_one_that_began_last_has_the_partials(
    server: RedisServer, tmp_path: Path
) -> None:
    """Nobody is shut out for good: the other one has them when it begins again."""
    sums = []
    with TestDriver(clicks(server.url), home=tmp_path / "1", memory_bus=False) as first:
        first.create("in", {"id": pa.int64(), "n": pa.int64()})
        with TestDriver(
            clicks(server.url), home=tmp_path / "2", memory_bus=False, seed=7
        ) as second:
            second.create("in", {"id": pa.int64(), "n": pa.int64()})
            for driver in (first, second):
                driver.feed("in", [{"id": 1, "n": 1}])
                driver.run()
                sums.append(totals(server)[1])
            first.feed("in", [{"id": 1, "n": 10}])
            with pytest.raises(NotOwnerError, match="taken over by a newer driver"):
                first.run()
            sums.append(totals(server)[1])
            first.crash()
            first.run()
            sums.append(totals(server)[1])
    assert sums == [1, 2, 2, 12]


class Opener:
    """Opens remote stores of one job on a server."""

    def __init__(self, url: str) -> None:
        self._url, self._clock = url, ManualClock()

    def __call__(self, epoch: int, generation: int = 1, **options: Any) -> RemoteStore:
        remote = Remote(url=self._url, **options)
        spec = StoreSpec("s", "remote", int, remote=remote)
        store = RemoteStore("job", spec, self._clock)
        store.begin(Stamp("job", "origin", generation, epoch))
        return store


@pytest.mark.parametrize("access", ["batched", "async", "blocking"])
@pytest.mark.parametrize("later", [(6, 1), (1, 2)], ids=["epoch", "driver"])
def test_a_slot_that_wakes_after_a_later_epoch_was_sent_overwrites_nothing(
    server: RedisServer, access: Any, later: tuple[int, int]
) -> None:
    opened = Opener(server.url)
    frozen, other = opened(5, access=access), opened(*later, access=access)

    def write(store: RemoteStore, change: Callable[[RemoteStore], None]) -> None:
        change(store)
        store.seal()
        store.send()

    write(frozen, lambda store: store.put("mine", 5))
    write(other, lambda store: store.put("a", 6))
    for change in (lambda store: store.put("a", 5), lambda store: store.delete("a")):
        with pytest.raises(NotOwnerError, match="has written"):
            write(frozen, change)
        frozen.begin(Stamp("job", "origin", 1, 5))
    write(other, lambda store: store.delete("mine"))
    fresh = opened(*later, access=access)
    assert (fresh.get("a"), fresh.get("mine")) == (6, None)
    for store in (frozen, other, fresh):
        store.close()


def test_time_to_live_and_many_keys_go_by_the_same_script(server: RedisServer) -> None:
    opened = Opener(server.url)
    store, fresh = opened(1, batch_keys=5000), opened(2)
    for number in range(9000):
        store.put(number, number)
    store.delete(9001)
    store.seal()
    assert store.send() == 9001
    assert fresh.get(8999) == 8999
    for one in (store, fresh):
        one.close()


@pytest.mark.parametrize("rule", ["-evalsha", "resetkeys ~headrace/*"])
def test_where_the_server_does_not_allow_it_writes_are_as_they_were(
    server: RedisServer, backdoor: Any, rule: str
) -> None:
    """They count as unfenced, and the last one to send wins."""
    backdoor.execute_command("ACL", "SETUSER", "plain", "on", ">word", "~*", "+@all", *rule.split())
    url = server.url.replace("redis://", "redis://plain:word@")
    opened = Opener(url)
    older, later = opened(5), opened(6)
    for store in (later, older):
        store.put("a", 5)
        store.seal()
        store.send()
    assert older.take_counts()["remote.s.unfenced"] == 1
    assert opened(7).get("a") == 5
