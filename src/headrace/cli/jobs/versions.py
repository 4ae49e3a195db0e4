"""``headrace jobs compare|swap``: a version of a job beside the live one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from headrace.cli.options import (
    Home,
    JobName,
    Json,
    KeyColumns,
    column_names,
    open_home_bus,
    settings_of,
)
from headrace.cli.screen import show_json, show_line, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.coordinator.reprocessing.comparing import Compared

Other = Annotated[
    str,
    typer.Argument(metavar="OTHER", help="The version beside it.", show_default=False),
]


def compare(
    job: JobName,
    other: Other,
    key: KeyColumns = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=1000, help="Keys that differ to show.")
    ] = 5,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare what two jobs have sent: rows, keys, and where the last row of a key differs."""
    from headrace.clock import SystemClock
    from headrace.coordinator.reprocessing.comparing import compare as compared
    from headrace.coordinator.reprocessing.pairs import behind, kept_for_sinks, outputs_of, pairs_of

    settings, clock = settings_of(home), SystemClock()
    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    kept = kept_for_sinks(first, second)
    with open_home_bus(settings) as bus:
        found = [
            compared(bus, operator, pair, column_names(key), examples)
            for operator, pair in pairs_of(first, second).items()
        ]
    late = {job: behind(second, first), other: behind(first, second)}
    if as_json:
        outputs = [{**asdict(one), "is_same": one.is_same} for one in found]
        told = {"job": job, "other": other, "behind": late, "outputs": outputs, "kept": kept}
        typer.echo(msgspec.json.encode(told).decode())  # rows have times
    else:
        _show(found, late)
        for operator, stream in kept.items():
            show_line(f"{stream} is kept for {first.sinks[operator]}, and not compared")


def _show(found: Sequence[Compared], late: Mapping[str, Mapping[str, int]]) -> None:
    numbers = ("rows", "keys", "only there", "differ", "same")
    rows = []
    for one in found:
        rows += [
            [
                stream,
                f"{one.rows[at]:,}",
                f"{one.keys[at]:,}",
                f"{one.only[at]:,}",
                f"{one.different:,}",
                f"{one.same:,}",
            ]
            for at, stream in enumerate(one.streams)
        ]
    show_table(("stream", *numbers), rows, right=numbers)
    for name, inputs in late.items():
        for stream, count in inputs.items():
            typer.echo(f"{name} has not read {count:,} rows of {stream} that the other one has")
    for one in found:
        for example in one.examples:
            typer.echo()
            typer.echo(f"{one.operator}, {_text(example['key'])}")
            for stream, row in zip(one.streams, (example["first"], example["second"]), strict=True):
                typer.echo(f"  {stream}: {'nothing' if row is None else _text(row)}")


def _text(row: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items())


def swap(
    job: JobName,
    other: Other,
    now: Annotated[
        bool, typer.Option("--now", help="Although the other one has not caught up.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Let the aliases of a job's outputs stand for those of the other one, all in one step."""
    from headrace.clock import SystemClock
    from headrace.coordinator.reprocessing.pairs import outputs_of
    from headrace.coordinator.reprocessing.swapping import swap_outputs

    settings, clock = settings_of(home), SystemClock()
    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    with open_home_bus(settings) as bus:
        targets = swap_outputs(bus, first, second, now=now)
    if as_json:
        show_json({"job": job, "other": other, "aliases": targets})
    else:
        told = ", ".join(f"{alias} stands for {stream}" for alias, stream in targets.items())
        show_line(f"{told}; {job} goes on until it is stopped, and can be swapped back")
