"""``headrace serve``: serves keys of jobs, streams and daily tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.options import (
    Config,
    Home,
    Json,
    Set,
    column_names,
    open_home_bus,
    settings_of,
    stream_names,
)
from headrace.cli.output import count_text, show_json, show_line
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.serving.server import ServeOptions
    from headrace.serving.table import ServedTable

PORT = 6380


def serve(  # noqa: PLR0913, PLR0917 - one for each option
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB:STORE[=NAME]",
            help="Committed state of a job.",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM[=NAME]",
            help="Latest value of each key of a stream.",
            show_default=False,
            autocompletion=stream_names,
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE[=NAME]",
            help="Daily table of the warehouse.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...",
            help="Columns of the key, of streams and daily tables. Default: the stream's key.",
            show_default=False,
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN,...",
            help="Columns of the value. Default: all others.",
            show_default=False,
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="A value of one column is no map, but that column.")
    ] = False,
    days: Annotated[
        str,
        typer.Option(
            metavar="DAYS",
            help="Of a daily table: latest (complete) day, all, a day, or 2013-01-01..2013-01-31.",
        ),
    ] = "latest",
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Prefix of the keys of the only table. Default: its name and a colon.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        Literal["memory", "disk"],
        typer.Option(help="Where entries are; on disk there may be more than fit memory."),
    ] = "memory",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="Serve only these of the 512 key groups; other servers have the rest.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of Redis's protocol; 0: a free one.")
    ] = PORT,
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Also answer HTTP, on this port; 0: a free one.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that share the port.")
    ] = 1,
    password_file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File with the password of Redis's clients, which is the token of HTTP, too.",
            show_default=False,
        ),
    ] = None,
    max_clients: Annotated[int, typer.Option(min=1, help="Clients at the same time.")] = 1000,
    max_request: Annotated[int, typer.Option(min=64, help="Bytes of one request.")] = 16 << 20,
    slow: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="A client that takes no reply for so long is cut off."
        ),
    ] = 10.0,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Other processes of this user may listen on the same port."),
    ] = False,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Serve keys of a job's state, a stream or a daily table, over Redis's protocol and HTTP.

    Clients read with GET, MGET, EXISTS, TTL, SCAN, HGET, HMGET and HGETALL; nobody writes. A key is
    `NAME:KEY`, such as `counts:alice`; a value is MessagePack, as `hr.Remote` reads it, and HGETALL
    shows its columns. Of a job only what is committed is served, at most an epoch and a moment
    behind; whether its driver runs does not matter.

    Without a password, only clients on this host are served. Ends with Ctrl-C.

    Guide: serving.

    For example:

        headrace serve --job orders:totals --stream prices --http 8080
    """
    from headrace.clock import SystemClock
    from headrace.serving.server import TableServer, end_with_parent
    from headrace.serving.server import processes as several

    options = _options(
        [("job", job), ("stream", stream), ("table", table)],
        keys=column_names(key),
        values=column_names(value),
        bare=bare,
        days=days,
        namespace=namespace,
        on_disk=keep == "disk",
        groups=groups,
        address=(host, port, http),
        password_file=password_file,
        shared=shared,
        limits=(max_clients, slow, max_request),
    )
    settings = settings_of(home, config, overrides)
    if processes > 1:
        if http is not None:
            raise InvalidInputError(
                "--http is for one process; run another command with --http beside --processes"
            )
        with open_home_bus(settings) as bus:  # what is wrong is said once
            TableServer.check(options, settings, bus, SystemClock())
        words = _words(
            job=job, stream=stream, table=table, key=key, value=value, days=days,
            namespace=namespace, keep=keep, groups=groups, password_file=password_file,
            max_clients=max_clients, max_request=max_request, slow=slow, config=config,
            set=overrides, home=home,
        )  # fmt: skip
        words += [*(["--bare"] if bare else []), *(["--json"] if as_json else [])]
        several(processes, words, host, port)
        return
    end_with_parent()
    console = _Console(as_json=as_json)
    with open_home_bus(settings) as bus:
        server = TableServer(options, settings, bus, SystemClock(), console.show)
        url = None if server.place is None else server.place.url
        names = list(server.tables.by_name)
        console.begun(f"{host}:{server.port}", url, server.token_place, names)
        if server.clients < max_clients and not as_json:
            show_line(
                f"room for {count_text(server.clients, 'client')}, not {max_clients:,}: this "
                "process may open no more files; raise its hard limit (ulimit -H -n)"
            )
        server.serve()


def _options(  # noqa: PLR0913 - one for each option
    given: list[tuple[str, list[str] | None]],
    *,
    keys: tuple[str, ...],
    values: tuple[str, ...],
    bare: bool,
    days: str,
    namespace: str | None,
    on_disk: bool,
    groups: str | None,
    address: tuple[str, int, int | None],
    password_file: Path | None,
    shared: bool,
    limits: tuple[int, float, int],
) -> ServeOptions:
    from headrace.serving.listener import ClientLimits
    from headrace.serving.resp import RequestLimits
    from headrace.serving.server import Origin, ServeOptions

    most, slow_s, request_bytes = limits
    options = ServeOptions(
        tuple(Origin.of(kind, word) for kind, words in given for word in words or ()),
        *(keys, values, bare, days, namespace, on_disk),
        _groups(groups),
        *address,
        password_file,
        shared,
        ClientLimits(clients=most, slow_s=slow_s),
        RequestLimits(request_bytes=request_bytes),
    )
    options.check()
    return options


def _groups(text: str | None) -> tuple[int, int]:
    from headrace.serving.table import KEY_GROUPS

    if text is None:
        return 0, KEY_GROUPS
    first, dash, last = text.partition("-")
    if not (first.isdigit() and dash and last.isdigit()):
        raise InvalidInputError(f"--groups is {text!r}; expected FIRST-LAST, such as 0-255")
    return int(first), int(last) + 1


def _words(**options: object) -> list[str]:
    """Return options as words of a command line."""
    found = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found += [f"--{name.replace('_', '-')}", str(one)]
    return found


class _Console:
    """Says where a server answers, and what its tables show."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def begun(self, address: str, url: str | None, token_place: str, tables: list[str]) -> None:
        """Say where it answers."""
        if self._as_json:
            show_json({"address": address, "url": url, "tables": tables})
            return
        more = "" if url is None else f", and {url} with the token in {token_place}"
        show_line(f"serving {', '.join(tables)} at {address}{more}")

    def show(self, table: ServedTable) -> None:
        """Say that a table is loaded, or what is wrong."""
        if self._as_json:
            show_json(table.describe())
        elif table.problem:
            show_line(f"table {table.name} is not followed: {table.problem}")
        else:
            show_line(f"table {table.name}: {count_text(table.count(), 'key')}")
