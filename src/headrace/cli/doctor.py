"""``headrace doctor``: looks at everything a run needs, and says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from headrace.cli.options import Config, Home, Json, Set, open_home_bus, settings_of

if TYPE_CHECKING:
    from headrace.cli.health import Finding
    from headrace.config import Settings

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    config: Config = None, overrides: Set = None, as_json: Json = False, home: Home = None
) -> None:
    """Check Java, Python, ports, disk, memory, settings, streams and jobs."""
    settings = settings_of(home, config, overrides)
    failed = 0
    for finding in _findings(settings):
        failed += finding.verdict == "fail"
        _show(finding, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def _findings(settings: Settings) -> Iterator[Finding]:
    from headrace.cli.health import Finding, check_bus, check_jobs, look_around
    from headrace.clock import SystemClock

    clock = SystemClock()
    yield from look_around(settings, clock)
    changed = [key for key, source in settings.sources.items() if source != "default"]
    told = f"{', '.join(changed)} differ from the defaults" if changed else "all as by default"
    yield Finding("settings", "ok", told)
    if not settings.home.exists():
        yield Finding("home", "ok", f"{settings.home} is not there yet; the first stream makes it")
        return
    with open_home_bus(settings) as bus:
        yield check_bus(settings, bus)
        yield check_jobs(settings, bus, clock)


def _show(finding: Finding, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    if as_json:
        advice = finding.advice if finding.verdict != "ok" else ""
        typer.echo(json.dumps({**finding._asdict(), "advice": advice}))
        return
    style = _STYLES[finding.verdict]
    line = Text.assemble(
        (f"{finding.verdict:<5}", style), (f"{finding.check:<10}", "bold"), finding.found
    )
    if finding.verdict != "ok":
        line.append(f"\n     → {finding.advice}", style="yellow")
    Console(highlight=False, soft_wrap=True).print(line)
