"""The entry point: all commands under one name, and the one place where their errors end."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.cli import (
    alerts,
    bench,
    cluster,
    demo,
    dev,
    dlq,
    environment,
    init,
    state,
    submit,
    warehouse,
)
from headrace.cli.bus import commands as bus
from headrace.cli.failures import NO_READER, as_headrace_error, exit_code, record, show
from headrace.cli.jobs import commands as jobs
from headrace.cli.options import forget_home, home_of_failure
from headrace.cli.run import backfill, commands


class Commands(TyperGroup):
    """All commands; an error of any becomes a message, a log entry and an exit code."""

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
            show(error, record(error, home_of_failure()))
            raise typer.Exit(exit_code(error)) from None


app = typer.Typer(
    name="headrace",
    cls=Commands,
    help="Stateful stream processing in Python on Apache Spark.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(init.init)
app.command()(dev.dev)
app.command()(commands.run)
app.command()(backfill.backfill)
app.command()(submit.submit)
app.command()(dev.explain)
app.add_typer(bus.app)
app.add_typer(state.app)
app.add_typer(jobs.app)
app.add_typer(dlq.app)
app.add_typer(warehouse.app)
app.add_typer(alerts.app)
app.add_typer(environment.app)
app.add_typer(cluster.app)
app.command()(environment.doctor)
app.add_typer(bench.app)
app.command()(demo.demo)
app.command()(environment.version)

if __name__ == "__main__":
    app(prog_name="headrace")
