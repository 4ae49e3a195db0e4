"""``headrace dev``: a job on sample data, again and again while its code is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Json, Target

if TYPE_CHECKING:
    from headrace.cli.running.trial import Shown

_DEBOUNCE_MS, _STEP_MS, _END_S = 100, 50, 5


def dev(
    target: Target,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM=FILE",
            help="Sample data. Default: data/STREAM.jsonl, .csv or .parquet beside the job.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option("-n", metavar="ROWS", min=1, help="Of each output.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="Run once, and do not watch files.")] = False,
    as_json: Json = False,
) -> None:
    """Run a job on sample data, in memory and without Spark, whenever a file changes."""
    files = _files(data or [])
    if once:
        _run(target, files, rows, as_json=as_json)
        return
    words = ["dev", target, "--once", "-n", str(rows)]
    words += [word for entry in data or [] for word in ("--data", entry)]
    _watch([*words, *(["--json"] if as_json else [])], _folders(target, files))


def _files(data: list[str]) -> dict[str, Path]:
    files = {}
    for entry in data:
        stream, equals, file = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"--data {entry}: expected STREAM=FILE")
        files[stream] = Path(file)
    return files


def _home_of(target: str) -> Path:
    place = target.partition(":")[0]
    return Path(place).parent if place.endswith(".py") or "/" in place else Path()


def _folders(target: str, files: dict[str, Path]) -> list[Path]:
    return [_home_of(target), *(file.parent for file in files.values() if file.parent.is_dir())]


def _run(target: str, files: dict[str, Path], rows: int, *, as_json: bool) -> None:
    from headrace.cli.running.trial import try_job
    from headrace.cli.targets import find_job
    from headrace.clock import SystemClock

    clock = SystemClock()
    began = clock.monotonic()
    job = find_job(target)
    for shown in try_job(job, _home_of(target) / "data", files, rows):
        _show(shown, as_json=as_json)
    if not as_json:
        typer.echo(f"{job.name}: done in {clock.monotonic() - began:.2f} s")


def _show(shown: Shown, *, as_json: bool) -> None:
    from headrace.cli.bus.tailing_text import LineRows, TableRows
    from headrace.cli.words import count_text

    name = shown.spec.name
    if as_json:
        import msgspec

        for row in shown.last:
            typer.echo(msgspec.json.encode({"stream": name, "row": row.row}).decode())
        return
    part = f", the last {len(shown.last)}" if len(shown.last) < shown.rows else ""
    typer.secho(f"{name}: {count_text(shown.rows, 'row')}{part}", bold=True)
    printer = TableRows(shown.spec) if sys.stdout.isatty() else LineRows(shown.spec)
    printer.show(shown.last)
    typer.echo()


def _watch(words: list[str], folders: list[Path]) -> None:
    """Run the command anew, in a process of its own, at the start and at each change."""
    import watchfiles

    def matters(change: object, path: str) -> bool:
        del change
        return path.endswith((".py", ".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".toml"))

    there = [folder.resolve() for folder in folders]
    changes = watchfiles.watch(
        *there, watch_filter=matters, debounce=_DEBOUNCE_MS, step=_STEP_MS, raise_interrupt=True
    )
    with suppress(KeyboardInterrupt), _child(words) as start:
        typer.echo(f"watching {there[0]}; Ctrl-C ends", err=True)
        start()
        for found in changes:
            names = ", ".join(sorted({Path(path).name for _, path in found}))
            typer.secho(f"--- {names} changed", dim=True, err=True)
            start()


@contextmanager
def _child(words: list[str]) -> Iterator[_Start]:
    """Give a function that ends the run under way and begins another."""
    start = _Start(words)
    try:
        yield start
    finally:
        start.end()


class _Start:
    def __init__(self, words: list[str]) -> None:
        self._command = [sys.executable, "-m", "headrace.cli.main", *words]
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        self.end()
        self._process = subprocess.Popen(self._command)

    def end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
