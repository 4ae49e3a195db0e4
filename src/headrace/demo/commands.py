"""``headrace demo``: the main job on real flights."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from headrace.cli.failures import INTERNAL, INTERRUPTED
from headrace.cli.options import Home, Json, settings_of
from headrace.cli.output import show_json

if TYPE_CHECKING:
    from headrace.demo.run import DemoResult


def demo(
    mode: Annotated[
        Literal["stream", "bounded"],
        typer.Option(help="Follow the flights as they are appended, or run over all of them."),
    ] = "stream",
    ui: Annotated[
        bool,
        typer.Option("--ui", help="Show a dashboard of the flights; it stays until Ctrl-C."),
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Run the job "delay radar" on a year of real flights; it ends by itself without --ui.

    Exits with 70 if the results differ from those of DuckDB.

    Guide: demo.

    For example:

        headrace demo --mode bounded
    """
    from headrace.demo.run import run_demo

    console = Console(stderr=as_json, highlight=False)
    result = run_demo(mode, settings_of(home).home, console=console, with_ui=ui)
    if as_json:
        show_json(_object(result))
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not all(comparison.is_equal for comparison in result.comparisons):
        raise typer.Exit(INTERNAL)


def _object(result: DemoResult) -> dict[str, Any]:
    facts = asdict(result)
    for name in ("home", "chart"):
        facts[name] = facts[name] and str(facts[name])
    equal = [{**asdict(one), "is_equal": one.is_equal} for one in result.comparisons]
    return {**facts, "comparisons": equal}
