"""``headrace config``: what settings there are, and where their values come from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.completions import setting_names
from headrace.cli.options import Config, Home, Json, Set, settings_of
from headrace.cli.screen import show_json, show_table

if TYPE_CHECKING:
    from headrace.config import Explanation

app = typer.Typer(name="config", help="Look at settings.", no_args_is_help=True)


@app.command()
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Name of a setting, or Samza's name for it.",
            show_default=False,
            autocompletion=setting_names,
        ),
    ],
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Say what a setting is, its value, and where that comes from."""
    found = settings_of(home, config, overrides).explain(key)
    if as_json:
        show_json(asdict(found))
    else:
        typer.echo(str(found))


@app.command()
def ls(
    config: Config = None,
    overrides: Set = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those that are not as by default.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List all settings with their values and where these come from."""
    from headrace.config import setting_keys

    settings = settings_of(home, config, overrides)
    keys = [key for key in setting_keys() if key != "spark.conf"]
    keys += [f"spark.conf.{name}" for name in settings.spark.conf]
    found = [settings.explain(key) for key in keys]
    if changed:
        found = [one for one in found if one.source != "default"]
    if as_json:
        show_json(*map(asdict, found))
    elif found:
        titles = ("setting", "value", "from", "default")
        show_table(titles, [_row(one) for one in found], spare=("default", "from"))
    else:
        typer.echo("all settings are as by default")


def _row(found: Explanation) -> list[str]:
    return [found.key, found.value, found.source, found.default]
