"""The entry point: all commands under one name, and the one place where their errors end.

A verb is imported when it is asked for, which spares most of the start. Those of plug-ins come from
entry points: see ``Commands``.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_group

from headrace import plugins
from headrace.cli.failures import NO_READER, as_headrace_error, exit_code, record, show
from headrace.cli.options import forget_home, home_of_failure, with_new_names
from headrace.cli.parameters import take_plain_values
from headrace.cli.supervised import report_failure
from headrace.errors import InvalidInputError

MARKUP: Literal["markdown"] = "markdown"
VERBS = {
    "init": "init:init",
    "dev": "dev:dev",
    "run": "run.commands:run",
    "backfill": "run.backfill:backfill",
    "submit": "submit:submit",
    "explain": "dev:explain",
    "doctor": "environment:doctor",
    "version": "environment:version",
    "bus": "bus.commands:app",
    "state": "state:app",
    "jobs": "jobs.commands:app",
    "dlq": "dlq:app",
    "alerts": "alerts:app",
    "config": "environment:app",
    "cluster": "cluster:app",
}
"""Where the verbs of the core are, below ``headrace.cli``, in the order of help."""


class Commands(TyperGroup):
    """All commands; an error of any becomes a message, a log entry and an exit code.

    Plug-ins are looked for by help, and for a verb that is none of the core's. They cannot replace
    a verb of the core.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs of the core, then those of plug-ins."""
        return [*VERBS, *(name for name in plugins.names(plugins.COMMANDS) if name not in VERBS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or ``None``."""
        if (own := VERBS.get(cmd_name)) is not None:
            module, _, name = own.partition(":")
            found = getattr(import_module(f"headrace.cli.{module}"), name)
            return _command(cmd_name, found)
        if cmd_name in plugins.names(plugins.COMMANDS):
            return _plugin(cmd_name)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is asked for; for a wrong one, suggest those of plug-ins too."""
        name = args[0]
        if name.startswith("-") or name in VERBS or name in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        near = ", ".join(map(repr, get_close_matches(name, self.list_commands(ctx))))
        hints = (f"Did you mean {near}?" if near else None, plugins.missing_own())
        return ctx.fail(" ".join(filter(None, (f"No such command {name!r}.", *hints))))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read a command line, in which options may have their former names."""
        return super().parse_args(ctx, with_new_names(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        forget_home()
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError:
            # What is still buffered must not fail again when the interpreter flushes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(NO_READER) from None
        except Exception as raised:  # noqa: BLE001 - the end of every command
            error = as_headrace_error(raised)
            show(error, details := record(error, home_of_failure()))
            report_failure(error, details)
            raise typer.Exit(exit_code(error)) from None


def _plugin(name: str) -> Any:
    """Return the command of a plug-in; one that cannot be loaded says so when it is run."""
    try:
        found = plugins.load(plugins.COMMANDS, name)
    except InvalidInputError as error:
        problem = error

        def found() -> None:
            raise problem

        found.__doc__ = f"Cannot be used: {problem.message}"
    return _command(name, found)


@cache
def _command(name: str, found: Any) -> Any:
    """Return the command of a function, or of the commands of a group."""
    host = typer.Typer(add_completion=False, rich_markup_mode=MARKUP)
    if isinstance(found, typer.Typer):
        host.add_typer(found, name=name)
    else:
        host.command(name)(found)
    return get_group(host).commands[name]


take_plain_values()
app = typer.Typer(
    name="headrace",
    cls=Commands,
    help="Stateful stream processing in Python on Apache Spark.",
    rich_markup_mode=MARKUP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:  # each command asks, and few want to know
        from headrace.cli.environment import version

        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of Headrace and its dependencies.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Stateful stream processing in Python on Apache Spark."""


def main() -> None:
    """Run the command of this process, and end the process.

    What an end does is done, but the interpreter is not taken apart, which takes a tenth of a
    second and more: there are no threads to wait for, what is registered is called, and what was
    printed goes out.
    """
    try:
        app(prog_name="headrace")
    except SystemExit as ended:
        others = (thread for thread in threading.enumerate() if not thread.daemon)
        if not isinstance(ended.code, int) or list(others) != [threading.main_thread()]:
            raise
        atexit._run_exitfuncs()  # noqa: SLF001 - as interpreters of multiprocessing end, too
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:  # nobody reads it: Python itself has a code for that
            raise ended from None
        os._exit(ended.code)


if __name__ == "__main__":
    main()
