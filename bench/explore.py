"""How quickly streams are kept and queried, beside DuckDB over one Parquet file, as JSON.

    python bench/explore.py [--rows 10000000] [--queries 40] [--threads 2] [--beats 40] [--busy]

Appends rows to a stream in a home of its own, has the tailer keep them while a live chart asks,
and then asks for a group-by with two filters, with other values each time: by the engine
behind the API, and by plain DuckDB over one Parquet file with the same rows, in turn. Cold is a new
engine, and a new DuckDB, whose files are not in the page cache. At last single rows are appended
while the tailer follows, and each is asked for until an answer has it: docs/guide/explore.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bus.address import open_bus
from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.explore.engine import ExploreEngine
from headrace.explore.query import read_query
from headrace.explore.service import ExploreService
from headrace.ui.live import LEAST_S, RESTS

BATCH = 250_000
ROUTES, COUNTRIES, USERS = 200, 60, 100_000
SCHEMA = pa.schema(
    [
        ("at", pa.int64()),
        ("route", pa.string()),
        ("country", pa.string()),
        ("status", pa.int64()),
        ("ms", pa.float64()),
        ("user", pa.int64()),
    ]
)


def batch(number: int, count: int, begin_ms: int) -> pa.RecordBatch:
    """Return rows of a minute."""
    dice = np.random.default_rng(number)
    route = pa.DictionaryArray.from_arrays(
        dice.integers(0, ROUTES, count, np.int32), [f"/route/{n}" for n in range(ROUTES)]
    )
    country = pa.DictionaryArray.from_arrays(
        dice.integers(0, COUNTRIES, count, np.int32), [f"c{n}" for n in range(COUNTRIES)]
    )
    columns = [
        pa.array(begin_ms + number * 60_000 + np.sort(dice.integers(0, 60_000, count))),
        route.cast(pa.string()),
        country.cast(pa.string()),
        pa.array(dice.choice([200, 404, 500], count, p=[0.9, 0.07, 0.03])),
        pa.array(dice.exponential(50, count)),
        pa.array(dice.integers(0, USERS, count)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def question(number: int) -> dict[str, Any]:
    """Return a group-by with two filters; each number has other values."""
    return {
        "stream": "web",
        "from": "2000-01-01",
        "to": "2100-01-01",
        "group_by": ["country"],
        "metrics": [{"fn": "count"}, {"fn": "avg", "column": "ms"}],
        "filters": [
            {"column": "status", "op": "=", "value": (200, 404, 500)[number % 3]},
            {"column": "ms", "op": "<", "value": 20 + number * 3},
        ],
        "limit": 100,
    }


def plain_sql(number: int, file: Path) -> str:
    return (
        f"SELECT country, COUNT(*), AVG(ms) FROM read_parquet('{file}') WHERE status = "
        f"{(200, 404, 500)[number % 3]} AND ms < {20 + number * 3} GROUP BY country "
        "ORDER BY 2 DESC, 1 LIMIT 100"
    )


def forget(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def took_ms(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1000


def summary(times: list[float]) -> dict[str, float]:
    return {
        "p50": round(float(np.percentile(times, 50)), 1),
        "p95": round(float(np.percentile(times, 95)), 1),
    }


def new_plain(threads: int) -> Any:
    return duckdb.connect(config={"threads": threads})


def ingest(service: ExploreService, rows: int, *, rests: float) -> dict[str, Any]:
    """Keep all rows while another thread asks, as a live chart does; return rows a second."""
    over, asked = threading.Event(), [0]

    def ask() -> None:
        while not over.is_set():
            took = took_ms(lambda: service.answer(read_query(question(asked[0]))))
            asked[0] += 1
            over.wait(max(LEAST_S, rests * took / 1000) if rests else 0)

    service.tailer.step()
    asking = threading.Thread(target=ask)
    asking.start()
    begun = time.perf_counter()
    while service.tailer.step():
        pass
    took = time.perf_counter() - begun
    over.set()
    asking.join()
    return {"rows_per_s": round(rows / took), "queries_meanwhile": asked[0]}


def copying(bus: Any, rows: int, file: Path) -> dict[str, Any]:
    """Read the same stream into one Parquet file, as a program would that does no more."""
    stream = bus.stream("web")
    begun = time.perf_counter()
    with pq.ParquetWriter(file, SCHEMA, compression="lz4") as writer:
        for found in stream.read(0, 0):
            writer.write_batch(found.batch, row_group_size=122_880)
    return {"rows_per_s": round(rows / (time.perf_counter() - begun))}


def latencies(service: ExploreService, stream: Any, beats: int) -> dict[str, float]:
    """Return how long after its append a row is in an answer, ms."""
    service.tailer.start()
    query = read_query({"stream": "beats", "from": "2000-01-01", "to": "2100-01-01"})
    found: list[float] = []
    for beat in range(beats):
        time.sleep(0.037 * (beat % 5))  # at any moment between two looks
        row = pa.record_batch([pa.array([1_700_000_000_000 + beat])], ["at"])
        begun = time.perf_counter()
        stream.append(0, row)
        while service.answer(query).rows[0][0] <= beat:
            time.sleep(0.005)
        found.append((time.perf_counter() - begun) * 1000)
    return summary(found)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--rows", type=int, default=10_000_000)
    words.add_argument("--queries", type=int, default=40)
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--beats", type=int, default=40)
    words.add_argument("--busy", action="store_true", help="ask without a pause while rows come")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, file = Path(folder), Path(folder) / "plain.parquet"
        clock = SystemClock()
        begin = clock.now_ms() - (asked.rows // BATCH + 1) * 60_000
        sets = [f"home={home}", f"explore.threads={asked.threads}", "bus.fsync=never"]
        settings = load_settings(None, sets, {})
        with open_bus(home / "bus") as bus:
            stream = bus.create(StreamSpec("web", 1, SCHEMA, "at"))
            for number in range(asked.rows // BATCH):
                stream.append(0, batch(number, BATCH, begin))
            beats = bus.create(StreamSpec("beats", 1, pa.schema([("at", pa.int64())]), "at"))
            beats.append(0, pa.record_batch([pa.array([0])], ["at"]))
            service = ExploreService(bus, settings, clock)
            report: dict[str, Any] = {"rows": asked.rows, "threads": asked.threads}
            report["ingest"] = ingest(service, asked.rows, rests=0 if asked.busy else RESTS)
            report["ingest_plain"] = copying(bus, asked.rows, file)
            tail = service.tailer.tail("web")
            tail.flush()
            plain = new_plain(asked.threads)
            own, other = [], []
            for number in range(asked.queries):
                query = read_query(question(number))
                found: list[Any] = []
                own.append(took_ms(lambda q=query, f=found: f.append(service.answer(q).rows)))
                sql = plain_sql(number, file)
                rows: list[Any] = []
                other.append(took_ms(lambda s=sql, r=rows: r.append(plain.execute(s).fetchall())))
                assert [row[:2] for row in found[0]] == [list(row[:2]) for row in rows[0]]
            report["warm_ms"], report["warm_plain_ms"] = summary(own[1:]), summary(other[1:])
            cold, cold_plain = [], []
            files = [one.path for one in tail.kept().segments]
            for number in range(asked.queries // 4):
                forget([*files, file])
                query = read_query(question(number))
                cold.append(
                    took_ms(
                        lambda q=query: ExploreEngine(
                            settings.explore_dir, settings.explore, clock
                        ).answer(tail, q)
                    )
                )
                forget([*files, file])
                sql = plain_sql(number, file)
                cold_plain.append(
                    took_ms(lambda s=sql: new_plain(asked.threads).execute(s).fetchall())
                )
            report["cold_ms"], report["cold_plain_ms"] = summary(cold), summary(cold_plain)
            report["files"] = len(files)
            report["bytes_per_row"] = round(sum(os.path.getsize(p) for p in files) / asked.rows, 1)
            report["plain_bytes_per_row"] = round(file.stat().st_size / asked.rows, 1)
            report["event_to_answer_ms"] = latencies(service, beats, asked.beats)
            service.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
