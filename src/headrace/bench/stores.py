"""``headrace bench stores``: runs the paper's ReadOnly and ReadWrite over every kind of store.

Prints a table beside the paper's ratios, and draws the paper's Figures 8, 9 and 10.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headrace import extras
from headrace.bench.store_jobs import BY_NAME, CASES, FULL, QUICK, WORKLOADS, Case, Size, Workload
from headrace.bench.store_latency import processed, visible
from headrace.bench.store_rates import MASTER, TASKS, measure
from headrace.clock import SystemClock
from headrace.errors import InvalidInputError

DPI = 110
INK, FAINT, PAPER = "#1f2933", "#7b8794", "#fbfaf7"
COLORS = {"readonly": "#2f6f8f", "readwrite": "#c8452f"}
NAMES = {"readonly": "ReadOnly", "readwrite": "ReadWrite"}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "grid.color": "#e4e2dc",
    "xtick.color": FAINT,
    "ytick.color": INK,
}
_LINES = ("-", "--", ":", "-.")


def need_matplotlib() -> None:
    """Find out early whether figures can be drawn.

    Raises:
        InvalidInputError: Matplotlib is not installed.
    """
    if (text := extras.lacking("matplotlib", "a figure")) is not None:
        raise InvalidInputError(text)


@contextmanager
def figure(path: Path, title: str, width: float, height: float) -> Iterator[Any]:
    """Give an empty figure in the house's style, and save it as PNG at the end."""
    with tempfile.TemporaryDirectory() as cache:
        # Matplotlib keeps a font cache, in the user's home by default.
        os.environ.setdefault("MPLCONFIGDIR", cache)
        # Not at the top: its configuration folder must be chosen before, and it takes a while.
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415

        try:
            with mpl.rc_context(STYLE):
                made = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
                FigureCanvasAgg(made)
                made.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
                yield made
                made.savefig(path)
        finally:
            if os.environ["MPLCONFIGDIR"] == cache:
                del os.environ["MPLCONFIGDIR"]


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``figure-8.png``, ``figure-9.png`` and ``figure-10.png``.

    Args:
        result: what ``command.main`` returned.
        folder: where to.
    """
    paths = [folder / f"figure-{number}.png" for number in (8, 9, 10)]
    _draw_rates(result, paths[0])
    _draw_use(result, paths[1])
    _draw_distributions(result, paths[2])
    return paths


def shown_cases(result: Mapping[str, Any]) -> list[Case]:
    """Return the cases that a result has."""
    names = {name for workload in WORKLOADS for name in result.get(workload, {})}
    return [case for case in CASES if case.name in names]


def _workloads(result: Mapping[str, Any]) -> list[str]:
    return [workload for workload in ("readonly", "readwrite") if workload in result]


def _bars(
    axes: Any, result: Mapping[str, Any], cases: list[Case], path: tuple[str, ...], text: str
) -> None:
    """Draw one bar for each case and workload of what stands at a path, with its value."""
    workloads = _workloads(result)
    high = 0.8 / len(workloads)
    for turn, workload in enumerate(workloads):
        places: list[float] = []
        values: list[float] = []
        for number, case in enumerate(cases):
            value: Any = result[workload].get(case.name, {})
            for part in path:
                value = value.get(part, {}) if isinstance(value, Mapping) else {}
            if isinstance(value, int | float):
                places.append(number + (turn - (len(workloads) - 1) / 2) * high)
                values.append(value)
        axes.barh(places, values, height=high * 0.92, color=COLORS[workload], label=NAMES[workload])
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                text.format(value),
                (value, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                size=7.5,
            )
    axes.set_yticks(range(len(cases)), [case.label for case in cases])
    if not axes.yaxis_inverted():  # panels share theirs
        axes.invert_yaxis()
    axes.grid(axis="x")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.margins(x=0.16)


def _draw_rates(result: Mapping[str, Any], path: Path) -> None:
    cases = shown_cases(result)
    with figure(path, "Throughput and latency by store (the paper's Figure 8)", 13, 6) as made:
        left, right = made.subplots(1, 2, sharey=True)
        _bars(left, result, cases, ("rate", "rows_per_s"), "{:,.0f}")
        left.set_xscale("log")
        left.set_title("messages a second")
        _bars(right, result, cases, ("processed", "mean_us"), "{:,.1f}")
        right.set_xscale("log")
        right.set_title("mean time from fetched to processed, microseconds")
        left.legend(loc="lower right", frameon=False)


def _draw_use(result: Mapping[str, Any], path: Path) -> None:
    cases = shown_cases(result)
    panels = (
        (("rate", "cpu_cores", "workers"), "{:.2f}", "cores that the workers kept busy"),
        (("rate", "worker_us_a_row"), "{:.2f}", "processor time of workers a message, us"),
        (("rate", "disk_written_bytes_a_row"), "{:,.0f}", "bytes written to disk a message"),
        (("rate", "network_bytes_a_row"), "{:,.0f}", "bytes to and from the server a message"),
    )
    with figure(path, "Use of the machine by store (the paper's Figure 9)", 16, 6) as made:
        for axes, (where, text, title) in zip(
            made.subplots(1, len(panels), sharey=True), panels, strict=True
        ):
            _bars(axes, result, cases, where, text)
            axes.set_title(title, size=9.5)
            if where[-1] == "worker_us_a_row":
                axes.set_xscale("log")
        made.axes[0].legend(loc="lower right", frameon=False)


def _draw_distributions(result: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415

    colors = [mpl.colormaps["tab20"](number) for number in range(20)]
    workload = "readwrite" if "readwrite" in result else _workloads(result)[0]
    title = f"Latency of a message by store, {NAMES[workload]} (the paper's Figure 10)"
    with figure(path, title, 13, 6) as made:
        panels = made.subplots(1, 2, sharey=True)
        kinds = {
            "processed": "fetched to processed, as the paper has it",
            "visible": "appended to visible, as a user sees it",
        }
        for axes, (kind, name) in zip(panels, kinds.items(), strict=True):
            for turn, case in enumerate(shown_cases(result)):
                points = result[workload].get(case.name, {}).get(kind, {}).get("points", [])
                xs = [max(value, 0.05) / 1000 for _, value in points]
                ys = [share for share, _ in points]
                style = _LINES[turn % len(_LINES)]
                axes.plot(xs, ys, style, color=colors[turn % 20], label=case.label, linewidth=1.6)
            axes.set_xscale("log")
            axes.set_xlabel("milliseconds")
            axes.set_title(name)
            axes.grid()
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        panels[0].set_ylabel("share of messages")
        panels[0].legend(loc="lower right", frameon=False, fontsize=7.5)


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


RESULT = "stores.json"


def compare_stores(
    options: Mapping[str, Any], say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the cases, one after the other.

    Args:
        options: ``quick``, ``only`` (names of cases), ``workload``, ``out`` (folder of the JSON
            and the figures; what it holds of the same machine and size is kept where it is not
            measured again) and ``home``; those left out have the defaults of the command.
        say: called with what is being measured.

    Returns:
        ``machine``, ``size``, and for each workload each case's ``rate``, ``processed`` and
        ``visible``; the same as in ``out``.

    Raises:
        InvalidInputError: no case of that name, or a program or library is missing.
    """
    return run(options, QUICK if options.get("quick") else FULL, say)


def run(
    options: Mapping[str, Any], size: Size, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure as much as a size says; see ``compare_stores``."""
    cases = chosen(options.get("only") or ())
    workloads: Sequence[Workload] = WORKLOADS
    if options.get("workload"):
        workloads = (options["workload"],)
    need_matplotlib()
    home = Path(options.get("home") or ".headrace").absolute() / "bench"
    out = None if not options.get("out") else Path(options["out"])
    result = _begin(out, size)
    say("warming Spark up")
    with _folder(home, workloads[0], cases[0]) as folder:
        measure(cases[0], workloads[0], QUICK, folder)
    for workload in workloads:
        found = result.setdefault(workload, {})
        # In rounds, so that what disturbs the machine for a while does not meet one case alone.
        rates: dict[str, list[dict[str, Any]]] = {}
        for turn in range(size.repeats):
            for case in cases:
                say(f"{workload}: {case.label}, {turn + 1} of {size.repeats}")
                with _folder(home, workload, case) as folder:
                    rates.setdefault(case.name, []).append(measure(case, workload, size, folder))
                found.setdefault(case.name, {})["rate"] = _median(rates[case.name])
                _save(out, result)
        # A quick look has latencies of one job only.
        for case in cases if size is not QUICK or workload == workloads[0] else ():
            say(f"{workload}: {case.label}, latency")
            with _folder(home, workload, case) as folder:
                one = found[case.name]
                one["processed"] = processed(case, workload, size, folder / "processed")
                rate = one["rate"]["rows_per_s"]
                one["visible"] = visible(case, workload, size, folder / "visible", rate)
            _save(out, result)
    if out is not None:
        draw(result, out)
    return result


def _begin(out: Path | None, size: Size) -> dict[str, Any]:
    """Return an empty result, or the one in a folder that was measured in the same way."""
    empty = {
        "machine": machine(),
        "size": {
            "ids": size.ids,
            "seconds": size.seconds,
            "repeats": size.repeats,
            "tasks": TASKS,
            "master": MASTER,
            "is_quick": size is QUICK,
        },
    }
    if out is None or not (out / RESULT).exists():
        return empty
    held: dict[str, Any] = json.loads((out / RESULT).read_text())
    alike = all(held.get(part) == empty[part] for part in empty)
    return held if alike else empty


def _save(out: Path | None, result: Mapping[str, Any]) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    parts = [f"{json.dumps(name)}: {_text(name, value)}" for name, value in result.items()]
    (out / RESULT).write_text("{\n " + ",\n ".join(parts) + "\n}\n")


def _text(name: str, value: Any) -> str:
    """One case a line, so that a change shows which."""
    if name not in WORKLOADS:
        return json.dumps(value)
    lines = [f"{json.dumps(case)}: {json.dumps(one)}" for case, one in value.items()]
    return "{\n  " + ",\n  ".join(lines) + "\n }"


def chosen(names: Sequence[str]) -> list[Case]:
    """Return the cases of some names; all where there are none."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise InvalidInputError(f"no cases {unknown}; known: {list(BY_NAME)}")
    return [case for case in CASES if not names or case.name in names]


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run in the middle, with the rates of all."""
    ordered = sorted(runs, key=lambda run: run["rows_per_s"])
    return {**ordered[len(ordered) // 2], "all_rows_per_s": [run["rows_per_s"] for run in runs]}


@contextmanager
def _folder(home: Path, workload: Workload, case: Case) -> Iterator[Path]:
    """Give a new folder; workers remember a job by its folder, so each run has one of its own."""
    folder = home / f"{workload}-{case.name}-{SystemClock().new_id()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def machine() -> dict[str, Any]:
    """Return what it is measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.system(),
    }
