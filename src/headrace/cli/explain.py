"""``headrace explain``: what a job's plan is, before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Config, Home, Json, Set, Target, open_home_bus, settings_of
from headrace.cli.screen import show_json, show_wrapped, terminal_width

WIDTH = 96


def explain(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw it for Mermaid.")] = False,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print the levels, stages, tasks and stores of a job."""
    from headrace.cli.targets import find_job
    from headrace.config.durability import Durability
    from headrace.coordinator.deploy import make_plan
    from headrace.plan.diagram import mermaid as draw
    from headrace.plan.explain import explain as tell
    from headrace.plan.objects import plan_object
    from headrace.sources.frames import with_frames
    from headrace.sources.sourced import look_up

    if mermaid and as_json:
        raise typer.BadParameter("give either --mermaid or --json")
    settings = settings_of(home, config, overrides)
    job = find_job(target)
    with open_home_bus(settings) as bus:
        graph = with_frames(job.build(), bus, settings)
        plan = make_plan(graph, look_up(graph, bus, settings), settings, absent_ok=True)
    durability = Durability.parse(settings.state.durability)
    if as_json:
        promise = {"durability": str(durability), "promise": durability.promise}
        show_json({**plan_object(plan), **promise})
    elif mermaid:
        typer.echo(draw(plan).rstrip("\n"))
    else:
        typer.echo(tell(plan, min(WIDTH, terminal_width())))
        show_wrapped(f"durability {durability}: ", durability.promise)
