"""``headrace sql``: SQL apps checked, explained, tried on files and queried.

Other verbs take them as jobs.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

import typer

from headrace.cli.options import Config, Home, Json, Set, Wait, open_home_bus, settings_of
from headrace.cli.output import count_text, show_json, show_line, show_table
from headrace.cli.run.commands import run
from headrace.cli.state import json_row
from headrace.errors import InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from headrace.bus import Bus
    from headrace.config import Settings
    from headrace.plan.stages import JobPlan
    from headrace.sql import SqlApp, SqlText
    from headrace.sql.query_tables import Windows
    from headrace.sql.versions import AppVersions

MAX_ROWS = 100_000
"""Of an answer; the API has the same limit."""

app = typer.Typer(
    name="sql",
    help="Check, try and query apps written in SQL; `headrace run FILE` runs them.",
    no_args_is_help=True,
)
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The app: a .sql file.", show_default=False)
]


@app.command()
def check(
    file: File,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Check an app: its statements, and that they fit the streams that exist.

    Nothing runs. The types of columns are those that `CREATE INPUT TABLE` gives, or else those of
    the stream. Prints the columns of each table and stream that the app makes.

    Guide: sql.

    For example:

        headrace sql check top.sql
    """
    found, plan = _planned(file, settings_of(home, config, overrides))
    rows = [
        (name, stream, column.name, str(column.type))
        for name, stream in found.tables.items()
        for binding in plan.outputs
        if binding.stream == stream
        for column in binding.schema
    ]
    if as_json:
        show_json(*(dict(zip(_TITLES, row, strict=True)) for row in rows))
        return
    show_table(_TITLES, [list(row) for row in rows], set())
    typer.echo(f"{file}: {count_text(len(found.tables), 'table')}, no mistake")


_TITLES = ("table", "stream", "column", "type")


def _planned(file: Path | SqlText, settings: Settings) -> tuple[SqlApp, JobPlan]:
    """Return an app and the plan of its job."""
    from headrace.coordinator.deployment import make_plan
    from headrace.sources.bounded_bus import preview_inputs
    from headrace.sql import load_app

    found = load_app(file)
    graph = found.job.build()
    with open_home_bus(settings) as bus:
        inputs = preview_inputs(graph, bus, settings)
        return found, make_plan(graph, inputs, settings, absent_ok=True)


@app.command()
def explain(
    file: File,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print what each statement of an app becomes: operators, their stages and what they store.

    A view and what is within a query have the operators of their own statement. The plan is that
    of `headrace explain FILE`, which prints it by stages.

    Guide: sql.

    For example:

        headrace sql explain top.sql
    """
    found, plan = _planned(file, settings_of(home, config, overrides))
    for line, statement in found.statements.lines():
        own = [
            (stage, operator)
            for stage in plan.stages
            for operator in stage.operators
            if operator.site.line == line
        ]
        if as_json:
            made = [
                {
                    "name": operator.name,
                    "stage": stage.index,
                    "does": operator.describe(),
                    "stores": [spec.name for spec in operator.state_stores],
                }
                for stage, operator in own
            ]
            show_json({"line": line, "statement": statement, "operators": made})
            continue
        typer.echo(f"{file}:{line}: {statement}")
        for stage, operator in own:
            typer.echo(f"  {operator.name} (stage {stage.index})")
            for row in (*operator.describe(), *operator.state_rows(stage)):
                typer.echo(f"    {row}")


@app.command(name="run")
@wraps(run, assigned=("__annotations__",))
def run_app(**given: Any) -> None:
    """Run an app until it is stopped: the same as `headrace run FILE`, with the same options.

    Guide: sql.

    For example:

        headrace sql run top.sql --standalone
    """
    run(**given)


@app.command(name="test")
def try_app(
    file: File,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="With `input/TABLE.jsonl` and `expected/TABLE.jsonl`. Default: the file's name, "
            "with `.test` in the place of `.sql`.",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write what was found over what was expected.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an app over rows of files, and compare its tables with what is expected.

    Each line of `input/TABLE.jsonl` is a row of that input table, in order. The app runs to the
    end of all rows in this process, without a bus of its own. Exits with 1 if a table has other
    rows than `expected/TABLE.jsonl`; their order does not matter.

    Guide: sql.

    For example:

        headrace sql test top.sql
    """
    from headrace.sql import load_app
    from headrace.sql.trial import run_trial

    differences = run_trial(
        load_app(file, is_trial=True), folder or file.with_suffix(".test"), update=update
    )
    for one in differences:
        if as_json:
            show_json(asdict(one))
        else:
            typer.echo(f"{one.table}: {one}")
    if any(one.is_wrong for one in differences):
        raise typer.Exit(1)


Which = Annotated[
    Literal["past", "current", "all"],
    typer.Option(
        "--windows",
        help="Those that were sent, those that are open, or both; unless `past`, the column "
        "`window_is_open` says which.",
    ),
]


@app.command()
def deploy(  # noqa: PLR0913, PLR0917 - one for each option
    file: File,
    is_sure: Annotated[
        bool, typer.Option("--yes", help="Deploy it; without it, only the review is printed.")
    ] = False,
    rollback: Annotated[
        bool,
        typer.Option(
            "--rollback", help="Go back to the version before the last one; writes it to FILE."
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="COMMAND",
            help="Stop the job if it runs, and run the version as COMMAND says, such as "
            "'run --standalone' or 'submit --master yarn'.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = 60.0,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Review how an app differs from its last version, and make it the next one.

    The review has operators that are added, removed or changed, and what the state of the job does
    not fit; such a version is refused. With `--yes`, a job that has state is saved under
    `before-vN`, and the text is stored as version N. With `--start`, the job is stopped before it
    is saved, and this process then becomes the command that runs the file; without it nothing is
    stopped or started.

    `--rollback` writes the version before the last one to the file. It prints the commands that
    let it begin from the savepoint; with `--yes --start`, it does what they do, and the version
    becomes the next one.

    Guide: sql, savepoints.

    For example:

        headrace sql deploy top.sql --yes --start "run --standalone"
    """
    from headrace.sql import load_app
    from headrace.sql.versions import AppVersions

    settings = settings_of(home, config, overrides)
    own = _Options(wait, config, tuple(overrides or ()), home, as_json)
    command = _checked_start(start, is_sure=is_sure, rollback=rollback)
    if rollback:
        versions = AppVersions(settings, load_app(file).job.name)
        _roll_back(file, versions, settings, own, command, is_sure=is_sure)
        return
    found, plan = _planned(file, settings)
    job = found.job.name
    versions = AppVersions(settings, job)
    review = versions.review(plan, _former(file, versions, settings))
    facts = {"job": job, **asdict(review), "is_deployed": False, "savepoint": None}
    if is_sure and review.state:
        raise InvalidInputError(
            f"version {review.version} of app {job!r} does not fit its state: "
            f"{'; '.join(review.state)}"
        )
    if not as_json:
        show_line(f"app {job}, version {review.version}:")
        typer.echo("\n".join(review.operators or ["no operator differs"]))
        fits = "its state fits" if review.has_state else "it has no state yet"
        typer.echo("\n".join(review.state or [fits]))
    if is_sure:
        if review.has_state:
            facts["savepoint"] = _saved(job, review.version, settings, own, stops=bool(command))
        versions.add(found.statements.source.text)
        facts["is_deployed"] = True
    if as_json:
        show_json(facts)
    elif not is_sure:
        show_line("nothing was changed; deploy it with --yes")
    elif command:
        show_line(f"deployed; starting: headrace {command[0]} {file} {' '.join(command[1:])}")
    else:
        show_line(f"deployed; run it with: headrace run {file}")
    if command:
        _become(file, command, own)


@dataclass(frozen=True)
class _Options:
    """Those of a command that others are given, too."""

    wait: float
    config: Path | None
    overrides: tuple[str, ...]
    home: Path | None
    as_json: bool

    def words(self) -> list[str]:
        """Return them as words, without how long to wait."""
        found = [word for one in self.overrides for word in ("--set", one)]
        found += [] if self.config is None else ["--config", str(self.config)]
        found += [] if self.home is None else ["--home", str(self.home)]
        return [*found, *(["--json"] if self.as_json else [])]


def _checked_start(start: str | None, *, is_sure: bool, rollback: bool) -> list[str]:
    """Return the words of ``--start``; none: nothing is started."""
    words = [] if start is None else shlex.split(start)
    if start is None:
        return words
    if not words or words[0] not in ("run", "submit"):
        raise InvalidInputError(
            f"--start is {start!r}; expected 'run' or 'submit' with their options, such as "
            "'run --standalone'"
        )
    if not is_sure:
        raise InvalidInputError("--start needs --yes; without it only the review is printed")
    if rollback and words[0] == "submit":
        raise InvalidInputError("--rollback begins from a savepoint, which 'run' does: --start run")
    return words


def _former(file: Path, versions: AppVersions, settings: Settings) -> JobPlan | None:
    """Return the plan of the last version, with functions from where the file is."""
    from headrace.sql import SqlText

    numbers = versions.numbers()
    if not numbers:
        return None
    path = versions.path(numbers[-1])
    try:
        return _planned(SqlText(path.read_text("utf-8"), str(file)), settings)[1]
    except InvalidInputError as error:
        show_line(f"version {numbers[-1]} cannot be compared: {error.message.splitlines()[0]}")
        return None


def _saved(job: str, version: int, settings: Settings, own: _Options, *, stops: bool) -> str:
    """Save what a job was before a version, stopped first if it is to be; return the name."""
    from headrace.cli.jobs.stop import end_drivers, save

    if stops and end_drivers(settings, job, own.wait) and not own.as_json:
        show_line(f"job {job}: stopped")
    save(job, f"before-v{version}", None, own.wait, own.home)
    return f"before-v{version}"


def _roll_back(
    file: Path,
    versions: AppVersions,
    settings: Settings,
    own: _Options,
    command: list[str],
    *,
    is_sure: bool,
) -> None:
    from headrace.cli.jobs.reset import reset
    from headrace.files import Files

    job, version = versions.job, versions.before()
    name, data = f"before-v{version + 1}", versions.path(version).read_bytes()
    if is_sure and command:
        saved = None
        if versions.has_state():
            saved = _saved(job, versions.next_number(), settings, own, stops=True)
            reset(job, "earliest", None, own.config, list(own.overrides), own.as_json, own.home)
        Files().replace(file, data)
        number = versions.add(data.decode())
        facts = {"job": job, "version": version, "is_deployed": True, "as": number}
        if own.as_json:
            show_json({**facts, "file": str(file), "savepoint": saved, "from": name})
        else:
            show_line(f"{file}: version {version} of app {job}, as version {number}")
        begins = ["--from-savepoint", name] if versions.has_savepoint(name) else []
        _become(file, [*command, *begins], own)
        return
    Files().replace(file, data)
    steps = [
        f"headrace jobs stop {job}",
        f"headrace jobs reset {job}",
        f"headrace run {file} --from-savepoint {name}",
    ]
    if own.as_json:
        show_json({"job": job, "version": version, "file": str(file), "next": steps})
    else:
        show_line(f"{file}: version {version} of app {job}; to go back to its state:")
        typer.echo("\n".join(f"  {step}" for step in steps))


def _become(file: Path, command: list[str], own: _Options) -> None:
    """Let this process be the command that runs the file: signals reach it as they should."""
    sys.stdout.flush()
    words = [sys.executable, "-m", "headrace.cli.main", command[0], str(file), *command[1:]]
    os.execv(sys.executable, [*words, *own.words()])


@app.command()
def serve(
    file: File,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Answer queries over the tables of an app by HTTP, without running it.

    Any number of such processes can run, on any host that has the storage: each answers `/v1/sql`
    by what is committed, whether a driver runs or not. Address, port and token are those of
    `control.host`, `control.port` and `control.token_file`. `headrace sql query` asks one of them
    where no driver answers. Ends with Ctrl-C.

    Guide: sql.

    For example:

        headrace sql serve top.sql --set control.port=8081
    """
    from headrace.sql import load_app
    from headrace.sql.server import TableServer

    found, settings = load_app(file), settings_of(home, config, overrides)
    with open_home_bus(settings) as bus:
        server = TableServer(found, bus, settings)
        if as_json:
            show_json({"job": found.job.name, "url": server.place.url})
        else:
            show_line(f"app {found.job.name}: queries are answered at {server.place.url}/v1/sql")
        server.serve()


@app.command()
def query(
    file: File,
    text: Annotated[str, typer.Argument(metavar="QUERY", help="SELECT over tables of the app.")],
    windows: Which = "past",
    urls: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="A server to ask, such as http://host:8081; several: the first that answers. "
            "HEADRACE_TOKEN has the token.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Query the tables of an app, as of its last committed epoch.

    The query is one SELECT in DuckDB's SQL. Where the app runs, its driver answers; else a process
    of `headrace sql serve`, or the files of the home do, with the same rows.

    Guide: sql.

    For example:

        headrace sql query top.sql "select event from top_events_5min order by score desc limit 3"
    """
    from headrace.sql import load_app

    found = load_app(file)
    settings = settings_of(home, config, overrides)
    rows = _asked(settings, found.job.name, text, windows, urls or [])
    if rows is None:
        with open_home_bus(settings) as bus:
            rows = _read(found, bus, settings, text, windows)
    _show(rows, as_json=as_json)


def _asked(
    settings: Settings, job: str, text: str, windows: Windows, urls: Sequence[str]
) -> pa.Table | None:
    """Return what the driver of an app or one of its servers answers; ``None``: go by files."""
    import pyarrow as pa

    from headrace.control.client import reachable

    asked = {"query": text, "windows": windows, "format": "arrow", "limit": MAX_ROWS}
    path, data = f"/v1/sql?{urlencode(asked)}", None
    if urls:
        from headrace.sql.server import read_any

        data = read_any(urls, path)
    elif (client := reachable(settings, job)) is not None:
        with suppress(UnavailableError):  # it goes, or is of an older version
            data = client.read(path)
    if data is None:
        data = _served(settings, job, path)
    if data is None:
        return None
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _served(settings: Settings, job: str, path: str) -> bytes | None:
    if not (Path(settings.home) / "sql" / job / "servers").is_dir():
        return None
    from headrace.sql.server import answered

    return answered(settings, job, path)


def _read(found: SqlApp, bus: Bus, settings: Settings, text: str, windows: Windows) -> pa.Table:
    """Return the answer to a query, by what the job has committed to files."""
    from headrace.sql.query_engine import QueryEngine, QueryLimits, parse
    from headrace.sql.query_tables import tables_of_files

    tables = tables_of_files(found.job, found.tables, bus, settings)
    engine = QueryEngine(QueryLimits(rows=MAX_ROWS))
    return engine.answer(tables, parse(text, tables, windows), windows).rows


def _show(rows: pa.Table, *, as_json: bool) -> None:
    if as_json:
        for row in rows.to_pylist():
            typer.echo(json_row(row))
        return
    if not rows.num_rows:
        typer.echo("no rows")
        return
    right = {
        field.name
        for field in rows.schema
        if str(field.type).startswith(("int", "double", "float"))
    }
    shown = [[_cell(value) for value in row.values()] for row in rows.to_pylist()]
    show_table(tuple(rows.schema.names), shown, right)


def _cell(value: Any) -> str:
    from datetime import datetime

    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    return str(value)
