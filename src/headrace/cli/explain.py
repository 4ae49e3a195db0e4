"""``headrace explain``: what a job's plan is, before it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Config, Home, Set, Target, open_home_bus, settings_of


def explain(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw it for Mermaid.")] = False,
    config: Config = None,
    overrides: Set = None,
    home: Home = None,
) -> None:
    """Print the levels, stages, tasks and stores of a job."""
    from headrace.cli.targets import find_job
    from headrace.config.durability import Durability
    from headrace.coordinator.deploy import make_plan
    from headrace.plan.diagram import mermaid as draw
    from headrace.plan.explain import explain as tell

    settings = settings_of(home, config, overrides)
    job = find_job(target)
    with open_home_bus(settings) as bus:
        plan = make_plan(job.build(), bus, settings, absent_ok=True)
    typer.echo((draw(plan) if mermaid else tell(plan)).rstrip("\n"))
    if not mermaid:
        durability = Durability.parse(settings.state.durability)
        typer.echo(f"\ndurability {durability}: {durability.promise}")
