"""One remote store against a real server: the contract that holds, round trips, the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import msgspec
import pytest
from tests.servers.conftest import calls

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote
from headrace.records.keys import encode_key
from headrace.state.remote_store import RemoteStore
from headrace.testing import ManualClock
from headrace.testing.servers import RedisServer

ACCESSES = ["batched", "async", "blocking"]


class Profile(msgspec.Struct):
    name: str
    age: int = 0


class Opener:
    """Opens stores of one server, and closes them."""

    def __init__(self, server: RedisServer) -> None:
        self.url, self.clock = server.url, ManualClock()
        self.opened: list[RemoteStore] = []

    def __call__(
        self, value: Any = Any, ttl_ms: int | None = None, name: str = "s", **options: Any
    ) -> RemoteStore:
        spec = StoreSpec(
            name, "remote", value, ttl_ms, remote=Remote(**{"url": self.url, **options})
        )
        self.opened.append(RemoteStore("job", spec, self.clock))
        return self.opened[-1]


@pytest.fixture
def opened(server: RedisServer) -> Iterator[Opener]:
    opener = Opener(server)
    yield opener
    for store in opener.opened:
        store.close()


def end(store: RemoteStore) -> int:
    """End an epoch."""
    store.seal()
    return store.send()


@pytest.mark.parametrize("access", ACCESSES)
def test_what_was_put_is_there_in_the_next_epoch_and_in_another_task(
    opened: Opener, access: str
) -> None:
    mine, other = opened(int, access=access), opened(int, access=access)
    mine.put("a", 1)
    mine.put("b", 2)
    mine.delete("b")
    assert (mine.get("a"), mine.get("b"), "a" in mine, "b" in mine) == (1, None, True, False)
    end(mine)
    for store in (mine, other):
        assert (store.get("a"), store.get("b", 7)) == (1, 7)


@pytest.mark.parametrize("access", ["batched", "async"])
def test_nothing_is_sent_before_the_end(opened: Opener, backdoor: Any, access: str) -> None:
    """An epoch whose code fails has written nothing."""
    store = opened(int, access=access)
    store.put("a", 1)
    assert backdoor.dbsize() == 0
    store.seal()
    assert backdoor.dbsize() == 0
    store.discard()
    assert store.get("a") is None
    assert end(store) == 0


def test_a_blocking_put_is_there_at_once(opened: Opener, backdoor: Any) -> None:
    opened(int, access="blocking").put("a", 1)
    assert backdoor.dbsize() == 1


def test_keys_of_all_kinds_stay_apart(opened: Opener) -> None:
    keys = [1, 1.5, True, "1", b"1", None, ("a", 1), ("a", "1"), date(2020, 1, 1), 10**12]
    writer, reader = opened(int), opened(int)
    for number, key in enumerate(keys):
        writer.put(key, number)
    end(writer)
    assert [reader.get(key) for key in keys] == list(range(len(keys)))
    assert reader.get((1,)) == 0


def test_values_have_the_declared_type(opened: Opener) -> None:
    store = opened(Profile)
    store.put(1, Profile("ada", 36))
    end(store)
    assert store.get(1) == Profile("ada", 36)


@pytest.mark.parametrize("access", ["batched", "async"])
def test_an_object_is_the_same_until_the_epoch_ends(opened: Opener, access: str) -> None:
    store = opened(list[int], access=access)
    store.put(1, [1])
    assert store.get(1) is store.get(1)
    store.get(1).append(2)
    end(store)
    kept = store.get(1)
    kept.append(3)  # in place, without put: not kept
    end(store)
    assert store.get(1) == [1, 2]


def test_keys_stand_under_job_and_store_or_a_namespace(opened: Opener, backdoor: Any) -> None:
    for store in (opened(int), opened(int, namespace="n:")):
        store.put(5, 6)
        end(store)
    bare = encode_key((5,))
    assert backdoor.mget(b"headrace/job/s/" + bare, b"n:" + bare) == [b"\x06", b"\x06"]


def test_values_that_others_put_are_read(opened: Opener, backdoor: Any) -> None:
    backdoor.set(b"shared:" + encode_key(("de",)), msgspec.msgpack.encode({"name": "Germany"}))
    assert opened(Profile, namespace="shared:").get("de") == Profile("Germany")


def test_time_to_live_is_the_servers(opened: Opener, backdoor: Any) -> None:
    store = opened(int, ttl_ms=60_000)
    store.put("a", 1)
    store.delete("b")
    end(store)
    assert 0 < backdoor.pttl(b"headrace/job/s/" + encode_key(("a",))) <= 60_000


@pytest.mark.parametrize(("keys", "each", "commands"), [(1, 512, 1), (1_000, 512, 2), (10, 3, 4)])
@pytest.mark.parametrize("access", ["batched", "async"])
def test_a_batch_costs_few_commands(
    opened: Opener, backdoor: Any, access: str, keys: int, each: int, commands: int
) -> None:
    store = opened(int, access=access, batch_keys=each, cache="0s")
    wanted = [*range(keys), 0]
    if access == "batched":
        store.prefetch((), wanted, [encode_key((key,)) for key in wanted])
    else:
        store.prefetch_async(wanted)
    for key in wanted:
        store.put(key, store.get(key, 0) + 1)
    assert calls(backdoor, "mget") + calls(backdoor, "get") == commands
    end(store)
    assert calls(backdoor, "mset") == commands
    assert store.get(0) == 2


def test_a_batch_is_one_round_trip_each_way(opened: Opener) -> None:
    store = opened(int)
    store.prefetch((), (), [encode_key((key,)) for key in range(5_000)])
    for key in range(5_000):
        store.put(key, key)
    end(store)
    assert store.take_counts() == {
        "remote.s.misses": 5_000, "remote.s.writes": 5_000, "remote.s.round_trips": 2,
    }  # fmt: skip
    assert store.take_counts() == {}


def test_more_than_is_in_flight_goes_in_parts(opened: Opener) -> None:
    store = opened(int, batch_keys=10, in_flight=2)
    store.prefetch((), (), [encode_key((key,)) for key in range(100)])
    assert store.take_counts()["remote.s.round_trips"] == 5


def test_blocking_asks_for_each(opened: Opener, backdoor: Any) -> None:
    store = opened(int, access="blocking", cache="0s")
    store.prefetch((), (), [encode_key((1,))])
    for _ in range(5):
        store.put(1, store.get(1, 0) + 1)
    assert (calls(backdoor, "get"), calls(backdoor, "mset")) == (5, 5)
    assert store.get(1) == 5


def test_requests_of_one_turn_of_the_loop_share_a_command(opened: Opener, backdoor: Any) -> None:
    store = opened(int)
    store.put(3, 30)
    end(store)
    fresh = opened(int)

    async def ask() -> list[Any]:
        first = await asyncio.gather(*[fresh.get_async(key, 0) for key in (1, 2, 3, 3)])
        return [*first, await fresh.get_async(4)]

    from headrace.stores.redis import wait_for

    assert wait_for(ask()) == [0, 0, 30, 30, None]
    assert (calls(backdoor, "mget"), calls(backdoor, "get")) == (1, 1)


def test_a_put_while_a_request_is_under_way_is_newer(opened: Opener) -> None:
    store = opened(int)

    async def ask() -> Any:
        asked = asyncio.ensure_future(store.get_async(1))
        await asyncio.sleep(0)
        store.put(1, 5)
        return await asked

    from headrace.stores.redis import wait_for

    assert wait_for(ask()) == 5


def test_the_cache_answers_until_its_age_is_over(opened: Opener, backdoor: Any) -> None:
    store, other = opened(int, cache="10s"), opened(int)
    store.get(1)
    end(store)
    other.put(1, 5)
    end(other)
    opened.clock.advance(9_999)
    assert store.get(1) is None
    assert store.take_counts() == {
        "remote.s.misses": 1,
        "remote.s.hits": 1,
        "remote.s.round_trips": 1,
    }
    end(store)
    opened.clock.advance(1)
    assert store.get(1) == 5


def test_what_was_sent_is_cached(opened: Opener) -> None:
    store = opened(int, cache="10s")
    store.put(1, 5)
    end(store)
    assert store.get(1) == 5
    assert store.take_counts() == {
        "remote.s.writes": 1,
        "remote.s.hits": 1,
        "remote.s.round_trips": 1,
    }


def test_a_failed_epoch_empties_the_cache(opened: Opener) -> None:
    store, other = opened(int, cache="10s"), opened(int)
    store.get(1)
    end(store)
    other.put(1, 5)
    end(other)
    store.put(2, 1)
    store.discard()
    assert store.get(1) == 5


def test_a_value_of_another_type_is_told(opened: Opener) -> None:
    writer = opened(str)
    writer.put(1, "one")
    end(writer)
    with pytest.raises(InvalidInputError, match="store 's' holds a value that does not read as"):
        opened(int).get(1)


def test_bytes_that_are_no_messagepack_are_told(opened: Opener, backdoor: Any) -> None:
    backdoor.set(b"headrace/job/s/" + encode_key((1,)), b"\xc1")
    with pytest.raises(CorruptDataError, match="its writers must put MessagePack"):
        opened(int).get(1)


def test_a_list_under_a_key_is_told_when_asked_for_alone(opened: Opener, backdoor: Any) -> None:
    backdoor.rpush(b"headrace/job/s/" + encode_key((1,)), "x")
    with pytest.raises(InvalidInputError, match=r"another program uses.*namespace"):
        opened(int, access="blocking").get(1)


def test_a_value_that_cannot_be_kept_is_told_and_nothing_sent(
    opened: Opener, backdoor: Any
) -> None:
    store = opened()
    store.put(1, 1)
    store.put(2, object())
    with pytest.raises(InvalidInputError, match="store 's' cannot keep a object"):
        store.seal()
    assert backdoor.dbsize() == 0


def test_there_is_no_scan(opened: Opener) -> None:
    with pytest.raises(InvalidInputError, match="store 's' is remote and cannot be scanned"):
        opened().scan()


def test_changes_are_measured(opened: Opener) -> None:
    store = opened(bytes)
    assert store.overlay_bytes == 0
    for key in range(1_000):
        store.put(key, b"x" * 100)
    assert 100_000 < store.overlay_bytes < 1_000_000
    end(store)
    assert store.overlay_bytes == 0
