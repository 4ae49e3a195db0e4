"""Trending events: four apps, joined by streams, over recorded events; Figure 3 of the paper.

    python examples/trending/run.py
    python examples/trending/run.py --minutes 60 --per-minute 5000 --kill joiner
    python examples/trending/run.py --batch

    incoming -> filterer.sql -> posts -> joiner.py -> talks -> scorer.py
        -> events_stream -> ranker.sql -> top_events.top_events_5min

Each app is a process, while the recording is appended minute by minute, as fast as the apps follow;
then each runs here once more, to the end of its input. With --batch, each app runs here over all of
its input, sorted by time in a file, and then the next one.
The dimensions are a stream, which `headrace serve` serves to the Joiner.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from recording import BEGIN, DIMENSIONS, MINUTE, recorded

from headrace.bus import FileBus, Producer, StreamSpec
from headrace.cli.main import app
from headrace.clock import SystemClock

HERE = Path(__file__).parent
TOPS = "top_events.top_events_5min"
SERVED = "dimensions"
CLOCK = SystemClock()
NUMBER, TEXT = pa.int64(), pa.string()


class Stage(NamedTuple):
    """An app, the name of its job, and the stream that it reads with its columns and its key."""

    app: str
    job: str
    stream: str
    columns: dict[str, pa.DataType]
    time: str
    key: tuple[str, ...]


STAGES = {
    "filterer": Stage(
        "filterer.sql",
        "filterer",
        "incoming",
        {"at": NUMBER, "type": TEXT, "event": TEXT, "dimension": TEXT, "text": TEXT},
        "at",
        (),
    ),
    "joiner": Stage(
        "joiner.py",
        "joiner",
        "posts",
        {"at": NUMBER, "event": TEXT, "dimension": TEXT, "text": TEXT},
        "at",
        (),
    ),
    "scorer": Stage(
        "scorer.py",
        "scorer",
        "talks",
        {"at": NUMBER, "event": TEXT, "topic": TEXT},
        "at",
        ("event", "topic"),
    ),
    "ranker": Stage(
        "ranker.sql",
        "top_events",
        "events_stream",
        {"event_time": NUMBER, "event": TEXT, "category": TEXT, "score": pa.float64()},
        "event_time",
        ("category",),
    ),
}


class Pipeline:
    """The four apps and what serves dimensions, their streams and their processes in one home."""

    def __init__(self, home: Path) -> None:
        self.home, self._processes = home, dict[str, subprocess.Popen[bytes]]()
        self.bus = FileBus(home / "bus")
        for stage in STAGES.values():
            schema = pa.schema(stage.columns)
            self.bus.create(StreamSpec(stage.stream, 2, schema, stage.time, stage.key))
        schema = pa.schema({"dimension": TEXT, "language": TEXT})
        dimensions = self.bus.create(StreamSpec(SERVED, 1, schema, key=("dimension",)))
        columns = [pa.array(DIMENSIONS.keys()), pa.array(DIMENSIONS.values())]
        dimensions.append_rows(pa.table(columns, schema=schema))
        self._address = self._served()

    def _served(self) -> str:
        """Serve the dimensions; return the address, once they are loaded."""
        log = self.home / f"{SERVED}.log"
        self._address = "127.0.0.1:0"
        process = self._serve()
        while log.read_bytes().count(b"\n") < 2:  # where it listens, and that all is loaded
            if (code := process.poll()) is not None:
                raise SystemExit(f"headrace serve ended with {code}; see {log}")
            CLOCK.sleep(0.02)
        return str(json.loads(log.read_text().splitlines()[0])["address"])

    def _serve(self) -> subprocess.Popen[bytes]:
        port = self._address.rpartition(":")[2]  # the same when it is started again
        return self._begin(SERVED, "serve", "--stream", SERVED, "--port", port)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start an app in a process of its own; its log is in the home."""
        return self._begin(name, *self._running(name, *words))

    def _running(self, name: str, *words: str) -> list[str]:
        file = str(HERE / STAGES[name].app)
        return ["run", file, "--standalone", "--set", "job.tasks=2", *words]

    def _begin(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headrace.cli.main", *words]
        environment = {**os.environ, "DIMENSIONS": self._address}
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--json", "--home", str(self.home)],
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """Kill an app, or what serves dimensions, without warning, and start it again."""
        self._processes[name].kill()
        self._processes[name].wait()
        if name == SERVED:
            self._serve()  # the Joiner asks again until it answers
        else:
            self.start(name)

    def append(self, rows: list[dict[str, Any]], number: int) -> None:
        """Append a minute of the recording."""
        stage = STAGES["filterer"]
        table = pa.Table.from_pylist(rows, pa.schema(stage.columns))
        self.bus.stream(stage.stream).append_rows(
            table, producer=Producer("recording", "1"), sequence=number
        )

    def wait(self, name: str) -> None:
        """Return when an app has read all that is in its stream."""
        stage = STAGES[name]
        while self.has_read(stage.job) < sum(self.bus.stream(stage.stream).ends()):
            if (code := self._processes[name].poll()) is not None:
                raise SystemExit(f"{name} ended with {code}; see {self.home / name}.log")
            CLOCK.sleep(0.1)

    def has_read(self, job: str) -> int:
        """Return how many rows an app has committed."""
        return sum(one["read"] for one in self.described(job).get("inputs", ()))

    def described(self, job: str) -> dict[str, Any]:
        """Return what ``headrace jobs describe`` says; nothing before the first epoch."""
        out = io.StringIO()
        self._here(out, io.StringIO(), "jobs", "describe", job)
        return dict(json.loads(out.getvalue() or "{}"))

    def _here(self, out: TextIO, err: TextIO, *words: str) -> bool:
        """Run a command of Headrace in this process; return whether it succeeded."""
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                app([*words, "--json", "--home", str(self.home)])
            except SystemExit as ended:
                return not ended.code
        return True

    def finish(self, name: str, *words: str) -> None:
        """Run an app to the end of its input, and close its windows."""
        if (running := self._processes.get(name)) is not None:
            running.terminate()
            running.wait()
        os.environ["DIMENSIONS"] = self._address
        with (self.home / f"{name}.log").open("a") as log:
            if not self._here(log, log, *self._running(name, "--bounded", *words)):
                raise SystemExit(f"{name} failed; see {log.name}")

    def file_of(self, name: str) -> Path:
        """Write what is in the stream of an app to a file, sorted by time."""
        stage = STAGES[name]
        rows = self.rows(stage.stream).sort_by([(column, "ascending") for column in stage.columns])
        path = self.home / f"{stage.stream}.parquet"
        pq.write_table(rows, path)
        return path

    def rows(self, name: str) -> pa.Table:
        """Return the rows of a stream."""
        stream = self.bus.stream(name)
        begins = stream.begins()
        parts = [part.batch for p, begin in enumerate(begins) for part in stream.read(p, begin)]
        return pa.Table.from_batches(parts, stream.spec.schema)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self.bus.close()


def follow(pipeline: Pipeline, minutes: Iterator[list[dict[str, Any]]], kill: list[str]) -> None:
    """Run all apps at once, while the recording is appended; kill some on the way."""
    for name in STAGES:
        pipeline.start(name)
    left = list(kill)
    for number, rows in enumerate(minutes):
        pipeline.append(rows, number)
        if left and number and number % 2 == 0:
            pipeline.kill(left.pop(0))
        for name in ("filterer", "joiner", "scorer"):
            pipeline.wait(name)
    for name in STAGES:
        pipeline.finish(name)


def batch(pipeline: Pipeline, minutes: Iterator[list[dict[str, Any]]]) -> None:
    """Run one app after the other, each over a file."""
    for number, rows in enumerate(minutes):
        pipeline.append(rows, number)
    for name, stage in STAGES.items():
        pipeline.finish(name, "--set", f"inputs.{stage.stream}.files={pipeline.file_of(name)}")


def ranking(tops: pa.Table, minutes: int) -> dict[int, dict[str, list[tuple[str, float]]]]:
    """Return the ranked events of each topic, by the begin of the five minutes.

    The Scorer waits two minutes for rows that are late, and of the time behind its watermark it
    scores only what has come so far: so the last three minutes of the recording do not count.
    """
    end = BEGIN + (minutes - 3) * MINUTE
    found: dict[int, dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in tops.to_pylist():
        begin = row["window_start"]
        at = begin if isinstance(begin, int) else round(begin.timestamp() * 1000)
        if at + 5 * MINUTE <= end:
            found[at][row["category"]].append((row["event"], row["score"]))
    for topics in found.values():
        for events in topics.values():
            events.sort(key=lambda one: (-one[1], one[0]))
    return {at: dict(found[at]) for at in sorted(found)}


def show(ranked: Mapping[int, Mapping[str, list[tuple[str, float]]]]) -> None:
    """Print the topics of each five minutes, the one with the highest score first."""
    for at, topics in ranked.items():
        print(time.strftime("%H:%M", time.gmtime(at / 1000)))
        for topic, events in sorted(topics.items(), key=lambda one: (-one[1][0][1], one[0])):
            words = ", ".join(f"{event} {score:.2f}" for event, score in events[:3])
            print(f"  {topic:<20} {words}")


def main() -> None:
    """Run all of it."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words.add_argument("--minutes", type=int, default=20)
    words.add_argument("--per-minute", type=int, default=300)
    words.add_argument("--batch", action="store_true")
    words.add_argument("--kill", action="append", choices=[*STAGES, SERVED], default=[])
    words.add_argument("--home", type=Path, help="kept; by default a folder that is removed")
    given = words.parse_args()
    home = given.home or Path(tempfile.mkdtemp(prefix="trending-"))
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if given.home is None:
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        pipeline = Pipeline(home)
        stack.callback(pipeline.close)
        minutes = recorded(given.minutes, given.per_minute)
        if given.batch:
            batch(pipeline, minutes)
        else:
            follow(pipeline, minutes, given.kill)
        show(ranking(pipeline.rows(TOPS), given.minutes))


if __name__ == "__main__":
    main()
