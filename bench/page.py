"""Puts the tables of docs/benchmarks.md in place, from the JSON in docs/benchmarks.

    headrace bench stores --out docs/benchmarks                 # about ten minutes
    python bench/memory.py --out docs/benchmarks                # about five minutes
    python bench/restart.py > docs/benchmarks/restart.json      # some minutes
    for form in snapshot merged epochs; do python bench/restore.py --form $form; done \\
        > docs/benchmarks/restore.jsonl                         # a minute
    python bench/failover.py >> docs/benchmarks/failover.jsonl  # an hour
    python bench/containers.py > docs/benchmarks/containers.jsonl  # about six minutes, as root
    python bench/reprocessing.py > docs/benchmarks/reprocessing.jsonl  # about ten minutes
    python bench/members.py > docs/benchmarks/members.jsonl  # about eight minutes, as root
    python bench/batch.py --out docs/benchmarks/batch.jsonl             # about five minutes
    python bench/stateful.py --out docs/benchmarks/stateful.jsonl       # about two minutes
    python bench/dataframes.py --out docs/benchmarks/dataframes.json    # a minute
    python bench/nexmark.py --json > docs/benchmarks/nexmark.jsonl      # about two minutes
    python bench/page.py [--check]                              # writes the page

Text outside the marks ``<!-- name -->`` and ``<!-- /name -->`` is left as it is; ``--check`` writes
nothing and ends with 1 if a table is not that of its JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nexmark import table_of as nexmark
from pyspark_tables import TABLES as BESIDE_PYSPARK

from headrace.bench.stores import Row, markdown, ratios, rows_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FOLDER = DOCS / "benchmarks.md", DOCS / "benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = PAGE.read_text()
    after = filled(before)
    if check and after != before:
        sys.exit(f"{PAGE} is not what {FOLDER} says; run: python bench/page.py")
    if not check:
        PAGE.write_text(after)


def filled(text: str) -> str:
    """The page with every table of which there is a result."""
    for name, (file, make) in TABLES.items():
        path = FOLDER / file
        if not path.exists():
            continue
        table = make(read(path))
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = mark.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    return text


def read(path: Path) -> Any:
    lines = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines.splitlines() if line]
    return json.loads(lines)


def machine(result: dict[str, Any]) -> str:
    host, size = result["machine"], result["size"]
    text = (
        f"{host['cores']} cores, {host['memory_gb']:.0f} GB of memory, Python {host['python']}, "
        f"`{size['master']}`, {size['tasks']} tasks, {size['ids']:,} ids; "
        f"of each rate the middle one of {size['repeats']} runs."
    )
    if size["is_quick"]:
        text += " A quick look (`--quick`) while other programs ran, not a measurement."
    return text


def restart(result: dict[str, Any]) -> str:
    size = f"{result['lost']['state_bytes'] / 1e6:,.0f} MB, {result['store']}"
    rows: list[Row] = [
        (f"the driver ended ({size})", "Spark's own start", "first epoch", "of it bringing back")
    ]
    ends = {"clean": "cleanly", "killed": "by kill -9", "lost": "and the host's state was lost"}
    for name, words in ends.items():
        one = result[name]
        times = (one["spark_s"], one["first_epoch_s"], one["catch_up_s"])
        rows.append((words, *(f"{seconds:.1f} s" for seconds in times)))
    return markdown(rows)


def memory(result: dict[str, Any]) -> str:
    rows: list[Row] = [("store", "live state", "on disk", "worker, median", "95 %", "most")]
    for store, one in result["stores"].items():
        for size in ("small", "large"):
            part = one[size]
            sizes = ("state_bytes", "on_disk_bytes", "rss_p50", "rss_p95", "rss_max")
            texts = [f"{part[name] / 1e6:,.0f} MB" if part[name] > 1e6 else "-" for name in sizes]
            rows.append((store, *texts))
    return markdown(rows)


def restore(result: list[dict[str, Any]]) -> str:
    rows: list[Row] = [("store", "from", "an entry", "restored, MB/s a core", "by the wall clock")]
    for one in result:
        rate = one["restore"]
        rows.append(
            (
                one["store"],
                one["form"],
                f"{one['entry']} B",
                f"{rate['mb_s_cpu']:,.0f}",
                f"{rate['mb_s_wall']:,.0f}",
            )
        )
    return markdown(rows)


LOSSES = {
    "spark": "executors, of a PySpark program without Headrace",
    "affinity": "executors; their hosts stay",
    "late": "executors; their hosts stay, and start others 15 s later",
    "none": "hosts with their disks",
    "standby": "hosts, by kill -9, with standbys",
    "frozen": "hosts, by SIGSTOP, with standbys",
}


def failover(result: list[dict[str, Any]]) -> str:
    found: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for one in result:
        found.setdefault((list(LOSSES).index(one["way"]), one["mb"], one["lost"]), []).append(one)
    rows: list[Row] = [
        (
            "lost",
            "of 4",
            "state",
            "times",
            "all tasks work again, median",
            "the worst",
            "until Spark has all executors, median",
            "to a standby",
        )
    ]
    for (way, mb, lost), runs in sorted(found.items()):
        took = [one["back_s"] for one in runs]
        started = [one["spark_s"] for one in runs if one.get("spark_s") is not None]
        went = sum(one.get("failover", 0) for one in runs)
        moved = went + sum(one.get("no_failover", 0) for one in runs)
        rows.append(
            (
                list(LOSSES.values())[way],
                f"{lost}",
                f"{mb:,} MB" if mb else "-",
                f"{len(runs)}",
                f"{statistics.median(took):.1f} s",
                f"{max(took):.1f} s",
                f"{statistics.median(started):.1f} s" if started else "-",
                f"{went} of {moved} tasks" if moved else "-",
            )
        )
    return markdown(rows)


def containers(result: list[dict[str, Any]]) -> str:
    """What more containers bring: the paper's Figure 14."""
    rows: list[Row] = [
        ("containers", "messages/s of a backlog", "of one", "until committed, mean", "99 %")
    ]
    rows += [
        (
            f"{one['containers']}",
            f"{one['rate']:,}",
            f"{one['rate'] / result[0]['rate']:.1f}",
            f"{one['mean_s']:.1f} s",
            f"{one['p99_s']:.1f} s",
        )
        for one in result
    ]
    return markdown(rows)


def beside_live(result: list[dict[str, Any]]) -> str:
    """What a live job does while another one reads old data: the paper's Figure 12."""
    rows: list[Row] = [
        (
            "what comes in",
            "throttle, of the live rate",
            "reprocessed rows/s",
            "live rows/s, before",
            "during",
            "slower",
            "p50 before",
            "during",
            "p99 before",
            "while Spark starts",
            "during",
            "after",
        )
    ]
    for one in result:
        if "live" not in one:
            continue
        live = one["live"]
        slower = 1 - live["during"]["rows_per_s"] / live["before"]["rows_per_s"]
        waits = [(50, "before"), (50, "during")]
        waits += [(99, name) for name in ("before", "starting", "during", "after")]
        rows.append(
            (
                "10,000 rows/s" if one["load"] == "steady" else "more than it takes",
                "none" if one["share"] is None else f"{one['share']:.0%}",
                f"{one['backfill_rows_per_s']:,}",
                f"{live['before']['rows_per_s']:,}",
                f"{live['during']['rows_per_s']:,}",
                f"{max(0, slower):.0%}",
                *(_wait(live[phase].get(f"p{p}_ms")) for p, phase in waits),
            )
        )
    picture = "rate and latency of a live job while a backfill runs beside it, by throttle"
    return f"{markdown(rows)}\n\n![{picture}](images/reprocessing-live.svg)"


def members(result: list[dict[str, Any]]) -> str:
    """Members by country, by containers: the paper's Figure 13."""
    ways = ("job", "native", "frames", "pandas")
    rows: list[Row] = [
        (
            "containers",
            "Headrace, expressions",
            "Spark, expressions",
            "Headrace, Python on frames",
            "Spark, pandas UDF",
        )
    ]
    rows += [
        (f"{one['containers']}", *(f"{one['rows_s'][way]:,}" for way in ways)) for one in result
    ]
    picture = "profiles counted a second, by containers, in Headrace and in Spark"
    return f"{markdown(rows)}\n\n![{picture}](images/members.svg)"


def _wait(ms: int | None) -> str:
    return "-" if ms is None else f"{ms:,} ms"


def reprocessed(result: list[dict[str, Any]]) -> str:
    """Rows of a backfill alone, by throttle and executors."""
    rows: list[Row] = [("executors", "tasks", "throttle", "reprocessed rows/s")]
    rows += [
        (
            f"{one['executors']}",
            f"{one['tasks']}",
            "none" if one["rate"] is None else f"{one['rate']:,} rows/s",
            f"{one['rows_per_s']:,}",
        )
        for one in result
        if "executors" in one
    ]
    return markdown(rows)


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "machine": ("stores.json", machine),
    "readwrite": ("stores.json", lambda result: markdown(rows_of(result, "readwrite"))),
    "readonly": ("stores.json", lambda result: markdown(rows_of(result, "readonly"))),
    "ratios": ("stores.json", lambda result: markdown(ratios(result))),
    "restart": ("restart.json", restart),
    "memory": ("memory.json", memory),
    "restore": ("restore.jsonl", restore),
    "failover": ("failover.jsonl", failover),
    "containers": ("containers.jsonl", containers),
    "reprocessing": ("reprocessing.jsonl", beside_live),
    "reprocessing-rates": ("reprocessing.jsonl", reprocessed),
    "members": ("members.jsonl", members),
    "nexmark": ("nexmark.jsonl", nexmark),
    **BESIDE_PYSPARK,
}

if __name__ == "__main__":
    main()
