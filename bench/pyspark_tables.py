"""The tables of docs/benchmarks.md that set bounded jobs and state beside PySpark's own ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.bench.stores import Row, markdown

PROGRAMS = {
    "words": "ten words a line, counted",
    "routes": "mean delay by route and hour",
    "sessions": "visits of users",
    "members": "members by country",
}
WAYS = ("native", "job", "pandas", "messages", "frames")


def batch(result: list[dict[str, Any]]) -> str:
    """Seconds and processor time of each way of each program."""
    heads = ("PySpark, native", "job", "PySpark, pandas", "job, messages", "job, frames")
    rows: list[Row] = [("program", "rows", "results", *heads, "load")]
    for one in sorted(result, key=lambda one: list(PROGRAMS).index(one["program"])):
        took = [
            f"{one['seconds'][way]:.1f} s ({one['cpu_s'][way]:.1f} s)"
            if way in one["seconds"]
            else "-"
            for way in WAYS
        ]
        rows.append(
            (
                PROGRAMS[one["program"]],
                f"{one['rows']:,}",
                f"{one['results']:,}",
                *took,
                f"{one['load']:.0f}",
            ),
        )
    return markdown(rows)


RATIOS = {
    ("job", "native"): "at most 1.3",
    ("pandas", "messages"): "5",
    ("pandas", "frames"): "5",
}
MEASURES = {"seconds": "by the clock", "cpu_s": "by processor time"}


def ratios(result: list[dict[str, Any]]) -> str:
    """How the ways compare."""
    found = sorted(result, key=lambda one: list(PROGRAMS).index(one["program"]))
    rows: list[Row] = [("ratio", "aim", *(PROGRAMS[one["program"]] for one in found))]
    for (first, second), aim in RATIOS.items():
        for measure, words in MEASURES.items():
            took = [one[measure] for one in found]
            cells = [
                f"{one[first] / one[second]:.2f}" if {first, second} <= one.keys() else "-"
                for one in took
            ]
            rows.append((f"{first} / {second}, {words}", aim, *cells))
    return markdown(rows)


def stateful(result: list[dict[str, Any]]) -> str:
    """Rows a second of a running count."""
    rows: list[Row] = [("way", "rows", "keys", "rows/s", "processor time a row")]
    for one in result:
        numbers = (f"{one['rows']:,}", f"{one['keys']:,}", f"{one['rows_per_s']:,}")
        rows.append((f"`{one['way']}`", *numbers, f"{one['cpu_us']:.1f} us"))
    return markdown(rows)


KINDS = {
    "stream": "a stream",
    "files": "Parquet files, by settings",
    "dataframe": "the same files as a DataFrame",
}


def dataframes(result: dict[str, Any]) -> str:
    """The same job over three kinds of inputs."""
    rows: list[Row] = [
        (
            "input",
            "rows",
            "rows/s",
            "whole run",
            "before the first epoch",
            "processor time",
            "first run in the session",
            "rows/s of further rows",
        )
    ]
    for size in result["sizes"]:
        for kind, words in KINDS.items():
            one = size["kinds"][kind]
            times = (f"{one[name]:.2f} s" for name in ("seconds", "starting_s", "cpu_s"))
            first = f"{one['first_s']:.2f} s" if "first_s" in one else ""
            further = f"{one['further_rows_per_s']:,}" if "further_rows_per_s" in one else ""
            counts = f"{size['rows']:,}", f"{one['rows_per_s']:,}"
            rows.append((words, *counts, *times, first, further))
    return markdown(rows)


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "batch": ("batch.jsonl", batch),
    "batch ratios": ("batch.jsonl", ratios),
    "stateful": ("stateful.jsonl", stateful),
    "dataframes": ("dataframes.json", dataframes),
}
