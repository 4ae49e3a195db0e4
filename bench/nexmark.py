"""Nexmark, the benchmark of an auction house: rows a second of each query, beside DuckDB's.

python bench/nexmark.py [--events 500000] [--only q5 q7] [--json] [--kill]

Each query is an SQL app, which reads its streams from a file bus and appends its results to it, in
one process of one slot: exchange, state, changelog and commit as ever. A second of event time has
1,000 events. Events are appended before; the first epoch, of 5,000 events, warms up and is left
out. Rows in are those of the streams that the query reads, rows out those that it sends.

DuckDB then makes a table of the same rows, which it has in memory, and the results are compared.
Rates of a core are by time of the processor, as those by the clock depend on what else runs; these
are in ``--json``. DuckDB reads all at once and stores nothing: its rate says what the machine can
do.

With ``--kill``, q5, q7, q8 and q18 run as ``headrace run --standalone``, are killed by signal 9
several times and started again; what they come to is compared in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bench.nexmark import (
    CHANGING,
    QUERIES,
    SIDE_INPUT,
    STREAMS,
    make_events,
    query_names,
)
from headrace.bench.readwrite import bench_settings
from headrace.bench.stores import markdown
from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.spec import StreamSpec
from headrace.sql import SqlApp, load_app
from headrace.testing import TestDriver

RATE, WARM_UP = 1_000, 5_000
PARTITIONS, APPEND_ROWS, EPOCH_ROWS = 2, 10_000, 250_000
KILLED, KILLS, EPOCHS = ("q5", "q7", "q8", "q18"), 3, 12


def tables_of(events: int) -> dict[str, pa.Table]:
    """Return all streams as tables."""
    return {**make_events(0, events, rate=RATE)._asdict(), "side_input": SIDE_INPUT}


def streams_of(app: SqlApp) -> list[str]:
    """Return the streams that an app reads."""
    return sorted({table.stream.text for table in app.statements.inputs})


def append_rows(bus: Bus, stream: str, table: pa.Table, begin: int, end: int) -> int:
    """Append rows by their numbers, in turn to the partitions; return how many."""
    for turn, at in enumerate(range(begin, end, APPEND_ROWS)):
        rows = table.slice(at, min(APPEND_ROWS, end - at)).combine_chunks()
        bus.stream(stream).append(turn % PARTITIONS, rows.to_batches()[0])
    return end - begin


def results(bus: Bus, app: SqlApp, home: Path) -> pa.Table:
    """Return all rows that an app has sent, in their order, with their place in it as ``_n``."""
    if app.tables:
        (name,) = app.tables.values()
        sent = bus.stream(name)
        parts = [part.batch for p, at in enumerate(sent.begins()) for part in sent.read(p, at)]
        table = pa.Table.from_batches(parts)
    else:
        files = sorted(home.glob("warehouse/*/*/*.parquet"))
        table = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    return table.append_column("_n", pa.array(range(len(table)), pa.int64()))


def measure(name: str, tables: Mapping[str, pa.Table], events: int, home: Path) -> dict[str, Any]:
    """Run a query, and the same in DuckDB; return the figures of both."""
    app = load_app(QUERIES / f"{name}.sql")
    with TestDriver(
        app.job, tasks=2, slots=1, max_rows=EPOCH_ROWS, home=home, memory_bus=False
    ) as driver:
        read = streams_of(app)
        for stream in read:
            schema = tables[stream].schema
            columns = dict(zip(schema.names, schema.types, strict=True))
            time_column = "dateTime" if stream in STREAMS else None
            driver.create(stream, columns, partitions=PARTITIONS, time=time_column)
        parts = {
            stream: len(tables[stream]) * WARM_UP // events
            if stream in STREAMS
            else len(SIDE_INPUT)
            for stream in read
        }
        for stream, rows in parts.items():
            append_rows(driver.bus, stream, tables[stream], 0, rows)
        driver.run()
        count = sum(
            append_rows(driver.bus, stream, tables[stream], parts[stream], len(tables[stream]))
            for stream in read
        )
        began, processor = time.perf_counter(), time.process_time()
        driver.finish()
        took, used = time.perf_counter() - began, time.process_time() - processor
        found = results(driver.bus, app, home)
    theirs, is_equal = compared(name, tables, found)
    return {
        "query": name,
        "rows_in": count,
        "rows_out": len(found),
        "rows_per_s": round(count / took),
        "rows_per_core_s": round(count / used),
        "duckdb_rows_per_s": round(count / theirs[0]),
        "duckdb_rows_per_core_s": round(count / theirs[1]),
        "ratio": round(theirs[1] / used, 3),
        "is_equal": is_equal,
    }


def compared(
    name: str, tables: Mapping[str, pa.Table], found: pa.Table
) -> tuple[tuple[float, float], bool]:
    """Return the seconds and core-seconds of DuckDB for a query, and whether results are equal."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for stream, table in tables.items():
            connection.register("rows", table)
            connection.execute(f"create table {stream} as select * from rows")
        text = (QUERIES / "duckdb" / f"{name}.sql").read_text()
        began = time.perf_counter(), time.process_time()
        connection.execute(f"create table theirs as {text}")
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        connection.register("found", found)
        columns = connection.execute("describe theirs").fetchall()
        shown = ", ".join(_shown(column, kind) for column, kind, *_ in columns)
        ours = "found"
        if name == "q12":
            ours = "(select bidder, sum(bid_count) as bid_count from found group by bidder)"
        elif name in CHANGING:
            by = ", ".join(CHANGING[name])
            ours = (
                "(select * from found qualify row_number() over "
                f"(partition by {by} order by _n desc) = 1)"
            )
        connection.execute(f"create table a as select {shown} from {ours}")
        connection.execute(f"create table b as select {shown} from theirs")
        differ = connection.execute(
            "select count(*) from ((from a except all from b) union all (from b except all from a))"
        ).fetchone()
    return took, bool(differ == (0,))


def _shown(column: str, kind: str) -> str:
    """Return what is compared of a column: numbers up to rounding, moments as such."""
    if kind.startswith(("DECIMAL", "DOUBLE")):
        return f'round("{column}"::double, 4) as "{column}"'
    if kind.startswith("TIMESTAMP"):
        return f'"{column}"::timestamptz as "{column}"'
    return f'"{column}"::{kind} as "{column}"'


def kill(name: str, tables: Mapping[str, pa.Table], home: Path) -> dict[str, Any]:
    """Run a query in processes that are killed, to its end; return what it came to."""
    app = load_app(QUERIES / f"{name}.sql")
    epoch_rows = sum(len(tables[stream]) for stream in streams_of(app)) // EPOCHS
    settings = bench_settings(home, tasks=2, max_rows=epoch_rows, bounded=True)
    with open_bus(settings.bus_dir) as bus:
        for stream in streams_of(app):
            table = tables[stream]
            bus.create(StreamSpec(stream, PARTITIONS, table.schema, time="dateTime"))
            append_rows(bus, stream, table, 0, len(table))
    command = [str(Path(sys.executable).with_name("headrace")), "run", "--standalone"]
    command += ["--bounded", "--json", "--set", "job.tasks=2"]
    command += ["--set", f"epoch.max_rows={epoch_rows}", str(QUERIES / f"{name}.sql")]
    environment = {**os.environ, "HEADRACE_HOME": str(home)}
    epochs = kills = 0
    while True:
        run = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert run.stdout is not None
        own = 0
        for line in run.stdout:
            own += json.loads(line).get("type") == "epoch"
            if kills < KILLS and own > kills + 1:
                os.killpg(run.pid, signal.SIGKILL)
                break
        code = run.wait()
        epochs += own
        if code == 0:
            break
        if code != -signal.SIGKILL:
            raise RuntimeError(f"{name} ended with {code}")
        kills += 1
    with open_bus(settings.bus_dir) as bus:
        found = results(bus, app, home)
    _, is_equal = compared(name, tables, found)
    figures = {"query": name, "kills": kills, "epochs": epochs, "rows_out": len(found)}
    return {**figures, "is_equal": is_equal}


SHOWN = {
    "query": "query",
    "rows_in": "rows in",
    "rows_out": "rows out",
    "rows_per_core_s": "rows/s of a core",
    "duckdb_rows_per_core_s": "DuckDB",
    "ratio": "ratio",
    "kills": "killed",
    "epochs": "epochs",
    "is_equal": "equal",
}


def table_of(results: Sequence[Mapping[str, Any]]) -> str:
    """Return figures as a table in Markdown."""
    names = [name for name in SHOWN if name in results[0]]
    rows = [tuple(SHOWN[name] for name in names)]
    rows += [
        tuple(f"{one[n]:,}" if type(one[n]) is int else str(one[n]) for n in names)
        for one in results
    ]
    return markdown(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--only", nargs="*", help="queries, such as q5")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--json", action="store_true", help="an object for each query")
    given = parser.parse_args()
    tables = tables_of(given.events)
    names = given.only or (KILLED if given.kill else query_names())

    def run(name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
            if given.kill:
                return kill(name, tables, Path(folder))
            return measure(name, tables, given.events, Path(folder))

    if not given.kill:
        run(names[0])  # warms up the process
    rows = []
    for name in names:
        rows.append(run(name))
        if given.json:
            print(json.dumps(rows[-1]), flush=True)
    if not given.json:
        print(table_of(rows))
    if not all(row["is_equal"] for row in rows):
        sys.exit("results differ from DuckDB's")


if __name__ == "__main__":
    main()
