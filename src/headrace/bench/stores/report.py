"""The result as text: a table of all cases, and ours beside the paper's ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.bench.stores.cases import CASES
from headrace.bench.stores.figures import NAMES

Row = tuple[str, ...]
COLUMNS: Row = (
    "store",
    "messages/s",
    "processed, mean",
    "p50",
    "p99",
    "visible, p50",
    "p99",
    "worker CPU a message",
    "disk a message",
    "network a message",
)


def rows_of(result: Mapping[str, Any], workload: str) -> list[Row]:
    """Return the table of a workload: a head, then a row for each case."""
    found = [COLUMNS]
    for case in CASES:
        one = result.get(workload, {}).get(case.name)
        if one is None:
            continue
        rate, done, seen = one["rate"], one.get("processed", {}), one.get("visible", {})
        found.append(
            (
                case.label,
                f"{rate['rows_per_s']:,}",
                *(_time(done.get(name)) for name in ("mean_us", "p50_us", "p99_us")),
                *(_time(seen.get(name)) for name in ("p50_us", "p99_us")),
                f"{rate['worker_us_a_row']:.2f} us",
                f"{rate['disk_written_bytes_a_row']:,.0f} B",
                f"{rate['network_bytes_a_row']:,.0f} B",
            )
        )
    return found


def ratios(result: Mapping[str, Any]) -> list[Row]:
    """Return our ratios beside the paper's; those that were not measured are left out."""
    found: list[Row] = [("ratio", "paper", *(NAMES[w] for w in _present(result)))]
    for name, paper, parts in _RATIOS:
        ours = [_ratio(result[workload], *parts) for workload in _present(result)]
        if any(ours):
            found.append((name, paper, *(text or "-" for text in ours)))
    return found


_RATE, _CPU = ("rate", "rows_per_s"), ("rate", "worker_us_a_row")
_MEAN = ("processed", "mean_us")
_RATIOS: Sequence[tuple[str, str, tuple[str, str, tuple[str, str], str]]] = (
    (
        "throughput lost to the changelog, in-memory",
        "under 5 %",
        ("memory-log", "memory", _RATE, "lost"),
    ),
    ("throughput lost to the changelog, on-disk", "under 5 %", ("disk-log", "disk", _RATE, "lost")),
    (
        "processor time added by the changelog, in-memory",
        "about 15 %",
        ("memory-log", "memory", _CPU, "added"),
    ),
    (
        "processor time added by the changelog, on-disk",
        "about 15 %",
        ("disk-log", "disk", _CPU, "added"),
    ),
    (
        "on-disk by in-memory, both with changelog",
        "about 1",
        ("disk-log", "memory-log", _RATE, "times"),
    ),
    (
        "throughput lost without caches",
        "50 to 60 %",
        ("disk-no-cache", "disk", _RATE, "lost"),
    ),
    (
        "local by remote, blocking on loopback",
        "100 to 150 times",
        ("disk-log", "remote-blocking", _RATE, "times"),
    ),
    (
        "local by remote, blocking with 0.5 ms each way",
        "100 to 150 times",
        ("disk-log", "far-blocking", _RATE, "times"),
    ),
    (
        "local by remote, async with 0.5 ms each way",
        "100 to 150 times",
        ("disk-log", "far-async", _RATE, "times"),
    ),
    (
        "local by remote, batched with 0.5 ms each way",
        "-",
        ("disk-log", "far-batched", _RATE, "times"),
    ),
    (
        "latency of remote by local, blocking with 0.5 ms each way",
        "1,000 times",
        ("far-blocking", "disk-log", _MEAN, "times"),
    ),
    (
        "columnar by on-disk, both with changelog",
        "-",
        ("columnar", "disk-log", _RATE, "times"),
    ),
)


def _ratio(
    cases: Mapping[str, Any], above: str, below: str, path: tuple[str, str], how: str
) -> str | None:
    values = []
    for name in (above, below):
        value = cases.get(name, {}).get(path[0], {}).get(path[1])
        if not value:
            return None
        values.append(value)
    ratio = values[0] / values[1]
    if how == "lost":
        return f"{round((1 - ratio) * 100)} %"
    if how == "added":
        return f"{round((ratio - 1) * 100)} %"
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2f} times"


def markdown(rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def plain(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table as lines of columns."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the command prints."""
    for workload in _present(result):
        yield NAMES[workload]
        yield from plain(rows_of(result, workload))
        yield ""
    yield from plain(ratios(result))


def _present(result: Mapping[str, Any]) -> list[str]:
    return [workload for workload in NAMES if workload in result]


def _time(micros: float | None) -> str:
    if micros is None:
        return "-"
    if micros < 1000:
        return f"{micros:.2f} us" if micros < 10 else f"{micros:.0f} us"
    return f"{micros / 1000:.1f} ms" if micros < 1e6 else f"{micros / 1e6:.2f} s"
