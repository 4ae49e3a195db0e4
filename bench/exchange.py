"""Rows between two hosts that share no folder: what ``partition_by`` costs from level to level.

    python bench/exchange.py >> docs/benchmarks/exchange.jsonl

Two hosts of one core on this machine, each in a network of its own, joined by a bridge; root only.
Each has as many rows of 116 bytes, half of which are for the other. A round is from the rows in
memory to the rows in memory of the host that they are for. Ways, in turns:

``folder``  exchange files in a folder that both hosts have, mapped
``network`` files that stay on the host that wrote them, fetched by TCP
``shuffle`` the same frames as values of Spark's own shuffle, on two executors
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Client, Listener
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.files import Files
from headrace.plan.stages import Exchange
from headrace.records.frame import encode_frame, read_frame, read_header
from headrace.runtime.chunk import Chunk
from headrace.runtime.exchange import ExchangeFiles, ExchangeWriter
from headrace.runtime.exchange_file import RECORD
from headrace.runtime.exchange_network import FOLDER, NetworkAddress, NetworkExchange
from headrace.runtime.orders import SlotOrder
from headrace.spark.sessions import build_context
from headrace.testing.cluster import SparkCluster
from headrace.testing.host_network import HostNetwork

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
ROW_BYTES, GROUPS, BATCH = 116, 64, 1 << 16
EXCHANGE = Exchange("by-id", 0, 1, ("id",), SCHEMA)
TOKEN = "of the epoch"


def chunks(rows: int, seed: int) -> list[Chunk]:
    """Rows with an id of 8 bytes, a text of 100, and 8 for where it begins."""
    draw = np.random.default_rng(seed)
    text = pa.array([f"{n:0100d}" for n in range(BATCH)], pa.large_string())
    found = []
    for begin in range(0, rows, BATCH):
        size = min(BATCH, rows - begin)
        ids = pa.array(draw.integers(0, 1 << 40, size))
        found.append(Chunk(pa.record_batch([ids, text.slice(0, size)], schema=SCHEMA)))
    return found


class Host:
    """What a host does, when it is asked: it writes its rows, and reads what is for it."""

    def __init__(self, number: int, folder: Path, address: str, rows: int) -> None:
        self._number, self._chunks = number, chunks(rows, number)
        state = folder / f"host-{number}"
        far = state / "_remote" / "s3" / "bucket" / "job"
        own, files = NetworkAddress(address, os.getpid()), Files(sync=False)
        self._record = state / FOLDER / "job" / RECORD
        (folder / "exchange").mkdir(exist_ok=True)
        self._ways = {
            "folder": ExchangeFiles(files, folder),
            "network": NetworkExchange(files, far, state, str(number), own),
        }

    def _order(self, number: int, paths: list[str]) -> SlotOrder:
        sent = {EXCHANGE.operator: paths}
        return SlotOrder("j", "l", 1, number, 1, 0, 0, "p", exchange=sent, token=TOKEN)

    def write(self, way: str, number: int) -> str:
        order = self._order(number, [])
        self._ways[way].begin(order)
        writer = ExchangeWriter(SCHEMA, EXCHANGE.keys, GROUPS)
        for chunk in self._chunks:
            writer.add(chunk)
        return self._ways[way].write(order, f"{number}-{self._number}.arrow", writer, 1)[0]

    def cpu_s(self) -> float:
        """Seconds of a core that this host has used, with its server."""
        processes = [os.getpid()]
        if self._record.exists():
            processes.append(json.loads(self._record.read_bytes())["process"])
        return cpu_s(processes)

    def read(self, way: str, number: int, paths: list[str]) -> int:
        half = GROUPS // 2
        first = half * self._number
        order = self._order(number, paths)
        found = self._ways[way].read(order, EXCHANGE, first, first + half)
        return sum(chunk.rows for chunk in found)


def serve(address: tuple[str, int], *arguments: Any) -> None:
    with Client(address) as line:
        host = Host(*arguments)
        line.send(arguments[0])
        while (asked := line.recv()) is not None:
            line.send(getattr(host, asked[0])(*asked[1:]))


def cpu_s(processes: Iterable[int]) -> float:
    """Seconds of a core that processes have used, those that live."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """Seconds by the clock, and of a core."""

    seconds: float
    cpu_s: float


def by_files(network: HostNetwork, folder: Path, rows: int, rounds: int) -> dict[str, list[Round]]:
    """Each round, by way."""
    children, lines = [], {}
    with Listener((network.gateway, 0)) as listener:
        for number in range(2):
            words = [*listener.address, number, str(folder), network.address(number), rows]
            command = [sys.executable, __file__, "--host", json.dumps(words)]
            child = subprocess.Popen(
                network.command(number, command), stdin=subprocess.PIPE, start_new_session=True
            )
            network.join(number, child)
            children.append(child)
        for _ in range(2):
            line = listener.accept()
            lines[line.recv()] = line
        took: dict[str, list[Round]] = {"folder": [], "network": []}

        def both(*asked: Any) -> list[Any]:
            for line in lines.values():
                line.send(asked)
            return [lines[number].recv() for number in range(2)]

        for number in range(rounds + 1):
            for way, done in took.items():
                used, began = sum(both("cpu_s")), time.monotonic()
                paths = both("write", way, number)
                assert sum(both("read", way, number, paths)) == 2 * rows
                if number:  # the first starts servers
                    seconds = time.monotonic() - began
                    done.append(Round(seconds, sum(both("cpu_s")) - used))
                for file in (folder / "exchange").iterdir():
                    file.unlink()
        for line in lines.values():
            line.send(None)
        for child in children:
            child.wait()
    return took


KEPT: dict[int, list[Chunk]] = {}
"""Rows by number, made once in a process of an executor."""


def sent(numbers: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a host's rows, by the host that they are for."""
    for number, rows in numbers:
        if number not in KEPT:
            KEPT[number] = chunks(rows, number)
        writer = ExchangeWriter(SCHEMA, EXCHANGE.keys, GROUPS)
        for chunk in KEPT[number]:
            writer.add(chunk)
        for batch, starts in writer.frames():
            middle = int(starts[GROUPS // 2])
            for target, part in enumerate((batch.slice(0, middle), batch.slice(middle))):
                yield target, b"".join(map(memoryview, encode_frame(part)))


def received(blobs: Iterable[tuple[int, bytes]]) -> Iterator[int]:
    """Yield how many rows came in each frame."""
    for _, blob in blobs:
        data = pa.py_buffer(blob)
        yield read_frame(data, read_header(data, 0, "blob"), SCHEMA, "blob").num_rows


def by_shuffle(network: HostNetwork, folder: Path, rows: int, rounds: int) -> list[Round]:
    """Each round through Spark's own shuffle; what the driver does is left out."""
    bench = importlib.import_module("exchange")  # which executors import, and keep rows in
    with SparkCluster(folder / "cluster", 2, 2048, network=network) as cluster:
        os.environ["SPARK_LOCAL_IP"] = network.gateway
        conf = {
            "spark.driver.host": network.gateway,
            "spark.driver.bindAddress": network.gateway,
            "spark.shuffle.compress": "false",
            "spark.executor.memory": "1g",
        }
        context = build_context(cluster.url, "exchange", folder / "spark.log", conf)
        took = []
        for number in range(rounds + 2):
            used, began = cpu_s(cluster.processes()), time.monotonic()
            blobs = context.parallelize([(0, rows), (1, rows)], 2).mapPartitions(bench.sent)
            counts = blobs.partitionBy(2, lambda target: target).mapPartitions(bench.received)
            assert counts.sum() == 2 * rows
            if number > 1:
                seconds = time.monotonic() - began
                took.append(Round(seconds, cpu_s(cluster.processes()) - used))
        context.stop()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each host")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.host is not None:
        server, port, number, folder, address, rows = json.loads(given.host)
        serve((server, port), number, Path(folder), address, rows)
        return
    with tempfile.TemporaryDirectory() as made, HostNetwork() as network:
        took = by_files(network, Path(made), given.rows, given.rounds)
        took["shuffle"] = by_shuffle(network, Path(made), given.rows, given.rounds)
        for way, done in took.items():
            report(way, given.rows, done, took["folder"])


def report(way: str, rows: int, done: list[Round], base: list[Round]) -> None:
    middle, used = (median(column) for column in zip(*done, strict=True))
    best, best_used = (median(column) for column in zip(*base, strict=True))
    said = {
        "way": way,
        "rows": 2 * rows,
        "rows_s": round(2 * rows / middle),
        "mb_s": round(2 * rows * ROW_BYTES / middle / 1e6),
        "of_folder": round(best / middle, 2),
        "cpu_us_row": round(used / 2 / rows * 1e6, 3),
        "of_folder_cpu": round(best_used / used, 2),
        "seconds": [round(one.seconds, 3) for one in done],
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
