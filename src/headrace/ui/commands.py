"""``headrace ui``: the web application of a home."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Config, Home, Json, Set, open_home_bus, settings_of
from headrace.cli.output import show_json, show_line


def ui(
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on. Default: ui.host.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port; 0: a free one. Default: ui.port.", show_default=False
        ),
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN,...",
            help="Streams that are kept. Default: explore.streams.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Serve the web application of a home: slice and dice of its streams, dashboards, SQL.

    It keeps the newest rows of the chosen streams as columns below the home, and prints the address
    to open, with a token. Ends with Ctrl-C.

    Guide: explore.

    For example:

        headrace ui --port 8517
    """
    from headrace.ui.server import UiServer

    flags = {
        "--host": ("ui.host", host),
        "--port": ("ui.port", port),
        "--streams": ("explore.streams", streams),
    }
    settings = settings_of(home, config, overrides, flags)
    with open_home_bus(settings) as bus:
        server = UiServer(bus, settings)
        if as_json:
            show_json({"url": server.url, "open": server.sign_in_url})
        else:
            show_line(f"open {server.sign_in_url}")
        server.serve()
