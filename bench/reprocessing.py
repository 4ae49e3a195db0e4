"""What a backfill does to the live job beside it: the question of the paper's Figure 12.

    python bench/reprocessing.py > docs/benchmarks/reprocessing.jsonl    # about ten minutes
    python bench/reprocessing.py --figure    # draws docs/images/reprocessing-live.svg

The live job puts titles of profiles into a standard form, a Python call for each message, and keeps
the last one of each profile in RocksDB; ``headrace run`` on ``local[1]``. ``headrace backfill``
does the same for old rows of the same stream, as another Spark application.

``steady``  10,000 messages come in a second: rate and latency of the live job, by throttle
``full``    more come in than the live job can take: how much slower it gets, by throttle
``rates``   no live job: rows that are reprocessed a second, by throttle and by executors, which a
            Spark cluster on this machine holds to a core each

A throttle is a share of the rate that the live job had before. The latency is from before the
append of a message until the parent process knows that its epoch is committed. ``starting`` is
the time in which the backfill's own Spark starts.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib import pyplot

from headrace.bus.address import open_bus
from headrace.bus.bus import Stream
from headrace.bus.spec import StreamSpec
from headrace.testing.cluster import SparkCluster
from headrace.testing.servers import end_group

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, IMAGES = DOCS / "benchmarks" / "reprocessing.jsonl", DOCS / "images"
PARTITIONS, IDS, TASKS, CHUNK = 4, 100_000, 4, 20_000
OLD_ROWS, BEGIN_MS, OLD_CHUNK = 1_000_000, 1_000_000_000_000, 2_000
LIVE_RATE, EVERY_S, EPOCH_ROWS = 10_000, 0.02, 10_000
PATIENCE_S, SETTLE_S = 300.0, 1.0
SHARES: dict[str, Sequence[float | None]] = {
    "steady": (0.25, 0.5, 1.0, None),
    "full": (0.1, 0.25, 0.5),
}
RATES: Sequence[tuple[int, int | None]] = (
    (1, 5_000),
    (1, 10_000),
    (1, 20_000),
    (1, None),
    (2, None),
)
SCHEMA = pa.schema([("id", pa.int64()), ("title", pa.string()), ("at", pa.int64())])
JOB = """
import headrace as hr


class Standardize:
    def process(self, profile, context):
        title = " ".join(profile.title.lower().replace(".", " ").split())
        context.store("titles").put(profile.id, title)
        context.emit({"id": profile.id, "title": title})


@hr.job("standard")
def standard(g):
    profiles = g.input("profiles", time="at").partition_by("id")
    made = profiles.process(
        Standardize, [hr.store("titles", str, "rocksdb")], returns={"id": int, "title": str}
    )
    made.send_to(g.output("titles", partitions=4))
"""


@dataclass(frozen=True)
class Lengths:
    """How long each phase of a case is, s, and where both jobs run."""

    before: float
    during: float
    after: float
    where: Sequence[str]


class Feed:
    """Appends rows, and notes when how many were there."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turn = stream, itertools.cycle(range(PARTITIONS))
        draw = np.random.default_rng(7)
        self._ids = draw.integers(0, IDS, 1 << 20)
        words = ["Sr.  Software Engineer", "VP. of  Sales", "Data Scientist", "Jr. Designer"]
        self._titles = pa.array(words).take(pa.array(draw.integers(0, len(words), 1 << 20)))
        self.rows, self.notes = 0, []

    def send(self, rows: int, at: pa.Array | None = None) -> None:
        first = int(self.rows) % ((1 << 20) - CHUNK)
        times = pa.array(np.full(rows, int(time.time() * 1000))) if at is None else at
        columns = [
            pa.array(self._ids[first : first + rows]),
            self._titles.slice(first, rows),
            times,
        ]
        began = time.monotonic()
        self._stream.append(next(self._turn), pa.record_batch(columns, schema=SCHEMA))
        self.rows += rows
        self.notes.append((began, self.rows))

    def send_old(self, rows: int) -> None:
        """Append old rows, one for each millisecond; they are not counted."""
        for first in range(0, rows, OLD_CHUNK):
            self.send(OLD_CHUNK, pa.array(BEGIN_MS + np.arange(first, first + OLD_CHUNK)))
        self.rows, self.notes = 0, []


class Command:
    """A command of Headrace that prints an object for each epoch; when it did, and the object."""

    def __init__(self, home: Path, log: str, *words: object) -> None:
        self._log = open(home / log, "wb")  # noqa: SIM115 - until it ends
        self.epochs: list[tuple[float, dict[str, Any]]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *map(str, words), "--json"],
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=home,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            now, told = time.monotonic(), json.loads(line)
            if told.get("type") == "epoch" and told["rows"]:
                self.epochs.append((now, told))

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> None:
        if self._process.wait(PATIENCE_S):
            raise RuntimeError(Path(self._log.name).read_text()[-2000:])
        self._reader.join()

    def first_epoch(self) -> float:
        """Wait until it reads rows; return when the epoch that did so began."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.epochs:
            if self.is_over or time.monotonic() > deadline:
                raise RuntimeError(Path(self._log.name).read_text()[-2000:])
            time.sleep(0.02)
        return self.epochs[0][0] - self.epochs[0][1]["took_ms"] / 1000

    def rate(self) -> float:
        """Rows a second, from the begin of the second epoch to that of the last one."""
        if len(self.epochs) < 3:
            raise RuntimeError("fewer than three epochs read all; take more rows")
        begins = [at - told["took_ms"] / 1000 for at, told in self.epochs]
        rows = sum(told["rows"] for _, told in self.epochs[1:-1])
        return float(rows / (begins[-1] - begins[1]))

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        end_group(self._process)
        self._log.close()


def old_times(rows: int) -> tuple[str, str]:
    """The first event time of the old rows, and the one that so many of them are before."""
    ends = np.array([BEGIN_MS, BEGIN_MS + rows], dtype="datetime64[ms]")
    begin, end = (str(one) for one in ends)
    return begin, end


def backfill(home: Path, name: str, rows: int, rate: int | None, *words: object) -> Command:
    begin, end = old_times(min(OLD_ROWS, rows))
    throttle = () if rate is None else ("--rate", rate)
    own = ("--name", name, "--from", begin, "--to", end, "--set", f"epoch.max_rows={EPOCH_ROWS}")
    return Command(home, f"{name}.log", "backfill", "standard.py", *own, *throttle, *words)


@dataclass
class Live:
    """The live job, and what comes in for it."""

    command: Command
    feed: Feed
    load: str
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began = time.monotonic()
        while not self.over.wait(EVERY_S):
            if self.load == "steady":
                due = int((time.monotonic() - began) * LIVE_RATE) - self.feed.rows
                if due > 0:
                    self.feed.send(min(due, CHUNK))
            else:
                while self.feed.rows < self.read() + 4 * EPOCH_ROWS:
                    self.feed.send(CHUNK // 4)

    def settle(self) -> None:
        """Wait until it has read what came while it started, or was slowed down."""
        deadline = time.monotonic() + PATIENCE_S
        while self.load == "steady" and self.command.epochs[-1][1]["lag"]:
            if time.monotonic() > deadline:
                raise RuntimeError("the live job does not catch up")
            time.sleep(0.05)
        time.sleep(SETTLE_S)

    def read(self) -> int:
        return sum(told["rows"] for _, told in list(self.command.epochs))

    def __enter__(self) -> Live:
        self._thread.start()
        self.command.first_epoch()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """The rate of the epochs that ended in this time, and the latency of their messages."""
        epochs = list(self.command.epochs)
        ends = [at for at, _ in epochs]
        first, last = np.searchsorted(ends, [begin, end])
        found = epochs[first:last]
        if not first or len(found) < 2:
            return {}
        span = found[-1][0] - epochs[first - 1][0]
        told = {"rows_per_s": round(sum(one["rows"] for _, one in found) / span)}
        if self.load == "steady":
            waits = self._waits(epochs, first, last)
            told |= {f"p{p}_ms": round(float(np.percentile(waits, p)) * 1000) for p in (50, 99)}
        return told

    def _waits(self, epochs: Sequence[tuple[float, Any]], first: int, last: int) -> Any:
        """How long each append waited that one of these epochs read."""
        read = np.cumsum([told["rows"] for _, told in epochs])
        notes = np.array(list(self.feed.notes))
        by = np.searchsorted(read, notes[:, 1])
        mine = (by >= first) & (by < last)
        return np.array([at for at, _ in epochs])[by[mine]] - notes[mine, 0]

    def timeline(self, begin: float, end: float, beside: Command, step: float) -> list[Any]:
        """For each second: rows a second of both, and the latency."""
        found = []
        for at in np.arange(begin, end - step, step):
            own = self.between(at, at + step)
            rows = sum(told["rows"] for when, told in beside.epochs if at <= when < at + step)
            found.append(
                [round(at - begin, 1), own.get("rows_per_s"), rows / step, own.get("p99_ms")]
            )
        return found


def measured(home: Path, live: Live, share: float | None, lengths: Lengths) -> dict[str, Any]:
    """Run one backfill beside a live job."""
    live.settle()
    start = time.monotonic()
    time.sleep(lengths.before)
    asked = time.monotonic()
    before = live.between(start, asked)
    rate = None if share is None else round(before["rows_per_s"] * share)
    rows = OLD_ROWS if rate is None else int(rate * lengths.during)
    name = f"{live.load}-{'all' if share is None else int(share * 100)}"
    with backfill(home, name, rows, rate, *lengths.where) as command:
        began = command.first_epoch()
        deadline = time.monotonic() + 2 * lengths.during
        while not command.is_over and time.monotonic() < deadline:
            time.sleep(0.05)
        over = command.epochs[-1][0]
    ended = time.monotonic()
    time.sleep(lengths.after)
    last = time.monotonic()
    phases = {"starting": (asked, began), "during": (began, over), "after": (ended, last)}
    return {
        "load": live.load,
        "share": share,
        "rate": rate,
        "backfill_rows_per_s": round(command.rate()),
        "live": {"before": before, **{name: live.between(*at) for name, at in phases.items()}},
        "marks": [round(at - start, 1) for at in (asked, began, over, ended)],
        "timeline": live.timeline(start, last, command, 1.0),
    }


@contextlib.contextmanager
def home_with_rows(rows: int) -> Iterator[tuple[Path, Feed]]:
    with tempfile.TemporaryDirectory(prefix="reprocessing-") as name:
        home = Path(name)
        (home / "standard.py").write_text(JOB)
        with open_bus(home / ".headrace" / "bus") as bus:
            feed = Feed(bus.create(StreamSpec("profiles", PARTITIONS, SCHEMA, "at")))
            feed.send_old(rows)
            yield home, feed


def beside_live(load: str, lengths: Lengths) -> Iterator[dict[str, Any]]:
    sets = {"job.start": "2010-01-01", "job.tasks": TASKS, "epoch.max_rows": EPOCH_ROWS}
    words = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    with home_with_rows(OLD_ROWS) as (home, feed):
        run = Command(home, "live.log", "run", "standard.py", *lengths.where, *words)
        with run as command, Live(command, feed, load) as live:
            time.sleep(2 * SETTLE_S)
            for share in SHARES[load]:
                yield measured(home, live, share, lengths)


def rates(lengths: Lengths) -> Iterator[dict[str, Any]]:
    """Backfills alone, on executors of one core."""
    with home_with_rows(OLD_ROWS) as (home, _), SparkCluster(home / "cluster", 1, 2048, 2) as found:
        for executors, rate in RATES:
            rows = OLD_ROWS if rate is None else int(rate * lengths.during)
            tasks, name = TASKS * executors, f"rate-{executors}-{rate or 'all'}"
            own = ("--tasks", tasks, "--executors", executors, "--cores", 1)
            memory = ("--set", "spark.conf.spark.executor.memory=768m")
            words = ("--master", found.url, *own, *memory)
            with backfill(home, name, rows, rate, *words) as command:
                command.wait()
                yield {
                    "executors": executors,
                    "tasks": tasks,
                    "rate": rate,
                    "rows_per_s": round(command.rate()),
                }


def draw(results: Path, images: Path) -> None:
    found = [json.loads(line) for line in results.read_text().splitlines()]
    steady = [one for one in found if one.get("load") == "steady"]
    figure, grid = pyplot.subplots(
        2, len(steady), figsize=(3 * len(steady), 4.6), sharex="col", sharey="row", squeeze=False
    )
    for one, (above, below) in zip(steady, grid.T, strict=True):
        line = np.array(one["timeline"], dtype=float)
        above.plot(line[:, 0], line[:, 1] / 1000, color="tab:blue", label="live job")
        above.plot(line[:, 0], line[:, 2] / 1000, color="tab:orange", label="backfill")
        below.plot(line[:, 0], line[:, 3], color="tab:blue")
        said = "no throttle" if one["share"] is None else f"throttle {one['share']:.0%}"
        above.set_title(said, fontsize=10)
        below.set_xlabel("s")
        for axes in (above, below):
            axes.axvspan(*one["marks"][:2], color="0.93")
            axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("rows/s, thousands")
    grid[1][0].set_ylabel("p99 of the live job, ms")
    grid[1][0].set_ylim(0, None)
    grid[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(images / "reprocessing-live.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=("steady", "full", "rates"))
    parser.add_argument("--before", type=float, default=5.0)
    parser.add_argument("--during", type=float, default=8.0)
    parser.add_argument("--after", type=float, default=4.0)
    parser.add_argument("--standalone", action="store_true", help="both without Spark")
    parser.add_argument("--figure", action="store_true")
    options = parser.parse_args()
    if options.figure:
        draw(RESULTS, IMAGES)
        return
    where = ("--standalone",) if options.standalone else ("--master", "local[1]")
    lengths = Lengths(options.before, options.during, options.after, where)
    for part in options.only or ("steady", "full", "rates"):
        for told in rates(lengths) if part == "rates" else beside_live(part, lengths):
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
