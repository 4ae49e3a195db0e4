"""``headrace demo``: the main job on real flights."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headrace.cli.failures import INTERNAL, INTERRUPTED
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

    result = run_demo(mode, settings_of(home).home)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not all(comparison.is_equal for comparison in result.comparisons):
        raise typer.Exit(INTERNAL)
