"""``headrace doctor``: looks at everything a run needs, and says what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from headrace.cli.options import Config, Home, Json, Set, open_home_bus, settings_of
from headrace.cli.screen import show_json, show_wrapped

if TYPE_CHECKING:
    from headrace.cli.health import Finding
    from headrace.config import Settings

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    config: Config = None, overrides: Set = None, as_json: Json = False, home: Home = None
) -> None:
    """Check Java, Python, ports, disk, memory, settings, streams and jobs."""
    settings = settings_of(home, config, overrides)
    verdicts = Counter[str]()
    for finding in _findings(settings):
        verdicts[finding.verdict] += 1
        _show(finding, as_json=as_json)
    if not as_json:
        typer.echo(_sum(verdicts))
    if verdicts["fail"]:
        raise typer.Exit(1)


def _sum(verdicts: Counter[str]) -> str:
    if verdicts["fail"]:
        return f"\n{verdicts['fail']} of {verdicts.total()} fail: a run needs them"
    worth = f"; {verdicts['warn']} worth a look" if verdicts["warn"] else ""
    return f"\nall is there that a run needs{worth}"


def _findings(settings: Settings) -> Iterator[Finding]:
    from headrace.cli.health import Finding, check_bus, check_jobs, look_around
    from headrace.clock import SystemClock

    clock = SystemClock()
    yield from look_around(settings, clock)
    changed = [key for key, source in settings.sources.items() if source != "default"]
    told = f"{', '.join(changed)} differ from the defaults" if changed else "all as by default"
    yield Finding("settings", "ok", told)
    if not settings.home.exists():
        yield Finding("streams", "ok", "none yet; the first one makes the home")
        return
    with open_home_bus(settings) as bus:
        yield check_bus(settings, bus)
        yield check_jobs(settings, bus, clock)


def _show(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        advice = finding.advice if finding.verdict != "ok" else ""
        show_json({**finding._asdict(), "advice": advice})
        return
    style = _STYLES[finding.verdict]
    show_wrapped(f"{finding.verdict:<5}{finding.check:<10}", finding.found, style)
    if finding.verdict != "ok":
        show_wrapped("     → ", finding.advice, "yellow")
