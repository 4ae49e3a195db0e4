"""How fast `headrace serve` is, beside Redis: `python bench/serving.py [--keys N]` prints JSON.

Keys and values of about ten bytes, of a stream. `redis-benchmark` asks with 50 connections beside
the server: GETs one by one, GETs in pipelines of 16, and MGETs of 100 keys (whose rate is of keys).
Redis gets the same entries and questions, in turn with the server, and each rate is the median of
some rounds. `half` is the 99th percentile in ms of GETs at half the rate of the first, sent by one
thread at set times. `load` is keys a second from rows in memory into entries of each kind, and
`served_keys_a_second` those from the start of the command until the table is served.

`--session` is another measurement: keys a second of one core from the bytes of requests to those of
replies, in memory and without sockets, which programs beside change less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis

from headrace.bus import FileBus, StreamSpec
from headrace.clock import SystemClock
from headrace.records.keys import encode_key
from headrace.serving.entries import DiskEntries, MemoryEntries
from headrace.serving.redis_session import RedisSession, ServerFacts
from headrace.serving.rows import ColumnRows
from headrace.serving.table import ServedTable, Tables, TableVersion
from headrace.testing.servers import RedisServer

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])
ROWS = ColumnRows(pa.schema([SCHEMA.field("id")]), pa.schema([SCHEMA.field("n")]), is_bare=True)
PART = 50_000
CONNECTIONS = 50
CLOCK = SystemClock()


def batches(keys: int) -> Iterator[pa.RecordBatch]:
    """Yield rows; keys are twelve digits, which `redis-benchmark` makes, too."""
    for begin in range(0, keys, PART):
        numbers = range(begin, min(begin + PART, keys))
        ids = [f"{number:012}" for number in numbers]
        yield pa.RecordBatch.from_pydict({"id": ids, "n": list(numbers)}, SCHEMA)


def loaded(keys: int, folder: Path) -> dict[str, int]:
    """Return keys a second into entries of each kind, of rows that are in memory."""
    found = {}
    rows = list(batches(keys))
    for name, entries in (("memory", MemoryEntries()), ("disk", DiskEntries(folder / "entries"))):
        began = time.perf_counter()
        for batch in rows:
            entries.load(*ROWS.encode(batch))
        entries.loaded()
        found[name] = round(keys / (time.perf_counter() - began))
        entries.close()
    return found


def command(home: Path) -> list[str]:
    """Return the command that serves the rows."""
    words = [sys.executable, "-m", "headrace.cli.main", "serve", "--stream", "key", "--bare"]
    return [*words, "--home", str(home), "--port", "0", "--json"]


@contextlib.contextmanager
def serving(home: Path, keys: int, *words: str) -> Iterator[tuple[int, float]]:
    """Serve a stream of rows; yields the port and the seconds until it was served."""
    with subprocess.Popen([*command(home), *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        began = time.perf_counter()
        assert json.loads(process.stdout.readline())["keys"] == keys
        try:
            yield int(told["address"].rpartition(":")[2]), time.perf_counter() - began
        finally:
            process.terminate()


def rate(port: int, keys: int, requests: int, pipeline: int, *words: str) -> float:
    """Return the requests a second that `redis-benchmark` measures."""
    command = ["redis-benchmark", "-p", str(port), "-n", str(requests), "-c", str(CONNECTIONS)]
    command += ["-r", str(keys), "-P", str(pipeline), "--csv", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r'","([0-9.]+)"', ran.stdout)
    return float(found[0])


def rates(port: int, keys: int, requests: int) -> dict[str, float]:
    """Return keys a second of each kind of question."""
    key = "key:__rand_int__"
    many = [key] * 100
    return {
        "get": rate(port, keys, requests, 1, "get", key),
        "pipelined": rate(port, keys, requests * 4, 16, "get", key),
        "mget": 100 * rate(port, keys, max(100, requests // 10), 1, "mget", *many),
    }


def answered(keys: int, seconds: float = 1.0) -> dict[str, int]:
    """Return keys a second of a core that a session answers, without sockets."""
    table, entries = ServedTable("key", b"key:", ROWS, CLOCK), MemoryEntries()
    for batch in batches(keys):
        entries.load(*ROWS.encode(batch))
    entries.loaded()
    table.swap(entries, TableVersion(1, 0, "bench"))
    session, dice = RedisSession(ServerFacts(Tables([table]), CLOCK)), random.Random(1)
    found = {}
    for name, count, head, lead in (
        ("get", 1, b"", b"*2\r\n$3\r\nGET\r\n"),
        ("pipelined", 16, b"", b"*2\r\n$3\r\nGET\r\n"),
        ("mget", 100, b"*101\r\n$4\r\nMGET\r\n", b""),
    ):
        asked = [
            head
            + b"".join(
                b"%b$16\r\nkey:%012d\r\n" % (lead, dice.randrange(keys)) for _ in range(count)
            )
            for _ in range(max(500, 50_000 // count))
        ]
        reads, began = 0, time.thread_time()
        while time.thread_time() - began < seconds:
            for one in asked:
                session.feed(one)
            reads += count * len(asked)
        found[name] = round(reads / (time.thread_time() - began))
    table.close()
    return found


def latency_ms(port: int, a_second: float, seconds: float = 5.0) -> float:
    """Return the 99th percentile of GETs that are sent at set times; late ones count as late."""
    waits, sent = list[float](), list[float]()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n"
        step, burst = 0.001, max(1, round(a_second / 1000))
        size = len(_one(client, asked))

        def receive() -> None:
            held = 0
            while len(waits) < len(sent) or sending.is_set():
                held += len(client.recv(65536))
                while held >= size:
                    waits.append(time.perf_counter() - sent[len(waits)])
                    held -= size

        sending = threading.Event()
        sending.set()
        receiver = threading.Thread(target=receive)
        due = time.perf_counter()
        end = due + seconds
        receiver.start()
        while due < end:
            due += step
            time.sleep(max(0.0, due - time.perf_counter()))
            sent.extend([due] * burst)
            client.sendall(asked * burst)
        sending.clear()
        sent.append(time.perf_counter())
        client.sendall(asked)
        receiver.join()
    return statistics.quantiles(waits, n=100)[98] * 1000


def _one(client: socket.socket, asked: bytes) -> bytes:
    client.sendall(asked)
    return client.recv(65536)


def main() -> None:
    """Measure, and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--keys", type=int, default=1_000_000)
    words.add_argument("--requests", type=int, default=100_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--keep", choices=("memory", "disk"), default="memory")
    words.add_argument("--folder", type=Path)
    words.add_argument("--session", action="store_true")
    given = words.parse_args()
    if given.session:
        print(json.dumps(answered(given.keys)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as name, contextlib.ExitStack() as stack:
        home = Path(name)
        with FileBus(home / "bus") as bus:
            stream = bus.create(StreamSpec("key", 1, SCHEMA, key=("id",)))
            for batch in batches(given.keys):
                stream.append(0, batch)
        found: dict[str, Any] = {"keys": given.keys, "load": loaded(given.keys, home)}
        server = stack.enter_context(RedisServer(home / "redis"))
        with redis.Redis(port=server.port) as client:
            for batch in batches(given.keys):
                pairs = zip(*ROWS.encode(batch), batch.column(0).to_pylist(), strict=True)
                client.mset({f"key:{text}": value for _, value, text in pairs})
            assert client.exists("key:000000000007")
        port, load_s = stack.enter_context(serving(home, given.keys, "--keep", given.keep))
        found["served_keys_a_second"] = round(given.keys / load_s)
        with redis.Redis(port=port) as client:
            assert client.exists("key:000000000007", b"key:" + encode_key(("000000000007",))) == 2
        rounds = [
            {
                who: rates(own, given.keys, given.requests)
                for who, own in (("headrace", port), ("redis", server.port))
            }
            for _ in range(given.rounds)
        ]
        for what in ("get", "pipelined", "mget"):
            own, other = (
                statistics.median(one[who][what] for one in rounds) for who in ("headrace", "redis")
            )
            found[what] = {
                "headrace": round(own),
                "redis": round(other),
                "ratio": round(own / other, 2),
            }
        half = found["get"]["headrace"] / 2
        found["half"] = {"a_second": round(half), "p99_ms": round(latency_ms(port, half), 2)}
        found["cpu_s"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
