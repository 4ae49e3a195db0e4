"""``jobs hot-keys``, and what ``jobs describe`` tells of alerts and of the heaviest keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.screen import show_json, show_table
from headrace.cli.words import time_text

if TYPE_CHECKING:
    from headrace.control.description import Description
    from headrace.control.hot_keys import HeavyKey, HeavyKeys

TITLES = ("rows, about", "share")
WORTH_TELLING = 0.01


def hot_keys(
    job: JobName,
    most: Annotated[
        int, typer.Option("--most", min=1, max=16, help="Keys of each partition_by.")
    ] = 10,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Name the keys with most rows lately, of each partition_by; of a sample of the rows."""
    from headrace.cli.options import open_home_bus
    from headrace.clock import SystemClock
    from headrace.control.samples import SampleLog
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.inspection.job_list import view_job

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        view_job(settings, job, bus, SystemClock())  # so that a job that is not there is told
    found = SampleLog(newest_of(settings, job)).kept_keys()
    if as_json:
        show_json({"job": job, "hot_keys": [_limited(one, most) for one in found]})
    elif not found:
        typer.echo(
            f"no keys of {job} are known: nothing went through a partition_by while headrace run "
            "ran it, or it has observe.hot_keys=false"
        )
    for number, one in enumerate([] if as_json else found):
        if number:
            typer.echo()
        _show(one, most)


def _limited(one: HeavyKeys, most: int) -> dict[str, Any]:
    told = asdict(one)
    return {**told, "keys": told["keys"][:most]}


def _show(one: HeavyKeys, most: int) -> None:
    typer.echo(f"{one.operator}, about {one.rows:,.0f} rows until {time_text(one.at_ms)}")
    rows = [[*map(str, key.key), f"{key.rows:,.0f}", f"{key.share:.1%}"] for key in one.keys[:most]]
    show_table((*one.columns, *TITLES), rows, right=TITLES)


def observed_facts(told: Description) -> list[tuple[str, str]]:
    """Return what fires, and the heaviest keys, as facts of a job; nothing where there is none."""
    facts = [
        ("alert", f"{one.rule} fires since {time_text(one.fired_ms)}: {one.text}")
        for one in told.alerts
        if one.fired_ms is not None
    ]
    for found in told.hot_keys:
        heavy = [key for key in found.keys if key.share >= WORTH_TELLING]
        if heavy:
            said = ", ".join(_key_text(found, key) for key in heavy)
            facts.append(("hot keys", f"{found.operator}: {said}"))
    return facts


def _key_text(one: HeavyKeys, key: HeavyKey) -> str:
    named = zip(one.columns, key.key, strict=True)
    return f"{' '.join(f'{name}={value}' for name, value in named)} {key.share:.1%}"
