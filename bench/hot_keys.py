"""What looking for the heaviest keys costs, as JSON: the same epochs with it and without, in turn.

    python bench/hot_keys.py [--rows 1000000] [--ids 1000,1000000] [--keys int,string] [--epochs 24]
        [--what sender,job]

``sender``: a source task alone, from columns in memory to a file of the exchange, where keys are
drawn; with rows combined first, and without. ``job``: a whole job in one process, from a bus in
memory to committed state. Epochs alternate; told are the processor time of both, by the median of
the ratios of neighbours, and the rows a second. ``sketch_us`` is what the sketch alone takes of an
epoch of a sender, measured by itself: where other programs run, that is what can be seen apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.files import Files
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.runtime.chunk import Chunk
from headrace.runtime.exchange import ExchangeNode, HotKeySketch
from headrace.testing import TestDriver

CHUNK_ROWS = 65_536


def counting(key: str) -> Any:
    """Return a job that counts messages for each key."""

    @hr.job(f"count-{key}")
    def job(g: hr.Graph) -> None:
        by = g.input("in").partition_by("user")
        by.aggregate(n=hr.agg.count(), store="columnar").send_to(g.output("out"))

    return job


def rows_of(count: int, ids: int, key: str) -> pa.RecordBatch:
    """Return messages of ids at random, a tenth of them of one."""
    lots = np.random.default_rng(3)
    users = lots.integers(0, ids, count)
    users[lots.random(count) < 0.1] = 0
    column = pa.array(users)
    if key == "string":
        column = pa.array([f"user-{user:08d}" for user in users.tolist()])
    return pa.record_batch({"user": column, "n": pa.array(np.ones(count, np.int64))})


def in_turn(run: Callable[[bool], float], times: int, rows: int) -> dict[str, float]:
    """Run with and without, one after the other; a quarter of the runs comes before what counts.

    A sketch draws all that it may until it knows how fast rows come, after two seconds.
    """
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(times):
        for hot in (True, False) if number % 2 else (False, True):
            took[hot].append(run(hot))
    on, off = (took[hot][max(2, times // 4) :] for hot in (True, False))
    ratios = [a / b for a, b in zip(on, off, strict=True)]
    return {
        "rows_per_s_on": round(rows / statistics.median(on)),
        "rows_per_s_off": round(rows / statistics.median(off)),
        "cost_percent": round((statistics.median(ratios) - 1) * 100, 2),
        "cost_percent_of_least": round((min(on) / min(off) - 1) * 100, 2),
    }


def sender(rows: pa.RecordBatch, times: int, exchange: Any) -> dict[str, float]:
    """Measure the sending side alone."""
    chunks = [Chunk(rows.slice(begin, CHUNK_ROWS)) for begin in range(0, rows.num_rows, CHUNK_ROWS)]
    files, folder = Files(sync=False), Path(tempfile.mkdtemp(prefix="hot-keys-"))
    nodes = {
        hot: ExchangeNode(exchange, 512, HotKeySketch("by", ("user",)) if hot else None)
        for hot in (True, False)
    }

    def run(hot: bool) -> float:
        node, began = nodes[hot], time.process_time()
        for chunk in chunks:
            node.push(chunk)
        node.advance(0, 0)
        for ending, writer in node.take():
            path = folder / f"x.{ending}"
            writer.write(files, path)
            path.unlink()
        if node.hot is not None:
            node.hot.notify(time.monotonic())
        return time.process_time() - began

    return {**in_turn(run, times, rows.num_rows), "sketch_us": alone(chunks)}


def alone(chunks: list[Chunk], rounds: int = 400) -> float:
    """Return what the sketch takes of an epoch, µs, at 20 epochs a second, once it is in step."""
    hot, took = HotKeySketch("by", ("user",)), 0.0
    for number in range(rounds):
        began = time.process_time()
        for chunk in chunks:
            hot.see(chunk)
        hot.notify(number / 20)
        took += time.process_time() - began if number >= rounds // 4 else 0
    return round(took / (rounds - rounds // 4) * 1e6, 1)


def whole(rows: pa.RecordBatch, times: int, key: str) -> dict[str, float]:
    """Measure a whole job in one process."""
    drivers = {}
    for hot in (True, False):
        driver = TestDriver(counting(key), tasks=2, slots=1, max_rows=rows.num_rows)
        opened = driver.runner._open  # noqa: SLF001 - the one place where a slot is made
        driver.runner._open = (  # noqa: SLF001
            lambda slot, opened=opened, hot=hot: dataclasses.replace(opened(slot), hot_keys=hot)
        )
        driver.create("in", rows.schema)
        drivers[hot] = driver

    def run(hot: bool) -> float:
        driver = drivers[hot]
        driver.bus.stream("in").append(0, rows)
        driver.clock.advance(1000)
        began = time.process_time()
        driver.advance()
        return time.process_time() - began

    try:
        return in_turn(run, times, rows.num_rows)
    finally:
        for driver in drivers.values():
            driver.close()


def exchange_of(key: str, schema: pa.Schema, *, combined: bool) -> Any:
    """Return the exchange of the job, as the planner makes it."""
    made = plan(counting(key).build(), {"in": StreamInfo(schema, 1)}, tasks=2)
    found = next(sent for stage in made.stages for sent in stage.sends)
    return found if combined else dataclasses.replace(found, combined=None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", default="1000,1000000")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--keys", default="int,string")
    parser.add_argument("--what", default="sender,job")
    given = parser.parse_args()
    senders = "sender" in given.what
    for key in given.keys.split(","):
        for ids in map(int, given.ids.split(",")):
            rows = rows_of(given.rows, ids, key)
            told: dict[str, Any] = {"key": key, "ids": ids, "rows": given.rows}
            for name, combined in (("rows", False), ("combined", True)) if senders else ():
                found = sender(rows, given.epochs, exchange_of(key, rows.schema, combined=combined))
                print(json.dumps({"what": f"sender, {name}", **told, **found}), flush=True)
            if "job" in given.what:
                found = whole(rows, given.epochs, key)
                print(json.dumps({"what": "job", **told, **found}), flush=True)


if __name__ == "__main__":
    main()
