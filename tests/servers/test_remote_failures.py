"""Servers that die, come back, hang, refuse or are not there; and what is told then."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import SystemClock
from headrace.errors import InvalidInputError, UnavailableError
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote
from headrace.records.keys import encode_key
from headrace.state.remote_store import RemoteStore
from headrace.testing.servers import RedisServer, free_port, redis_binary

ACCESSES = ["batched", "async", "blocking"]


@pytest.fixture
def server(own_server: RedisServer) -> RedisServer:
    return own_server


def opened(url: str, **options: Any) -> RemoteStore:
    remote = Remote(url=url, **{"timeout": "5s", "retry_timeout": "10s", **options})
    return RemoteStore("job", StoreSpec("s", "remote", int, remote=remote), SystemClock())


def read(store: RemoteStore, key: int) -> Any:
    """Read in the way the store is for."""
    if store.remote.access == "async":
        store.prefetch_async([key])
    return store.get(key)


@pytest.mark.parametrize("access", ACCESSES)
def test_a_server_that_was_restarted_in_mid_epoch_is_found_again(
    durable_server: RedisServer, access: str
) -> None:
    """Broken connections are opened again, and what was acknowledged is still there."""
    store = opened(durable_server.url, access=access, cache="0s")
    store.put(1, 5)
    store.seal()
    store.send()
    assert read(store, 1) == 5
    store.put(2, 6)
    durable_server.kill()
    assert durable_server.start()
    assert read(store, 3) is None
    store.seal()
    store.send()
    assert (read(store, 1), read(store, 2)) == (5, 6)
    store.close()


@pytest.mark.parametrize("access", ACCESSES)
def test_a_server_that_comes_back_while_it_is_asked_for_is_waited_for(
    durable_server: RedisServer, access: str
) -> None:
    store = opened(durable_server.url, access=access)
    store.put(1, 5)
    store.seal()
    store.send()
    store = opened(durable_server.url, access=access)
    durable_server.kill()
    back = threading.Thread(target=durable_server.start)
    back.start()
    assert read(store, 1) == 5
    back.join()
    store.close()


@pytest.mark.parametrize("access", ACCESSES)
def test_no_server_is_told_with_its_address_and_without_the_password(access: str) -> None:
    url = f"redis://reader:secret@127.0.0.1:{free_port()}/0"
    store = opened(url, access=access, retry_timeout="50ms")
    with pytest.raises(UnavailableError) as failure:
        read(store, 1)
    told = str(failure.value)
    assert f"store 's': the server at {url.replace(':secret', '')} did not answer" in told
    assert "check that it runs" in told
    assert "secret" not in told


def test_a_server_that_accepts_and_says_nothing_is_a_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        store = opened(url, timeout="50ms", retry_timeout="0s")
        with pytest.raises(UnavailableError, match=r"did not answer, 1 tries within 0s: Timeout"):
            store.get(1)


def test_a_login_that_is_refused_is_not_tried_again(server: RedisServer, backdoor: Any) -> None:
    backdoor.acl_setuser("reader", enabled=True, passwords=["+right"], keys=["x*"])
    store = opened(server.url.replace("//", "//reader:wrong@"))
    with pytest.raises(InvalidInputError, match=r"refuses this login.*\$\{PASSWORD\}"):
        store.get(1)
    backdoor.config_set("requirepass", "right")
    with pytest.raises(InvalidInputError, match="refuses this login: "):
        opened(server.url).get(1)


def test_the_password_may_come_from_the_environment(
    server: RedisServer, backdoor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backdoor.config_set("requirepass", "r/i:g@h%t")
    url = server.url.replace("//127.0.0.1", "//:${THE_PASSWORD}@${THE_HOST}")
    monkeypatch.setenv("THE_HOST", "127.0.0.1")
    with pytest.raises(InvalidInputError, match=r"variables that are not set.*'THE_PASSWORD'"):
        opened(url).get(1)
    monkeypatch.setenv("THE_PASSWORD", "r/i:g@h%t")
    store = opened(url)
    assert store.get(1) is None
    store.close()


def test_a_full_server_is_told(server: RedisServer, backdoor: Any) -> None:
    backdoor.config_set("maxmemory", "1")
    store = opened(server.url)
    store.put(1, 1)
    store.seal()
    with pytest.raises(UnavailableError, match=r"refuses: .*make room"):
        store.send()
    store.close()


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(InvalidInputError, match=r"has no address; give hr\.store\(url=\.\.\.\)"):
        RemoteStore("job", StoreSpec("s", "remote"), SystemClock()).get(1)


def test_a_forked_child_has_connections_of_its_own(server: RedisServer, tmp_path: Path) -> None:
    """Two processes on one socket would read each other's answers."""
    code = f"""
import os
from headrace.clock import SystemClock
from headrace.graph.operators import StoreSpec
from headrace.graph.shared_stores import Remote
from headrace.state.remote_store import RemoteStore

remote = Remote(url={server.url!r}, cache="0s")
store = RemoteStore("job", StoreSpec("s", "remote", int, remote=remote), SystemClock())
for key in range(100):
    store.put(key, key)
store.seal()
store.send()
store.prefetch_async([1])
child = os.fork()
store.discard()
for _ in range(50):
    store.discard()
    store.prefetch((), (), {[encode_key((key,)) for key in range(100)]!r})
    assert [store.get(key) for key in range(100)] == list(range(100))
    store.discard()
    store.prefetch_async(list(range(100)))
    assert [store.get(key) for key in range(100)] == list(range(100))
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(InvalidInputError, match=r'pip install "headrace\[redis\]"'):
        opened("redis://127.0.0.1:1/0").get(1)


def test_a_missing_server_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInputError, match="sudo apt-get install redis-server"):
        redis_binary()
