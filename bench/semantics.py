"""What the semantics look like and cost: Figure 7 of the paper, delays, and Figure 9's two ways.

python bench/semantics.py curves [--out docs/images/semantics.svg]
python bench/semantics.py delay [--epochs 200] [--rows 1000]
python bench/semantics.py reading [--rows 8000000]
python bench/semantics.py overlap [--pieces 200] [--receive 20 40 80] [--times 1]

``curves`` runs the Counter Node through one failure under each state semantics and draws what
readers of its output see. ``delay`` tells how long after the results of an epoch are durable its
rows are visible, on a disk that is synced. ``reading`` tells what reading and decoding take of an
epoch, and whether a thread that reads ahead is worth it. ``overlap`` lets a processor whose
bottleneck is decoding receive at a bounded rate, and decode what it has between checkpoints or only
at them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import headrace as hr
from headrace.bench.stores import figure
from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.coordinator.deployment import deploy
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.worker_host import open_host
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.runtime.source import SourceReader
from headrace.testing import TestDriver
from headrace.testing.driver import LocalRunner

LEAST, MOST, EXACTLY = "at_least_once", "at_most_once", "exactly_once"
CELLS = [(LEAST, LEAST), (EXACTLY, LEAST), (MOST, MOST), (EXACTLY, MOST), (EXACTLY, EXACTLY)]
COLUMNS = {"at": pa.int64(), "node": pa.int64()}


class CounterNode:
    """Figure 6: counts events, and sends the counter."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        number = store.get(0, 0) + 1
        store.put(0, number)
        context.emit({"at": message.at, "counter": number})


def counter(state: str, output: str) -> Job:
    @hr.job("counter", state_semantics=state, output_semantics=output)
    def made(g: hr.Graph) -> None:
        one = g.input("events").partition_by("node")
        columns = {"at": int, "counter": int}
        one.process(CounterNode, {"n": int}, returns=columns).send_to(g.output("out"))

    return made


# --- Figure 7 ---------------------------------------------------------------------------------

STEPS, AN_EPOCH, FAILS_AT, DOWN, A_STEP = 30, 2, 14, 4, 20
PANELS = [
    ("(A) Ideal", EXACTLY, LEAST, None),
    ("(B) At most once", MOST, MOST, ("commit.step_done", 1)),
    ("(C) At least once", LEAST, LEAST, ("commit.step_done", 2)),
    ("(D) Exactly once", EXACTLY, LEAST, ("commit.step_begins", 1)),
]
"""Where the driver dies: between offsets and state, between state and offsets, before both."""

Curve = list[tuple[int, int]]


def curve(state: str, output: str, death: tuple[str, int] | None) -> Curve:
    """Feed so many events each step, and read what is on the output after it."""
    seen: Curve = []
    with TestDriver(counter(state, output), tasks=1, slots=1) as driver:
        driver.create("events", COLUMNS)
        driver.start()
        known = 0
        for step in range(1, STEPS + 1):
            driver.feed("events", [{"at": step, "node": 0}] * A_STEP)
            if death is not None and step == FAILS_AT:
                assert driver.advance_with_crash(*death)
            elif step % AN_EPOCH == 0 and (death is None or not 0 <= step - FAILS_AT < DOWN):
                driver.run()
            rows = driver.output("out")
            if len(rows) > known:
                seen.append((step, rows[-1]["counter"]))
                known = len(rows)
    return seen


def draw_curves(path: Path) -> None:
    curves = {title: curve(*how) for title, *how in PANELS}
    ideal = curves["(A) Ideal"]
    with figure(path, "The Counter Node through one failure", 9, 5.6) as made:
        for place, (title, found) in zip(made.subplots(2, 2).flat, curves.items(), strict=True):
            place.plot(*zip(*ideal, strict=True), color="#b8b2a7", linestyle="--", linewidth=1)
            parts = [found]
            if found is not ideal:
                before = [point for point in found if point[0] <= FAILS_AT]
                parts = [before, found[len(before) :]]
                place.axvspan(FAILS_AT, FAILS_AT + DOWN, color="#f0d9d3", linewidth=0)
                place.text(FAILS_AT + DOWN / 2, 20, "failure", ha="center", fontsize=8)
            for part in parts:
                place.plot(*zip(*part, strict=True), color="#2f6f8f", marker="o", markersize=3)
            off = found[-1][1] - ideal[-1][1]
            told = "as the ideal in the end" if not off else f"{off:+d} in the end"
            place.set_title(title if found is ideal else f"{title}: {told}")
            place.set_xlabel("time")
            place.set_ylabel("counter")
            place.set_ylim(0, (STEPS + 3) * A_STEP)
            for side in ("top", "right"):
                place.spines[side].set_visible(False)
    print(json.dumps({title: found[-1][1] for title, found in curves.items()}))


# --- Delays -----------------------------------------------------------------------------------


class Rig:
    """A job on this process with a real clock, a file bus and a disk that is synced."""

    def __init__(
        self, job: Job, columns: dict[str, pa.DataType], tasks: int = 2, **sets: Any
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        clock, files = SystemClock(), Files()
        words = [f"home={self.home}", f"job.tasks={tasks}"]
        settings = load_settings(None, [*words, *(f"{k}={v}" for k, v in sets.items())], {})
        self.bus = open_bus(settings.bus_dir)
        self.bus.create(StreamSpec("events", 2, pa.schema(list(columns.items()))))
        context = JobContext(settings, job.name, self.bus, files, clock)
        made = deploy(job.build(), context)[0]
        storage = context.storage

        def open_slot(slot: int) -> Any:
            return open_host(
                storage=storage,
                bus=self.bus,
                state_dir=settings.state_dir,
                clock=clock,
                files=files,
            )

        self.runner = LocalRunner(open_slot, 2)
        self.coordinator = made.coordinator(self.runner, context)
        self.coordinator.start()

    def close(self) -> None:
        self.coordinator.close()
        self.runner.kill_all()
        self.bus.close()
        shutil.rmtree(self.home)


def measure_delays(epochs: int, rows: int) -> None:
    """Print for each cell when rows are visible after the results are durable, and the epoch."""
    print(f"{'state':15}{'output':15}{'visible after':>15}{'commit':>10}{'epoch':>10}")
    rigs = {cell: Rig(counter(*cell), COLUMNS) for cell in CELLS}
    took: dict[tuple[str, str], list[tuple[float, float, float]]] = {cell: [] for cell in CELLS}
    ids = pa.array(range(rows), pa.int64())
    batch = pa.table({"at": ids, "node": pa.array([0] * rows)})
    for _ in range(epochs):
        for cell, rig in rigs.items():  # in turn, so that all meet the same disk
            rig.bus.stream("events").append(0, batch)
            told = rig.coordinator.advance()
            assert told is not None
            spent = told.timings_ms
            steps = [spent.get(step, 0.0) for step in ("commit", "publish", "emit")]
            visible = steps[2] if cell[1] == LEAST else sum(steps)
            took[cell].append((visible, sum(steps), told.took_ms))
    for cell, found in took.items():
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        shown = "".join(
            f"{value:{width}.2f} ms" for value, width in zip(medians, (12, 7, 7), strict=True)
        )
        print(f"{cell[0]:15}{cell[1]:15}{shown}")
    for rig in rigs.values():
        rig.close()


# --- Figure 9 ---------------------------------------------------------------------------------

CHECKPOINT_S, PIECE = 0.5, 1 << 18


def lines(pieces: int) -> list[bytes]:
    """Return pieces of a quarter of a MiB of JSON lines, whole lines each."""
    one = [
        json.dumps(
            {"id": n, "user": f"user {n % 9973}", "page": f"/a/path/{n % 131}", "took": n / 7}
        )
        for n in range(PIECE // 70)
    ]
    return ["\n".join(one[n::pieces] * pieces).encode() + b"\n" for n in range(pieces)]


def decoded(found: Sequence[bytes]) -> pa.Table:
    """Make columns of JSON lines: the work that is free of side effects."""
    rows = [json.loads(line) for line in found]
    return pa.table({"id": [row["id"] for row in rows], "took": [row["took"] for row in rows]})


def send_pieces(end: Any, count: int, rate: float) -> None:
    """Send pieces at no more than a rate, MB a second; slower where the other end is."""
    made = lines(8)
    for number in range(count):
        end.send_bytes(pause(made[number % 8], rate))
    end.send_bytes(b"")


def pause(piece: bytes, rate: float) -> bytes:
    """Take as long as a line of that rate does to bring a piece."""
    time.sleep(len(piece) / rate / 1e6)
    return piece


class Receiver:
    """Takes pieces from a pipe, saves checkpoints and sends results, both durably."""

    def __init__(self, count: int, rate: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe(duplex=False)
        self.sender = context.Process(target=send_pieces, args=(other, count, rate))
        self.sender.start()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        self.files, self.taken, self.saved = Files(), 0, 0
        self.pipe.poll(None)
        self.began, self.busy = time.monotonic(), time.process_time()

    def take(self) -> bytes:
        piece = self.pipe.recv_bytes()
        self.taken += len(piece)
        return piece

    def checkpoint(self, results: list[pa.Table]) -> None:
        """Save the offset, then send: at most once."""
        self.saved += 1
        self.files.write_new(self.folder / f"offset-{self.saved}", [str(self.taken).encode()])
        if results:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, results[0].schema) as writer:
                for result in results:
                    writer.write_table(result)
            self.files.write_new(self.folder / f"sent-{self.saved}", [sink.getvalue()])

    def told(self) -> tuple[float, float]:
        took = time.monotonic() - self.began
        self.sender.join()
        shutil.rmtree(self.folder)
        return self.taken / took / 1e6, (time.process_time() - self.busy) / took


def at_checkpoints(count: int, rate: float) -> tuple[float, float]:
    """Swift's way: buffer what comes between two checkpoints, and work on it after the second."""
    it, is_open = Receiver(count, rate), True
    while is_open:
        held, end = [], time.monotonic() + CHECKPOINT_S
        while is_open and time.monotonic() < end:
            held.append(it.take())
            is_open = bool(held[-1])
        it.checkpoint([])
        it.checkpoint([decoded(piece.splitlines()) for piece in held])
    return it.told()


def between_checkpoints(count: int, rate: float) -> tuple[float, float]:
    """Stylus's way: work on each piece while the next one is received."""
    it = Receiver(count, rate)
    pieces: queue.Queue[bytes] = queue.Queue(64)

    def receive() -> None:
        while piece := it.take():
            pieces.put(piece)
        pieces.put(b"")

    receiving = threading.Thread(target=receive)
    receiving.start()
    done, end = [], time.monotonic() + CHECKPOINT_S
    while piece := pieces.get():
        done.append(decoded(piece.splitlines()))
        if time.monotonic() >= end:
            it.checkpoint(done)
            done, end = [], time.monotonic() + CHECKPOINT_S
    it.checkpoint(done)
    receiving.join()
    return it.told()


def parse(frame: pl.DataFrame) -> pl.DataFrame:
    """Decode a batch of lines, in a job."""
    return pl.DataFrame(decoded(frame["line"].to_list()))


@hr.job("ingestion", output_semantics=MOST)
def ingestion(g: hr.Graph) -> None:
    columns = {"id": int, "took": float}
    g.input("events").map_batches(parse, returns=columns).send_to(g.output("out"))


def append_pieces(home: Path, count: int, rate: float) -> None:
    """Append pieces to the stream at no more than a rate, beside the job."""
    tables = [(piece, pa.table({"line": piece.splitlines()})) for piece in lines(8)]
    with open_bus(home / "bus") as bus:
        stream = bus.stream("events")
        for number in range(count):
            piece, table = tables[number % 8]
            pause(piece, rate)
            stream.append(0, table)


def in_a_job(count: int, rate: float) -> tuple[float, float]:
    """Headrace's way: a producer appends to the bus meanwhile; epochs take what is there."""
    rig = Rig(ingestion, {"line": pa.binary()}, **{"epoch.max_bytes": 32 << 20})
    context = multiprocessing.get_context("spawn")
    sender = context.Process(target=append_pieces, args=(rig.home, count, rate))
    stream, taken = rig.bus.stream("events"), 0
    sender.start()
    stream.wait([0, 0], 60)
    began, busy = time.monotonic(), time.process_time()
    sizes = [(len(piece), piece.count(b"\n")) for piece in lines(8)]
    rows, size = (sum(sizes[n % 8][k] for n in range(count)) for k in (1, 0))
    while taken < rows:
        told = rig.coordinator.advance()
        if told is None:
            stream.wait(stream.ends(), 0.05)
        else:
            taken += told.rows
    took, used = time.monotonic() - began, time.process_time() - busy
    sender.join()
    rig.close()
    return size / took / 1e6, used / took


def measure_overlap(count: int, rates: list[float], times: int) -> None:
    """Print for each rate of receiving what each way gets through, the best of several runs."""
    made, began = lines(8), time.process_time()
    for piece in made:
        decoded(piece.splitlines())
    alone = sum(map(len, made)) / (time.process_time() - began) / 1e6
    print(f"decoding alone: {alone:.0f} MB/s of processor time")
    ways = {
        "at checkpoints only": at_checkpoints,
        "between checkpoints": between_checkpoints,
        "a job on the bus": in_a_job,
    }
    for rate in rates:
        for name, way in ways.items():
            speed, busy = max(way(count, rate) for _ in range(times))
            print(f"received at {rate:5.0f} MB/s, {name:20} {speed:6.1f} MB/s, busy {busy:4.0%}")


# --- Reading ahead ----------------------------------------------------------------------------


@hr.job("halving", output_semantics=MOST)
def halving(g: hr.Graph) -> None:
    even = g.input("events").filter(hr.col("v") % 2 == 0)
    even.map("id", (hr.col("v") * 3).alias("w")).send_to(g.output("out"))


@hr.job("summing")
def summing(g: hr.Graph) -> None:
    keyed = g.input("events").partition_by("id")
    keyed.aggregate(store="columnar", n=hr.agg.count(), s=hr.agg.sum("v"))


def measure_reading(rows: int) -> None:
    """Print what reading and decoding take of a job's processor time, and with a thread for it."""
    plain, spent = SourceReader.chunks, [0.0]

    def timed(self: SourceReader, should_stop: Any) -> Iterator[Any]:
        found = plain(self, should_stop)
        while True:
            began = time.thread_time()
            chunk = next(found, None)
            spent[0] += time.thread_time() - began
            if chunk is None:
                return
            yield chunk

    def ahead(self: SourceReader, should_stop: Any) -> Iterator[Any]:
        chunks: queue.Queue[Any] = queue.Queue(2)

        def read() -> None:
            for chunk in plain(self, should_stop):
                chunks.put(chunk)
            chunks.put(None)

        reading = threading.Thread(target=read)
        reading.start()
        while (chunk := chunks.get()) is not None:
            yield chunk
        reading.join()

    numbers = np.random.default_rng(1)
    text = [f"some text of a message {n % 999}" for n in range(rows)]
    columns = {"id": numbers.integers(0, 100_000, rows), "v": numbers.integers(0, 1000, rows)}
    table = pa.table({**columns, "text": text})
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    for job in (halving, summing):
        for name, way in (("in turn", timed), ("ahead, by a thread", ahead)):
            runs = []
            for _ in range(3):
                rig, spent[0] = Rig(job, kinds, **{"epoch.max_rows": 1_000_000}), 0.0
                for number, begin in enumerate(range(0, rows, 100_000)):
                    rig.bus.stream("events").append(number % 2, table.slice(begin, 100_000))
                SourceReader.chunks = way  # type: ignore[method-assign]
                clock, busy = time.monotonic(), time.process_time()
                commit = epochs = 0.0
                while (told := rig.coordinator.advance()) is not None:
                    steps = ("commit", "publish", "emit")
                    commit += sum(told.timings_ms.get(step, 0.0) for step in steps)
                    epochs += told.took_ms
                used = time.process_time() - busy
                runs.append((used, time.monotonic() - clock, spent[0], commit / epochs))
                rig.close()
            busy, took, reading, share = min(runs)
            reads = f", reading {reading:.3f} s of it" if way is timed else ""
            print(
                f"{job.name}, read {name}: {took:.2f} s, {share:.0%} of it commits, processor "
                f"{busy:.2f} s{reads}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="what", required=True)
    curves = verbs.add_parser("curves")
    curves.add_argument("--out", type=Path, default=Path("docs/images/semantics.svg"))
    delay = verbs.add_parser("delay")
    delay.add_argument("--epochs", type=int, default=200)
    delay.add_argument("--rows", type=int, default=1000)
    overlap = verbs.add_parser("overlap")
    overlap.add_argument("--pieces", type=int, default=200)
    overlap.add_argument("--receive", type=float, nargs="+", default=[20, 40, 80])
    overlap.add_argument("--times", type=int, default=1)
    reading = verbs.add_parser("reading")
    reading.add_argument("--rows", type=int, default=8_000_000)
    given = parser.parse_args()
    if given.what == "curves":
        draw_curves(given.out)
    elif given.what == "delay":
        measure_delays(given.epochs, given.rows)
    elif given.what == "reading":
        measure_reading(given.rows)
    else:
        measure_overlap(given.pieces, given.receive, given.times)


if __name__ == "__main__":
    main()
