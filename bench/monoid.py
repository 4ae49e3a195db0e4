"""Totals on a Redis server: appending partial results against reading, adding and writing back.

python bench/monoid.py [--rows 400000] [--keys 100000] [--dimensions 4] [--flush-rows 100000 ...]

One event adds to the totals of so many dimensions, as in the figure of the paper: keys are drawn
from as many as are asked for. Both jobs combine in memory what an epoch adds, in one process, and
flush it with the epoch; they differ in the flush alone. ``append`` is ``redis_partials``,
exactly-once. ``read`` asks for the totals of the keys, 32,768 with one round trip, adds, and
writes them back; nothing keeps it from adding twice. ``--flush-rows`` are the rows of an epoch:
those of a flush interval. A redis-server of its own is started. The first epoch warms up and is
left out. Rates per core count the time of the job's process and of the server.

python bench/monoid.py --exchange [--rows 2000000] [--keys 1000]

Rows and bytes that go through a ``partition_by`` into windows, and how long a bounded run takes,
with and without folding them before.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.coordinator.outputs import SinkCommitter
from headrace.files import Bytes
from headrace.graph.sinks import Receiver, SinkEpoch, SinkSite
from headrace.records.keys import encode_columns
from headrace.runtime.exchange import ExchangeWriter
from headrace.sinks.redis import RedisPartials, redis_library
from headrace.testing import TestDriver
from headrace.testing.servers import RedisServer

TRIP_KEYS = 32 * 1024
PAIRS = pa.schema([("name", pa.binary()), ("partial", pa.binary())])
COLUMNS = {"k": pa.int64(), "n": pa.int64()}


class Dimensions(hr.MonoidProcessor[tuple[int, int], list[int]]):
    """Count, total and maximum of each value of each dimension."""

    def __init__(self, dimensions: int, keys: int) -> None:
        self.dimensions, self.keys = dimensions, keys

    def process(self, event: Any) -> Iterator[tuple[tuple[int, int], list[int]]]:
        for dimension in range(self.dimensions):
            value = (event.k * (2 * dimension + 1)) % self.keys
            yield (dimension, value), [1, event.n, event.n]

    def identity(self) -> list[int]:
        return [0, 0, 0]

    def combine(self, first: list[int], second: list[int]) -> list[int]:
        first[0] += second[0]
        first[1] += second[1]
        first[2] = max(first[2], second[2])
        return first


@dataclass(frozen=True)
class ReadAndWrite(RedisPartials):
    """The same with totals as values, which are read and written back."""

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return names and partial results as columns."""
        prefix, sink = self.namespace.encode(), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, PAIRS) as writer:
            for batch in batches:
                keys = encode_columns(batch.columns[:-1]).to_list()
                names = pa.array([prefix + key for key in keys], pa.binary())
                writer.write_batch(pa.record_batch([names, batch.column(-1)], schema=PAIRS))
        return [sink.getvalue()]

    def open(self, site: SinkSite) -> Receiver:
        """Connect."""
        return _ReadAndWrite(self)


class _ReadAndWrite(Receiver):
    def __init__(self, sink: ReadAndWrite) -> None:
        assert sink.merge is not None
        self._redis, self._merge = redis_library().Redis.from_url(sink.url), sink.merge
        self._decode = msgspec.msgpack.Decoder(sink.merge.state).decode

    def commit(self, epoch: SinkEpoch) -> None:
        for prepared in epoch.files:
            with pa.memory_map(str(prepared.path)) as file:
                table = pa.ipc.open_file(file).read_all()
            for begin in range(0, table.num_rows, TRIP_KEYS):
                part = table.slice(begin, TRIP_KEYS)
                self._add(*(column.to_pylist() for column in part.columns))

    def _add(self, names: list[bytes], added: list[bytes]) -> None:
        decode, combine = self._decode, self._merge.processor.combine
        encode = msgspec.msgpack.Encoder().encode
        totals = {}
        for name, held, more in zip(names, self._redis.mget(names), added, strict=True):
            totals[name] = more if held is None else encode(combine(decode(held), decode(more)))
        self._redis.mset(totals)


def core_s(server: RedisServer) -> float:
    """How long this process and the server have used a core."""
    with redis_library().Redis.from_url(server.url) as redis:
        found = redis.info("cpu")
    return time.process_time() + float(found["used_cpu_user"] + found["used_cpu_sys"])


class Timed:
    """How long flushes took, of a core of this process and the server; how many keys they had."""

    def __init__(self, server: RedisServer) -> None:
        self.server, self.commit = server, SinkCommitter.commit
        self.took, self.keys = 0.0, 0

    def __enter__(self) -> Timed:
        def commit(receivers: SinkCommitter, state: Any) -> int:
            began = core_s(self.server)
            keys = self.commit(receivers, state)
            self.took += core_s(self.server) - began
            self.keys += keys
            return keys

        SinkCommitter.commit = commit  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        SinkCommitter.commit = self.commit  # type: ignore[method-assign]


def flushes(arguments: argparse.Namespace, kind: str, flush_rows: int) -> dict[str, Any]:
    """Run one job and return its rates."""
    factory = partial(Dimensions, arguments.dimensions, arguments.keys)
    timed = used = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder)) as server,
        Timed(server) as flush,
    ):
        maker = RedisPartials if kind == "append" else ReadAndWrite
        sink = maker(server.url, "totals:")

        @hr.job("totals")
        def totals(g: hr.Graph) -> None:
            key = {"dimension": int, "of": int}
            g.input("in", start="earliest").monoid(factory, key, sink)

        rng = np.random.default_rng(1)
        with TestDriver(totals, max_rows=flush_rows, tasks=1, slots=1) as driver:
            driver.create("in", COLUMNS)
            for number in range(1 + max(2, arguments.rows // flush_rows)):
                columns = [rng.integers(0, arguments.keys, flush_rows) for _ in range(2)]
                batch = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["k", "n"])
                driver.bus.stream("in").append(0, batch)
                before = time.perf_counter(), core_s(server)
                driver.run()
                if number:
                    timed += time.perf_counter() - before[0]
                    used += core_s(server) - before[1]
            rows = number * flush_rows
            read = RedisPartials(server.url, "totals:").totals(factory)
            if kind == "append":
                with read:
                    counted = sum(total[0] for _, total in read.items())
                assert counted == (rows + flush_rows) * arguments.dimensions, counted
    return {
        "flush": kind,
        "flush_rows": flush_rows,
        "dimensions": arguments.dimensions,
        "keys": arguments.keys,
        "rows_per_s": round(rows / timed),
        "rows_per_core_s": round(rows / used),
        "flush_keys_per_core_s": round(flush.keys / flush.took),
    }


def exchanges(arguments: argparse.Namespace, *, folds: bool) -> dict[str, Any]:
    """Run windows over a bounded input; return what went through the exchange."""
    sent = [0, 0]
    write = ExchangeWriter.write

    def counting(self: ExchangeWriter, *where: Any) -> Any:
        size, totals = write(self, *where)
        sent[0] += self.rows
        sent[1] += size
        return size, totals

    @hr.job("windows")
    def windows(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        kept = {"n": hr.agg.count(), "s": hr.agg.sum("n")}
        late = "drop" if folds else "side_output"  # which asks for each row
        made = keyed.window(hr.tumbling("1m", late=late), **kept)
        made.send_to(g.output("out"))
        if not folds:
            made.side("late").send_to(g.output("late"))

    rng = np.random.default_rng(1)
    with TestDriver(windows, max_rows=1_000_000, tasks=2) as driver:
        driver.create("in", COLUMNS | {"at": pa.int64()}, time="at", partitions=4)
        each = arguments.rows // 4
        for partition in range(4):
            columns = [rng.integers(0, arguments.keys, each), rng.integers(0, 9, each)]
            columns.append(np.arange(each) * 4 // 100)
            batch = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["k", "n", "at"])
            driver.bus.stream("in").append(partition, batch)
        ExchangeWriter.write = counting  # type: ignore[method-assign]
        began, used = time.perf_counter(), time.process_time()
        driver.finish()
        took, used = time.perf_counter() - began, time.process_time() - used
        ExchangeWriter.write = write  # type: ignore[method-assign]
    return {
        "folds": folds,
        "keys": arguments.keys,
        "rows": 4 * each,
        "rows_sent": sent[0],
        "bytes_sent": sent[1],
        "rows_per_s": round(4 * each / took),
        "rows_per_core_s": round(4 * each / used),
    }


def main() -> None:
    """Measure and print one line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=4)
    parser.add_argument("--flush-rows", type=int, nargs="+", default=[10_000, 50_000, 200_000])
    parser.add_argument("--exchange", action="store_true")
    arguments = parser.parse_args()
    if arguments.exchange:
        for folds in (False, True):
            print(json.dumps(exchanges(arguments, folds=folds)), flush=True)
        return
    for flush_rows in arguments.flush_rows:
        for kind in ("read", "append"):
            print(json.dumps(flushes(arguments, kind, flush_rows)), flush=True)


if __name__ == "__main__":
    main()
