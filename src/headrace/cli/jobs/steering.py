"""``jobs pause``, ``resume`` and ``top``: what asks a running driver by its API."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.jobs.asking import driver_api
from headrace.cli.options import Home, JobName, Json
from headrace.cli.screen import show_json, show_table
from headrace.cli.words import count_text, seconds_text, size_text, time_text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group

    from headrace.control.client import Client

EPOCHS = 10
ANSWER_S = 10.0
TITLES = ("epoch", "rows", "rows out", "took", "of it levels", "commit", "behind", "state")


def pause(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Let a running job end its epoch and begin none; its driver and its stores stay."""
    _steer(job, "pause", home, as_json=as_json)


def resume(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Let a paused job go on."""
    _steer(job, "resume", home, as_json=as_json)


def _steer(job: str, verb: str, home: Path | None, *, as_json: bool) -> None:
    status = driver_api(job, home, ANSWER_S).post(f"/v1/{verb}")["status"]
    if as_json:
        show_json({"job": job, "status": status})
    else:
        typer.echo(f"{job} is {status}")


def top(
    job: JobName,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look.")
    ] = 1.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Watch a running job: its last epochs, what they took, and how far it is behind.

    Without a terminal, or with --json, it looks once.
    """
    client = driver_api(job, home, ANSWER_S)
    if as_json:
        show_json({**client.get("/v1/job"), "epochs": client.get(f"/v1/epochs?last={EPOCHS}")})
    elif once or not sys.stdout.isatty():
        typer.echo(_headline(client.get("/v1/job")))
        typer.echo()
        rows = [_epoch_row(one) for one in client.get(f"/v1/epochs?last={EPOCHS}")]
        show_table(TITLES, rows, right=TITLES)
    else:
        _watch(client, every)


def _headline(info: dict[str, Any]) -> str:
    at = info["epoch_ms"]
    when = "no epoch yet" if at is None else f"epoch {info['epoch']:,} of {time_text(at)}"
    lag = "" if info["lag"] is None else f", {count_text(info['lag'], 'row')} behind"
    eta = "" if info["eta_s"] is None else f", {seconds_text(info['eta_s'])} left"
    return f"{info['job']} is {info['status']}: {when}{lag}{eta}"


def _epoch_row(one: dict[str, Any]) -> list[str]:
    steps = one["steps_ms"]
    levels = [f"{took:.0f}" for name, took in steps.items() if name.startswith("level")]
    return [
        f"{one['epoch']:,}",
        f"{one['rows']:,}",
        f"{one['output_rows']:,}",
        f"{one['took_ms']:.0f} ms",
        " + ".join(levels),
        f"{steps.get('commit', 0):.0f} ms",
        f"{one['lag']:,}",
        size_text(one["state_bytes"]),
    ]


def _watch(client: Client, every: float) -> None:
    """Draw it anew until Ctrl-C, or until the driver is gone."""
    from rich.live import Live

    from headrace.clock import SystemClock
    from headrace.errors import UnavailableError

    clock = SystemClock()
    with suppress(KeyboardInterrupt), Live(_drawn(client), auto_refresh=False, screen=True) as live:
        while True:
            clock.sleep(every)
            try:
                live.update(_drawn(client), refresh=True)
            except UnavailableError:
                break
    typer.echo(f"no longer watching {client.job}")


def _drawn(client: Client) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in TITLES:
        table.add_column(title, justify="right")
    for one in client.get(f"/v1/epochs?last={EPOCHS}"):
        table.add_row(*_epoch_row(one))
    return Group(Text(_headline(client.get("/v1/job")), style="bold"), Text(), table)
