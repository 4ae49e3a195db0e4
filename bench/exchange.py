"""Rows between two hosts that share no folder: what ``partition_by`` costs from level to level.

    python bench/exchange.py >> docs/benchmarks/exchange.jsonl

Two hosts of one core on this machine, each in a network of its own, joined by a bridge; root only.
Each has as many rows of 116 bytes, half of which are for the other. A round is from the rows in
memory to the rows in memory of the host that they are for. Ways, in turns:

``folder``  exchange files in a folder that both hosts have, mapped
``flight``  files that stay on the host that wrote them, fetched by Arrow Flight
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from multiprocessing.connection import Client, Listener
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.files import Files
from headrace.plan.stages import Exchange
from headrace.runtime.chunk import Chunk
from headrace.runtime.exchange import ExchangeFiles, ExchangeWriter
from headrace.runtime.exchange_network import NetworkAddress, NetworkExchange
from headrace.runtime.orders import SlotOrder
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
        self._number, self._chunks, self._round = number, chunks(rows, number), 0
        state = folder / f"host-{number}"
        far = state / "_remote" / "s3" / "bucket" / "job"
        own, files = NetworkAddress(address, os.getpid()), Files(sync=False)
        (folder / "exchange").mkdir(exist_ok=True)
        self._ways = {
            "folder": ExchangeFiles(files, folder),
            "flight": NetworkExchange(files, far, state, str(number), own),
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


def by_files(network: HostNetwork, folder: Path, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by way."""
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
        took: dict[str, list[float]] = {"folder": [], "flight": []}

        def both(*asked: Any) -> list[Any]:
            for line in lines.values():
                line.send(asked)
            return [lines[number].recv() for number in range(2)]

        for number in range(rounds + 1):
            for way, seconds in took.items():
                began = time.monotonic()
                paths = both("write", way, number)
                assert sum(both("read", way, number, paths)) == 2 * rows
                if number:  # the first starts servers
                    seconds.append(time.monotonic() - began)
                for file in (folder / "exchange").iterdir():
                    file.unlink()
        for line in lines.values():
            line.send(None)
        for child in children:
            child.wait()
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
        base = median(took["folder"])
        for way, seconds in took.items():
            report(way, given.rows, seconds, base)


def report(way: str, rows: int, seconds: list[float], base: float) -> None:
    middle = median(seconds)
    said = {
        "way": way,
        "rows": 2 * rows,
        "rows_s": round(2 * rows / middle),
        "mb_s": round(2 * rows * ROW_BYTES / middle / 1e6),
        "of_folder": round(base / middle, 2),
        "seconds": [round(one, 3) for one in seconds],
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
