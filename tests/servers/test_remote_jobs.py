"""Jobs with remote stores against a real server: what holds, and what is only at-least-once."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.servers.conftest import calls
from tests.support.servers import RedisServer, decode_key, encode_key

import headrace as hr
from headrace import Job
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "country": pa.string()}


class Counter:
    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


class Last:
    """Keeps whole values: the country of each id."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.store("n").put(message.id, message.country)


class Enrich:
    """Looks a country up, whose key is not the partition key."""

    def process(self, message: Any, context: hr.Context) -> None:
        name = context.store("names").get(message.country, "?")
        context.emit({"id": message.id, "name": name})


class EnrichLater:
    def process(self, message: Any, context: hr.Context) -> None:
        context.get_later(
            "names",
            message.country,
            lambda name: context.emit({"id": message.id, "name": name}),
            default="?",
        )


def keyed(url: str, factory: Any, value: Any, **options: Any) -> Job:
    @hr.job("counts")
    def counts(g: hr.Graph) -> None:
        store = hr.store("n", value, kind="remote", url=url, remote=hr.Remote(**options))
        g.input("in").partition_by("id").process(factory, [store])

    return counts


def enriching(url: str, factory: Any, *, by: bool, **options: Any) -> Job:
    @hr.job("enrich")
    def enrich(g: hr.Graph) -> None:
        remote = hr.Remote(namespace="names:", **options)
        store = hr.store("names", str, kind="remote", url=url, remote=remote)
        stream = g.input("in")
        stream = stream.partition_by("id") if by else stream
        found = stream.process(factory, [store], returns={"id": int, "name": str})
        found.send_to(g.output("out"))

    return enrich


def held(redis: Any) -> dict[Any, Any]:
    """What the server holds of the one store of a test."""
    return {
        decode_key(key.split(b"/", 3)[3])[0]: msgspec.msgpack.decode(redis.get(key))
        for key in redis.keys("headrace/*")
    }


def feed(driver: TestDriver, ids: list[int], country: str = "de") -> None:
    driver.feed("in", [{"id": one, "country": country} for one in ids])


def names(redis: Any) -> None:
    for code, name in {"de": "Germany", "fr": "France"}.items():
        redis.set(b"names:" + encode_key((code,)), msgspec.msgpack.encode(name))


@pytest.mark.parametrize("access", ["batched", "async", "blocking"])
def test_messages_are_counted_over_epochs_and_crashes_between(
    server: RedisServer, backdoor: Any, access: str
) -> None:
    with TestDriver(keyed(server.url, Counter, int, access=access)) as driver:
        driver.create("in", COLUMNS, key=["id"])
        for _ in range(3):
            feed(driver, [1, 2, 2, 3] * 10)
            driver.run()
            driver.crash(lose_hosts=[0])
        assert held(backdoor) == {1: 30, 2: 60, 3: 30}


def test_an_epoch_is_one_round_trip_each_way_for_each_task(
    server: RedisServer, backdoor: Any
) -> None:
    with TestDriver(keyed(server.url, Counter, int), tasks=2) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, list(range(200)))
        summary = driver.advance()
        assert summary is not None
        assert {name: n for name, n in summary.counts.items() if name.startswith("remote.")} == {
            "remote.n.misses": 200,
            "remote.n.writes": 200,
            "remote.n.round_trips": 4,
        }
        assert not any(name.startswith("remote.") for name in driver.coordinator.state.counts)
        feed(driver, list(range(200)))
        again = driver.advance()
        assert again is not None
        assert again.counts["remote.n.hits"] == 200
        assert (calls(backdoor, "mget"), calls(backdoor, "mset")) == (2, 4)


@pytest.mark.parametrize(
    "point", ["slot.caught_up", "slot.ran", "slot.segment_written", "slot.output_written"]
)
def test_a_slot_that_dies_before_it_sends_has_written_nothing(
    server: RedisServer, backdoor: Any, point: str
) -> None:
    with TestDriver(keyed(server.url, Counter, int), tasks=1, slots=1) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1, 2, 2])
        assert driver.advance_with_crash(point)
        driver.run()
        assert held(backdoor) == {1: 1, 2: 2}


@pytest.mark.parametrize("point", ["slot.remote_sent", "epoch.before_commit"])
def test_whole_values_come_to_the_same_when_an_epoch_is_run_again(
    server: RedisServer, backdoor: Any, point: str
) -> None:
    with TestDriver(keyed(server.url, Last, str), tasks=1, slots=1) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1, 2], "de")
        feed(driver, [2], "fr")
        assert driver.advance_with_crash(point)
        assert held(backdoor) == {1: "de", 2: "fr"}  # early
        driver.run()
        assert held(backdoor) == {1: "de", 2: "fr"}


def test_a_counter_counts_an_epoch_twice_that_was_sent_and_not_committed(
    server: RedisServer, backdoor: Any
) -> None:
    """At-least-once, as the docstring says: this is what the promise leaves out."""
    with TestDriver(keyed(server.url, Counter, int), tasks=1, slots=1) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1])
        assert driver.advance_with_crash("epoch.before_commit")
        driver.run()
        assert held(backdoor) == {1: 2}


class Fails:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("n").put(message.id, 1)
        if message.country == "bad":
            raise ValueError("bad country")


def test_a_slot_whose_code_fails_has_written_nothing(server: RedisServer, backdoor: Any) -> None:
    with TestDriver(keyed(server.url, Fails, int), slots=1) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1, 2, 3])
        feed(driver, [4], "bad")
        with pytest.raises(HeadraceError, match="bad country"):
            driver.run()
        assert backdoor.dbsize() == 0


def test_a_server_that_dies_stops_the_epoch_and_the_job_goes_on_with_it(
    durable_server: RedisServer,
) -> None:
    import redis as client_library

    with TestDriver(keyed(durable_server.url, Counter, int, cache="0s")) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1, 1, 2])
        driver.run()
        durable_server.kill()
        feed(driver, [1, 3])
        with pytest.raises(UnavailableError, match=r"the server at redis://127\.0\.0\.1"):
            driver.run()
        assert durable_server.start()
        driver.crash()
        driver.run()
        with client_library.Redis.from_url(durable_server.url) as redis:
            assert held(redis) == {1: 3, 2: 1, 3: 1}


@pytest.mark.parametrize("by", [True, False], ids=["keyed", "without a key"])
@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (Enrich, {"load": ("country",)}),
        (Enrich, {}),
        (Enrich, {"access": "blocking"}),
        (EnrichLater, {"access": "async"}),
        (EnrichLater, {"access": "blocking"}),
    ],
)
def test_a_stream_is_enriched_by_another_key_than_its_own(
    server: RedisServer, backdoor: Any, factory: Any, options: dict[str, Any], by: bool
) -> None:
    """The paper's case for a remote store: the state is keyed otherwise than the input."""
    names(backdoor)
    with TestDriver(enriching(server.url, factory, by=by, **options), tasks=2) as driver:
        driver.create("in", COLUMNS)
        for country in ("de", "fr", "xx", "de"):
            feed(driver, [1, 2, 3], country)
        driver.run()
        found = driver.output("out")
        each = {one: [row["name"] for row in found if row["id"] == one] for one in (1, 2, 3)}
        assert each == {one: ["Germany", "France", "?", "Germany"] for one in (1, 2, 3)}


def test_a_batch_is_enriched_with_one_command(server: RedisServer, backdoor: Any) -> None:
    names(backdoor)
    for factory, options in ((Enrich, {"load": ("country",)}), (EnrichLater, {"access": "async"})):
        backdoor.config_resetstat()
        job = enriching(server.url, factory, by=False, **options)
        with TestDriver(job) as driver:
            driver.create("in", COLUMNS)
            for country in ("de", "fr", "xx"):
                feed(driver, list(range(100)), country)
            driver.run()
            assert len(driver.output("out")) == 300
        assert (calls(backdoor, "mget"), calls(backdoor, "get")) == (1, 0)


class Chain:
    """Follows a value to the next: a callback that asks again."""

    def process(self, message: Any, context: hr.Context) -> None:
        def then(name: str | None, seen: tuple[str, ...] = ()) -> None:
            if name is None:
                context.emit({"id": context.key, "name": " ".join(seen)})
            else:
                context.get_later("names", name, lambda found: then(found, (*seen, name)))

        context.get_later("names", message.country, then)


def test_an_answer_may_ask_again_and_is_still_its_message(
    server: RedisServer, backdoor: Any
) -> None:
    for code, name in {"a": "b", "b": "c", "x": "y"}.items():
        backdoor.set(b"names:" + encode_key((code,)), msgspec.msgpack.encode(name))
    with TestDriver(enriching(server.url, Chain, by=True, access="async"), tasks=1) as driver:
        driver.create("in", COLUMNS)
        for one, country in enumerate(("a", "x", "q", "b")):
            feed(driver, [one], country)
        driver.run()
        found = {row["id"]: row["name"] for row in driver.output("out")}
        assert found == {0: "b c", 1: "y", 2: "", 3: "c"}


class AsksLocal:
    def process(self, message: Any, context: hr.Context) -> None:
        context.get_later("local", message.id, print)


def test_a_local_store_is_not_asked_later(server: RedisServer) -> None:
    @hr.job("asks")
    def asks(g: hr.Graph) -> None:
        g.input("in").partition_by("id").process(AsksLocal, {"local": int})

    with TestDriver(asks) as driver:
        driver.create("in", COLUMNS)
        feed(driver, [1])
        with pytest.raises(InvalidInputError, match="store 'local' is local: use get"):
            driver.run()


class Both:
    """A local store beside a remote one."""

    def process(self, message: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        seen.put(message.id, seen.get(message.id, 0) + 1)
        context.store("shared").put(message.id, seen.get(message.id))


@pytest.mark.parametrize("first", ["local", "remote"])
def test_local_and_remote_stores_stand_side_by_side(
    server: RedisServer, backdoor: Any, first: str
) -> None:
    """The local count is exactly-once, so what it puts remotely comes out right as well."""
    shared = hr.store("shared", int, kind="remote", url=server.url)
    stores = [hr.store("seen", int, kind="memory"), shared]

    @hr.job("both")
    def both(g: hr.Graph) -> None:
        ordered = stores if first == "local" else stores[::-1]
        g.input("in").partition_by("id").process(Both, ordered, name="both")

    with TestDriver(both, tasks=1, slots=1) as driver:
        driver.create("in", COLUMNS, key=["id"])
        feed(driver, [1, 1, 2])
        assert driver.advance_with_crash("epoch.before_commit")
        feed(driver, [1])
        driver.run()
        assert driver.store("seen") == {1: 3, 2: 1}
        assert held(backdoor) == {1: 3, 2: 1}
