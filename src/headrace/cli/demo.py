"""``headrace demo``: the main job on real flights."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headrace.cli.failures import INTERRUPTED
from headrace.cli.options import Home, settings_of


def demo(
    mode: Annotated[
        Literal["stream", "bounded"],
        typer.Option(help="Follow the flights as they are appended, or run over all of them."),
    ] = "stream",
    home: Home = None,
) -> None:
    """Run the job "delay radar" on a year of real flights; ends by itself."""
    from headrace.demo.run import run_demo

    if run_demo(mode, settings_of(home).home).interrupted:
        raise typer.Exit(INTERRUPTED)
