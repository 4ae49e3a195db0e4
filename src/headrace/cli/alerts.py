"""``headrace alerts``: how the rules of a job stand, and whether the places answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.jobs.access import newest_epochs
from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.output import count_text, show_json, show_table, time_text

if TYPE_CHECKING:
    from headrace.control.alert_rules import AlertEvent, AlertState, RuleState
    from headrace.control.alerts import AlertReceiver

app = typer.Typer(name="alerts", help="Inspect and test alerts.", no_args_is_help=True)

SHOWN = 10


@app.callback()
def alerts() -> None:
    """Inspect and test alerts."""


@app.command()
def ls(job: JobName, as_json: Json = False, home: Home = None) -> None:
    """Show the states of a job's alert rules, and pending notifications.

    Each rule is quiet, true but not yet firing, or firing. Also shows the last notification of
    each, and notifications that wait for a destination. Reads the job's folder, with or without a
    driver.

    Guide: observation.

    For example:

        headrace alerts ls shop
    """
    import msgspec

    from headrace.clock import SystemClock
    from headrace.control.alert_rules import load_alerts

    clock = SystemClock()
    book = load_alerts(newest_epochs(settings_of(home), job), clock)
    if as_json:
        rules = [asdict(held.status(name)) for name, held in sorted(book.rules.items())]
        kept = msgspec.to_builtins(book)
        show_json(
            {"job": job, "rules": rules, "events": kept["events"], "waiting": kept["waiting"]}
        )
    elif not book.rules and not book.events:
        typer.echo(f"no rules of {job}: set alerts.rules, and run it")
    else:
        _show(book)


def _show(book: AlertState) -> None:
    rows = [[name, held.text, _standing(held)] for name, held in sorted(book.rules.items())]
    show_table(("rule", "fires on", "is"), rows)
    if book.events:
        typer.echo()
        events = [
            [time_text(one.at_ms, with_ms=False), one.rule, one.state, one.text]
            for one in book.events[-SHOWN:]
        ]
        show_table(("notified (UTC)", "rule", "state", "text"), events)
    for one in book.waiting:
        tried = f", tried {count_text(one.tries, 'time')}: {one.problem}" if one.tries else ""
        typer.echo(f"waiting for the {one.place}: {one.event.rule} ({one.event.state}){tried}")


def _standing(held: RuleState) -> str:
    if held.fired_ms is not None:
        return f"firing since {time_text(held.fired_ms, with_ms=False)}"
    if held.since_ms is not None:
        return f"true since {time_text(held.since_ms, with_ms=False)}"
    return "quiet"


@app.command(name="test")
def send_test(
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule", metavar="NAME", help="Only destinations of this rule.", show_default=False
        ),
    ] = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Send a test alert to every destination in the settings.

    Shows for each destination whether it accepted the test. Exits with 3 if one did not.

    Guide: observation.

    For example:

        headrace alerts test --config job.toml
    """
    from headrace.clock import SystemClock
    from headrace.control.alerts import alert_receivers
    from headrace.errors import HeadraceError, InvalidInputError, UnavailableError

    settings, clock = settings_of(home, config, overrides), SystemClock()
    rules = settings.alerts.rules
    names = [one.name for one in rules]
    if rule is not None and rule not in names:
        known = ", ".join(names) or "none"
        raise InvalidInputError(f"--rule: no rule {rule!r} in alerts.rules; found {known}")
    failed = []
    with open_home_bus(settings) as bus:
        found = alert_receivers(settings, bus, lambda line: typer.echo(line, err=as_json))
        own: list[Iterable[str]] = [one.to for one in rules if one.name == rule and one.to]
        for name in own[0] if own else found:
            event = _test_event(rule or "test", clock.new_id(), clock.now_ms())
            problem = None
            try:
                found[name].deliver(event, event.id)
            except HeadraceError as error:
                problem = error.message
                failed.append(f"{name}: {problem}")
            _notify(name, found[name], problem, as_json=as_json)
    if failed:
        raise UnavailableError(f"not every place took the test: {'; '.join(failed)}")


def _test_event(rule: str, name: str, now_ms: int) -> AlertEvent:
    from headrace.control.alert_rules import AlertEvent

    text = "a test of headrace alerts: nothing is wrong"
    return AlertEvent(name, 1, "test", rule, "test", "test", text, None, None, now_ms, now_ms)


def _notify(name: str, place: AlertReceiver, problem: str | None, *, as_json: bool) -> None:
    if as_json:
        show_json({"place": name, "where": place.shown, "took": problem is None, "why": problem})
    elif problem is None:
        typer.echo(f"{place.shown}: took it")
