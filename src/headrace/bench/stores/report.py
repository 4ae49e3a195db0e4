"""The result as text: a table of all cases, and ours beside the paper's ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    for ratio in _RATIOS:
        ours = [ratio.of(result[workload]) for workload in _present(result)]
        if any(ours):
            found.append((ratio.name, ratio.paper, *(text or "-" for text in ours)))
    return found


_RATE, _CPU = ("rate", "rows_per_s"), ("rate", "worker_us_a_row")
_MEAN = ("processed", "mean_us")


class _Ratio(NamedTuple):
    """One figure of two cases, compared as the paper compares it."""

    name: str
    paper: str
    above: str
    below: str
    path: tuple[str, str] = _RATE
    how: str = "times"

    def of(self, cases: Mapping[str, Any]) -> str | None:
        """Return it in words; ``None`` when one of the two was not measured."""
        group, figure = self.path
        above, below = (cases.get(name, {}).get(group, {}).get(figure) for name in self[2:4])
        if not (above and below):
            return None
        ratio = above / below
        if self.how == "lost":
            return f"{round((1 - ratio) * 100)} %"
        if self.how == "added":
            return f"{round((ratio - 1) * 100)} %"
        return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2f} times"


_LOST, _ADDED = "throughput lost to the changelog", "processor time added by the changelog"
_BY_REMOTE, _FAR, _LOGS = "100 to 150 times", "with 0.5 ms each way", "both with changelog"
_RATIOS = (
    _Ratio(f"{_LOST}, in-memory", "under 5 %", "memory-log", "memory", how="lost"),
    _Ratio(f"{_LOST}, on-disk", "under 5 %", "disk-log", "disk", how="lost"),
    _Ratio(f"{_ADDED}, in-memory", "about 15 %", "memory-log", "memory", _CPU, "added"),
    _Ratio(f"{_ADDED}, on-disk", "about 15 %", "disk-log", "disk", _CPU, "added"),
    _Ratio(f"on-disk by in-memory, {_LOGS}", "about 1", "disk-log", "memory-log"),
    _Ratio("throughput lost without caches", "50 to 60 %", "disk-no-cache", "disk", how="lost"),
    _Ratio("local by remote, blocking on loopback", _BY_REMOTE, "disk-log", "remote-blocking"),
    _Ratio(f"local by remote, blocking {_FAR}", _BY_REMOTE, "disk-log", "far-blocking"),
    _Ratio(f"local by remote, async {_FAR}", _BY_REMOTE, "disk-log", "far-async"),
    _Ratio(f"local by remote, batched {_FAR}", "-", "disk-log", "far-batched"),
    _Ratio(
        f"latency of remote by local, blocking {_FAR}",
        "1,000 times",
        "far-blocking",
        "disk-log",
        _MEAN,
    ),
    _Ratio(f"columnar by on-disk, {_LOGS}", "-", "columnar", "disk-log"),
)


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
