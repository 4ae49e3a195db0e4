"""Asynchronous processors: calls a second against concurrency, and their cost without any I/O.

python bench/asynchronous.py [--seconds 4] [--only remote|local]

A TCP server in a process of its own answers each request after 1, 10 or 100 ms. A job of one task,
run in one process as a slot runs it, asks it once for each message, over one connection. What could
be reached is concurrency / latency, at most 10,000 calls a second; what the client reaches without
a job stands beside it. Then a job of local stores only, which counts the messages of each key:
called plainly, as ``async def``, and in threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import pyarrow as pa

import headrace as hr
from headrace.clock import SystemClock
from headrace.testing import TestDriver

LATENCIES_MS = (1, 10, 100)
CONCURRENCIES = (1, 10, 100, 1000, 2000)
MOST_A_SECOND = 10_000
KEYS = 10_000


async def _serve(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            delay_ms, _, _ = line.partition(b" ")
            loop.call_later(int(delay_ms) / 1000, writer.write, line)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def serve(pipe: Connection) -> None:
    """Run the server; its port comes by the pipe."""
    asyncio.run(_serve(pipe))


class Client:
    """One connection, many requests under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._next = 0
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while line := await self._reader.readline():
            self._waiting.pop(line).set_result(None)

    async def ask(self, delay_ms: int) -> None:
        """Return when the server has answered."""
        self._next += 1
        line = b"%d %d\n" % (delay_ms, self._next)
        future = self._waiting[line] = asyncio.get_running_loop().create_future()
        self._writer.write(line)
        await future


class Asks:
    """Asks the server about each message."""

    port: ClassVar[int] = 0
    delay_ms: ClassVar[int] = 0

    async def open(self, context: hr.Context) -> None:
        del context
        self.client = Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def process(self, message: Any, context: hr.Context) -> None:
        await self.client.ask(self.delay_ms)
        context.emit({"n": message.n})


async def _bare(rows: int, most: int, delay_ms: int) -> float:
    client = Client(*await asyncio.open_connection("127.0.0.1", Asks.port))
    left = iter(range(rows))

    async def work() -> None:
        for _ in left:
            await client.ask(delay_ms)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(most)))
    return rows / (time.perf_counter() - began)


def run(job: hr.Job, rows: int) -> tuple[float, float]:
    """Return the seconds, by the clock and of a core, that a job takes for so many messages."""
    with TestDriver(job, tasks=1, slots=1) as driver:
        driver.clock = SystemClock()  # type: ignore[assignment]
        driver.create("in", {"n": pa.int64(), "k": pa.int64()})
        numbers = pa.array(range(rows), pa.int64())
        keys = pa.array([n * 7919 % KEYS for n in range(rows)], pa.int64())
        driver.start()
        driver.feed("in", [{"n": 0, "k": 0}])
        driver.run()  # the class is open, the connection there
        driver.feed("in", pa.table({"n": numbers, "k": keys}))
        began, used = time.perf_counter(), time.process_time()
        driver.run()
        took, used = time.perf_counter() - began, time.process_time() - used
        found = sum(1 for _ in driver.output("out"))
        if found != rows + 1:
            raise SystemExit(f"expected {rows + 1} messages, found {found}")
        return took, used


def remote(seconds: float, *, keyed: bool) -> list[dict[str, Any]]:
    """Measure calls a second against latency and concurrency."""
    made = []
    for delay_ms in LATENCIES_MS:
        for most in CONCURRENCIES:
            could = most * 1000 / delay_ms
            Asks.delay_ms = delay_ms
            options: dict[str, Any] = {"returns": {"n": pa.int64()}, "max_concurrency": most}

            @hr.job("asks")
            def job(g: hr.Graph, options: dict[str, Any] = options) -> None:
                rows = g.input("in")
                rows = rows.partition_by("k") if keyed else rows
                rows.process(Asks, **options).send_to(g.output("out"))

            if could > 2 * MOST_A_SECOND and most > LATENCIES_MS[-1]:
                continue
            rows = int(max(min(could, MOST_A_SECOND) * seconds, 20))
            took, used = run(job, rows)
            rate, cost = rows / took, used / rows * 1e6
            bare = asyncio.run(_bare(rows, most, delay_ms))
            part = rate / min(could, MOST_A_SECOND)
            one = {"delay_ms": delay_ms, "most": most, "rate": rate, "bare": bare, "part": part}
            one["cpu_us"] = cost
            made.append(one)
            text = f"{delay_ms:4} ms {most:5} open {rate:9,.0f} calls/s, {part:6.1%}"
            print(f"{text}, {cost:4.0f} us of a core; without a job {bare:9,.0f}", flush=True)
    return made


class Plain:
    """Counts the messages of each key."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.k, store.get(message.k, 0) + 1)
        context.emit({"n": message.n})


class Async:
    """The same, as a coroutine."""

    async def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.k, store.get(message.k, 0) + 1)
        context.emit({"n": message.n})


def local(rows: int) -> list[dict[str, Any]]:
    """Measure a job of local stores only."""
    made = []
    kinds: dict[str, tuple[type, dict[str, Any], int]] = {
        "plain": (Plain, {}, rows),
        "async def": (Async, {"max_concurrency": 100, "order": "key"}, rows // 10),
        "2 threads": (Plain, {"threads": 2, "order": "key"}, rows // 40),
    }
    for name, (kind, options, count) in kinds.items():
        given = {"stores": {"n": int}, "returns": {"n": pa.int64()}} | options

        @hr.job("counts")
        def job(g: hr.Graph, kind: type = kind, given: dict[str, Any] = given) -> None:
            g.input("in").partition_by("k").process(kind, **given).send_to(g.output("out"))

        took, used = run(job, count)
        made.append({"kind": name, "rate": count / took, "a_core": count / used})
        print(
            f"{name:10} {count / took:10,.0f} messages/s, {count / used:10,.0f} a core", flush=True
        )
    return made


def main() -> None:
    """Measure, and print a line of JSON last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["remote", "local", "keyed"])
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if given.only != "local":
        mine, theirs = multiprocessing.Pipe()
        server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
        server.start()
        Asks.port = mine.recv()
        found["remote"] = remote(given.seconds, keyed=given.only == "keyed")
        server.terminate()
    if given.only in (None, "local"):
        found["local"] = local(given.rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
