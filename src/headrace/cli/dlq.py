"""``headrace dlq``: look at dead letters, and send their records back."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Home, Json, Where, open_home_bus, settings_of

app = typer.Typer(
    name="dlq", help="Look at dead letters, and send their records back.", no_args_is_help=True
)

Letters = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A job, or a stream of dead letters.", show_default=False),
]
Count = Annotated[
    int, typer.Option("-n", metavar="LETTERS", min=0, help="The last so many; 0: all.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be appended.")]


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """Count the dead letters by stream, operator and error."""
    from headrace.cli.dlq_text import counted, show_counts
    from headrace.coordinator.changes.redriving import dead_streams

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = [line for name in dead_streams(bus) for line in counted(bus, name)]
    show_counts(found, as_json=as_json)


@app.command()
def show(
    name: Letters,
    where: Where = None,
    letters: Count = 10,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print dead letters: the record, where it came from, and why it was refused."""
    from headrace.cli.dlq_text import show_letters
    from headrace.cli.state.lookup import matching
    from headrace.coordinator.changes.redriving import find_dead_stream, read_letters

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(find_dead_stream(bus, name))
        show_letters(matching(read_letters(stream), where), letters, as_json=as_json)


@app.command()
def redrive(
    name: Letters,
    where: Where = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Append the records of dead letters to the streams they came from, each once for ever.

    Ends with 1 when a stream did not take a record; the others were appended.
    """
    from headrace.cli.dlq_text import show_redriven
    from headrace.cli.failures import MISTAKE
    from headrace.cli.state.lookup import matching
    from headrace.coordinator.changes.redriving import find_dead_stream, read_letters
    from headrace.coordinator.changes.redriving import redrive as send_back

    with open_home_bus(settings_of(home)) as bus:
        found = find_dead_stream(bus, name)
        letters = matching(read_letters(bus.stream(found)), where)
        done = send_back(bus, found, letters, dry_run=dry_run)
    show_redriven(found, done, dry_run=dry_run, as_json=as_json)
    if done.refused:
        raise typer.Exit(MISTAKE)
