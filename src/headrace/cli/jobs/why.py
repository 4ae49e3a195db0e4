"""``headrace jobs why``: who holds the watermarks of a job back, and where its rows went."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from headrace.cli.options import Home, JobName, Json, open_home_bus, settings_of
from headrace.cli.screen import show_facts, show_json, show_table
from headrace.cli.words import time_text

if TYPE_CHECKING:
    from headrace.coordinator.inspection.why import EndView, OperatorView, PartitionView, Why

SHOWN = 20
"""Partitions that are shown; those that hold nothing up are left out first."""


def why(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Tell which partition holds a job back, what it dropped, and where its output stopped."""
    from headrace.clock import SystemClock
    from headrace.control.client import asked
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.coordinator.inspection.why import Why, ask_why
    from headrace.sources.sourced import saved

    settings = settings_of(home)
    told = asked(settings, job, "/v1/why", list[Why])
    if (found := told) is None:
        readers = part_readers(settings, job, SystemClock())
        with open_home_bus(settings) as bus:
            found = [ask_why(reader, saved(bus, reader.root)) for reader in readers]
    if as_json:
        show_json(*({**asdict(one), "live": told is not None} for one in found))
        return
    for number, one in enumerate(found):
        if number:
            typer.echo()
        show_why(one)


def show_why(found: Why) -> None:
    """Print all of it, what people ask first last."""
    show_facts([("job", found.job), ("epoch", f"{found.epoch:,} of {time_text(found.time_ms)}")])
    if found.partitions:
        _show_partitions(found.partitions)
    typer.echo()
    titles = ("stage", "watermark (UTC)", "next result due at", "held back by")
    stages = [
        (one.stage, time_text(one.watermark_ms), time_text(one.due_ms), one.behind)
        for one in found.stages
    ]
    show_table(titles, stages)
    typer.echo()
    numbers = ("rows in", "rows out", "last in epoch")
    rows = [_operator_row(one) for one in found.operators]
    show_table(("operator", *numbers, "others", "what"), rows, right=numbers)
    typer.echo()
    for one in found.first:
        at = f"partition {one.partition} is at {one.next_offset:,} of {one.end:,}"
        typer.echo(f"{one.operator} is read first, {at}; other inputs wait")
    for end in found.ends:
        typer.echo(_end_line(end))


def _show_partitions(partitions: tuple[PartitionView, ...]) -> None:
    first = [one for one in partitions if one.standing != "counts"]
    rest = sorted(
        (one for one in partitions if one.standing == "counts"),
        key=lambda one: one.watermark_ms or 0,
    )
    shown = [*first, *rest][:SHOWN]
    typer.echo()
    titles = ("input", "partition", "watermark (UTC)", "unread", "last read (UTC)", "it")
    rows = [
        (
            one.operator if one.operator == one.stream else f"{one.operator} ({one.stream})",
            str(one.partition),
            time_text(one.watermark_ms),
            f"{one.unread:,}",
            time_text(one.read_ms, with_ms=False),
            one.standing,
        )
        for one in shown
    ]
    show_table(titles, rows, right=("partition", "unread"))
    if len(partitions) > len(shown):
        typer.echo(f"and {len(partitions) - len(shown):,} partitions more; --json has them all")


def _operator_row(one: OperatorView) -> tuple[str, ...]:
    others = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in sorted(one.others.items()))
    epoch = f"{one.epoch:,}" if one.epoch >= 0 else "-"
    return one.name, f"{one.received:,}", f"{one.sent:,}", epoch, others or "-", one.text


def _end_line(end: EndView) -> str:
    last = f"last in epoch {end.epoch:,} ({time_text(end.time_ms, with_ms=False)})"
    head = f"{end.operator}: {last if end.epoch >= 0 else 'never any row'}"
    if end.stopped_at is None:
        return f"{head}; rows still arrive"
    line = f"{head}; rows stop at {end.stopped_at}: {end.reason}"
    if end.due is not None:
        at, due = time_text(end.due.watermark_ms), time_text(end.due.due_ms)
        line += f", {due}; it is {'unknown' if at == '-' else at}, held back by {end.due.behind}"
    return line
