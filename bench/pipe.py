"""How fast a pipe is: `python bench/pipe.py [--rows N] [--folder DIR]` prints JSON.

Rows of an int64 id, an event time and a text of 60 letters, in one partition. The client of each
format is `cat >/dev/null` with `--ack exit`, a checkpoint every 100,000 rows; `acknowledged` is
`grep`, which prints the requests of JSON lines, a checkpoint every 1,000. What they are compared
with is `headrace bus tail --from earliest` into `/dev/null`, as JSON. Each is the best of three
processes, with their start, which an empty stream gives.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.bus import FileBus, StreamSpec

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("text", pa.string())]
)
BATCH_ROWS = 50_000
SINK = ("--", "sh", "-c", "exec cat >/dev/null")
EXIT = ("--ack", "exit", "--every-rows", "100000", "--every-s", "60")
WAYS = {
    "json": ("--format", "json", *EXIT, *SINK),
    "raw": ("--format", "raw", "--column", "text", *EXIT, *SINK),
    "arrow": ("--format", "arrow", *EXIT, *SINK),
    "acknowledged": ("--", "grep", "--line-buffered", '^."checkpoint'),
}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        home = Path(folder)
        sent = fill(home, asked.rows)
        tail = ("bus", "tail", "{}", "--from", "earliest", "--json")
        tail_s = seconds(home, tail)
        print(json.dumps({"way": "bus tail --json", **figures(asked.rows, sent["json"], tail_s)}))
        for name, words in WAYS.items():
            took = seconds(home, ("pipe", "--stream", "{}", "--until", "latest", "--reset", *words))
            size = sent.get(name, sent["json"])
            ratio = {"times_tail": round(tail_s / took, 2)}
            print(json.dumps({"way": name, **figures(asked.rows, size, took), **ratio}))


def fill(home: Path, rows: int) -> dict[str, int]:
    """Make a full and an empty stream; return the bytes that each format has of the full one."""
    ids = np.arange(BATCH_ROWS)
    texts = [f"{number:>60}" for number in ids.tolist()]
    times = pa.array(ids * 1_000_000, pa.int64()).cast(SCHEMA.field("at").type)
    batch = pa.RecordBatch.from_arrays([pa.array(ids), times, pa.array(texts)], schema=SCHEMA)
    with FileBus(home / "bus") as bus:
        for name in ("full", "empty"):
            stream = bus.create(StreamSpec(name, 1, SCHEMA, "at"))
        stream = bus.stream("full")
        for _ in range(rows // BATCH_ROWS):
            stream.append(0, batch)
    line = json.dumps({"id": 12345, "at": "1970-01-01T00:00:00Z", "text": texts[0]})
    line = line.replace('": ', '":').replace(', "', ',"')
    return {
        "json": rows * (len(line) + 1),
        "raw": rows * 61,
        "arrow": batch.nbytes * (rows // BATCH_ROWS),
    }


def seconds(home: Path, words: tuple[str, ...]) -> float:
    """Return the time of a command over the full stream, without that over the empty one."""
    return min(once(home, words, "full") for _ in range(3)) - min(
        once(home, words, "empty") for _ in range(3)
    )


def once(home: Path, words: tuple[str, ...], stream: str) -> float:
    """Return the CPU seconds that one process took, with its children."""
    command = [sys.executable, "-m", "headrace.cli.main", *(w.format(stream) for w in words)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HEADRACE_HOME": str(home)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures(rows: int, size: int, took_s: float) -> dict[str, float]:
    """Return rates."""
    return {
        "seconds": round(took_s, 2),
        "rows_per_s": round(rows / took_s),
        "mb_per_s": round(size / took_s / 1e6, 1),
    }


if __name__ == "__main__":
    main()
