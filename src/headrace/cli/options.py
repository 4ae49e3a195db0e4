"""Options that several commands share, the settings that they make, and shell completion.

Loads nothing heavy: settings and the bus are opened when a command asks for them.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.bus import Bus
    from headrace.config import Settings


def _home_of_words() -> Path:
    named = os.environ.get("HEADRACE_HOME")
    return Path(named).expanduser() if named else home_of_failure()


def _folders(parent: Path, begin: str) -> list[str]:
    try:
        return sorted(p.name for p in parent.iterdir() if p.is_dir() and p.name.startswith(begin))
    except OSError:
        return []


def stream_names(incomplete: str) -> list[str]:
    """Return the streams of the home in use that begin so."""
    return _folders(_home_of_words() / "bus" / "streams", incomplete)


def job_names(incomplete: str) -> list[str]:
    """Return the jobs of the home in use that begin so."""
    return _folders(_home_of_words() / "jobs", incomplete)


def setting_names(incomplete: str) -> list[str]:
    """Return the settings that begin so."""
    from headrace.config import setting_keys

    return [key for key in setting_keys() if key.startswith(incomplete)]


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        file_okay=False,
        help="Folder of bus, jobs and state. Default: HEADRACE_HOME, or else home of "
        "headrace.toml, or else .headrace.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File of settings in TOML, or Samza's .properties. Default: the nearest "
        "headrace.toml, in the working directory or above.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting, such as job.tasks=8.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for each epoch.")]
Bounded = Annotated[
    bool,
    typer.Option("--bounded", help="Stop at the current ends of the inputs. Same as job.bounded."),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master, such as `local[2]`. Same as spark.master.",
        show_default=False,
    ),
]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="Run it in this process, without Spark.")
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for a running driver."),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:JOB",
        help="Module or path of a .py file, and the job in it.",
        show_default=False,
    ),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of the job.", show_default=False, autocompletion=job_names
    ),
]
StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the stream.", show_default=False, autocompletion=stream_names
    ),
]

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="SQL condition on the columns, such as \"n > 3 and shop = 'x'\".",
        show_default=False,
    ),
]
Partition = Annotated[
    int | None,
    typer.Option("--partition", min=0, help="Only this partition.", show_default=False),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(
        "--time", metavar="COLUMN", help="Event-time column of a new stream.", show_default=False
    ),
]
KeyColumns = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COLUMN,...",
        help="Columns that determine the partition, in a new stream.",
        show_default=False,
    ),
]
RowKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COLUMN,...",
        help="Columns that identify a row. Default: the stream's key and the window.",
        show_default=False,
    ),
]

RENAMED: dict[str, dict[str, str]] = {
    "run": {"--as": "--name", "--apart": "--output-suffix"},
    "backfill": {"--as": "--name"},
    "submit": {"--env": "--environment", "--without": "--exclude"},
    "bus configure": {"--hold": "--hold-for"},
    "state get": {"--under": "--message-key"},
    "state scan": {"--low": "--from", "--high": "--before"},
    "state export": {"--to": "--out"},
    "jobs hot-keys": {"--most": "--limit"},
    "jobs savepoint": {"--to": "--dir"},
    "jobs savepoints": {"--in": "--dir"},
    "jobs swap": {"--now": "--force"},
    "jobs merge": {"--by": "--merge-job"},
}
"""Options by command whose names have changed: the old name, and the new one."""

_home: ContextVar[Path | None] = ContextVar("home of the running command", default=None)


def with_new_names(args: Sequence[str]) -> list[str]:
    """Return the words of a command line with options as they are called now.

    An old name works for a release, and is followed by a line on stderr.

    Args:
        args: after ``headrace``.
    """
    named = next((words for words in (" ".join(args[:2]), *args[:1]) if words in RENAMED), None)
    if named is None:
        return [*args]
    renamed = RENAMED[named]
    given: list[str] = []
    for place, word in enumerate(args):
        if word == "--":
            return [*given, *args[place:]]
        option, equals, value = word.partition("=")
        if option in renamed:
            typer.echo(
                f"warning: {option} of headrace {named} is {renamed[option]} now; the old name "
                "works for one more release",
                err=True,
            )
        given.append(renamed.get(option, option) + equals + value)
    return given


def column_names(words: str | None) -> tuple[str, ...]:
    """Return the columns that ``--key`` names."""
    return tuple(part.strip() for part in words.split(",")) if words else ()


def settings_of(
    home: Path | None = None,
    config: Path | None = None,
    overrides: list[str] | None = None,
    flags: Mapping[str, tuple[str, object]] | None = None,
) -> Settings:
    """Load the settings of a command.

    Args:
        home: ``--home``.
        config: ``--config``; ``None``: the nearest ``headrace.toml``, if there is one.
        overrides: ``--set``, each ``key=value``.
        flags: settings that have an option of their own, by that option: the setting and its
            value; ``None`` means not given. They win over ``--set``.

    Raises:
        InvalidInputError: an unknown setting or an unfit value, with its place.
    """
    from headrace.config import load_settings, project_file

    _home.set(home and home.absolute())
    flags = {"--home": ("home", home), **(flags or {})}
    given = {
        option: (key, str(value)) for option, (key, value) in flags.items() if value is not None
    }
    settings = load_settings(config, overrides or (), project=project_file(), flags=given)
    _home.set(settings.home)
    return settings


def forget_home() -> None:
    """Begin a command: what the last one in this process learned no longer holds."""
    _home.set(None)


def home_of_failure() -> Path:
    """Return where a failed command leaves its details, also when its settings were wrong."""
    from headrace.config import load_settings, project_file
    from headrace.errors import HeadraceError

    try:
        return _home.get() or load_settings(project=project_file()).home
    except HeadraceError:
        return Path(".headrace").absolute()


def open_home_bus(settings: Settings) -> Bus:
    """Open the bus of a home with the ``bus`` settings."""
    from headrace.bus import BusOptions, open_bus

    return open_bus(settings.bus_dir, BusOptions.of(settings.bus))
