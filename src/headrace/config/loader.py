"""Where the values of settings come from, each value knowing its place.

Later places win: defaults, a TOML file, the environment (``HEADRACE__SECTION__KEY``, and
``HEADRACE_HOME``), ``--set section.key=value``, an option of a command that stands for a setting.
Unknown names and unfit values are refused. The file of a command is the one that it names, or else
the nearest ``headrace.toml``.
Samza's names stand for the settings that ``samza`` lists.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace import redaction
from headrace.config import samza
from headrace.config.fields import UnfitError, fit
from headrace.config.inputs import (
    FIELDS,
    FRAME,
    INPUTS,
    OPTIONS,
    read_inputs,
    split_key,
    without_secret,
)
from headrace.config.sections import (
    OUTPUT_FIELDS,
    OUTPUTS,
    read_outputs,
    spark_text,
    split_output_key,
)
from headrace.config.settings import (
    LEAVES,
    OPEN_KEY,
    SECTIONS,
    TABLES,
    Settings,
    type_name,
    unknown_setting,
)
from headrace.errors import InvalidInputError
from headrace.redaction import remember_setting

_RENAMED = {"job.host_wait_s": "placement.wait_s"}
_NO_SETTINGS = ("HEADRACE_HOME", "HEADRACE_STATE_DIR")
_DOUBLED = {f"HEADRACE__{key.replace('.', '__').upper()}" for key in LEAVES if "." in key}
_SHOWN = 80
_ENVIRONMENT = "environment "
ON_COMMAND = "--set "
"""What the place of a value begins with that was given on the command."""
PROJECT_FILE = "headrace.toml"
_FOLDERS = ("home", "state.dir", "warehouse.dir")
_SINGLE = {name.replace("__", "_"): name for name in _DOUBLED}


@dataclass(frozen=True)
class _SourcedValue:
    value: Any
    source: str
    is_text: bool


def project_file() -> Path | None:
    """Return the ``headrace.toml`` of the working directory, or of the nearest folder above."""
    begin = Path.cwd()
    found = (place / PROJECT_FILE for place in (begin, *begin.parents))
    return next((file for file in found if file.is_file()), None)


def load_settings(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    project: Path | None = None,
    flags: Mapping[str, tuple[str, str]] | None = None,
) -> Settings:
    """Read settings from their places.

    Args:
        file: TOML, one table for each section; or ``.properties``, as Samza has them.
        overrides: ``section.key=value``, as given to ``--set``; the last of a key wins.
        environ: the environment; ``None`` takes the process's own.
        project: the file to read where ``file`` is ``None``, such as that of ``project_file()``.
            Its relative folders (``home``, ``state.dir``, ``warehouse.dir``) start at its own.
        flags: settings by the option of a command that stands for them: key and value.

    Raises:
        InvalidInputError: a missing file, an unknown name or an unfit value, with its place.
    """
    given: dict[str, _SourcedValue] = {}
    environ = os.environ if environ is None else environ
    chosen = _from_file(file) if file is not None else _from_project(project)
    own = [
        (key, _SourcedValue(value, option, is_text=True))
        for option, (key, value) in (flags or {}).items()
    ]
    places = (chosen, _from_environment(environ), _from_overrides(overrides), own)
    pairs = _without_lone_options(
        [_translated(key, entry) for place in places for key, entry in place]
    )
    _refuse_elsewhere(pairs)
    for key, entry in pairs:
        part = split_key(key)
        remember_setting(part[1] if part else key, entry.value)
    for key, entry in pairs:
        _refuse_unknown(key, entry)
        given[key] = entry
    tree: dict[str, Any] = {}
    for key, entry in given.items():
        section, _, name = key.partition(".")
        if (part := split_key(key)) is not None:
            tree.setdefault(INPUTS, {}).setdefault(part[0], {})[part[1]] = entry.value
        elif (part := split_output_key(key)) is not None:
            tree.setdefault(OUTPUTS, {}).setdefault(part[0], {})[part[1]] = entry.value
        elif key.startswith(OPEN_KEY):
            conf = tree.setdefault("spark", {}).setdefault("conf", {})
            conf[key.removeprefix(OPEN_KEY)] = _checked(key, entry)
        elif name:
            tree.setdefault(section, {})[name] = _checked(key, entry)
        else:
            tree[key] = _checked(key, entry)
    if INPUTS in tree:
        tree[INPUTS] = read_inputs(tree[INPUTS])
    if OUTPUTS in tree:
        tree[OUTPUTS] = read_outputs(tree[OUTPUTS])
    try:
        settings = Settings.of(tree)
    except UnfitError as error:
        raise InvalidInputError(error.reason) from None
    return replace(settings, sources={key: entry.source for key, entry in given.items()})


def _translated(key: str, entry: _SourcedValue) -> tuple[str, _SourcedValue]:
    """Return what a name of Samza's means, which its values say in text as well."""
    if (now := _RENAMED.get(key)) is not None:
        return now, _SourcedValue(entry.value, f"{entry.source} ({key})", entry.is_text)
    meant = None if key in LEAVES else samza.alias_of(key)
    if meant is None:
        return key, entry
    is_text = entry.is_text or isinstance(entry.value, str)
    value = entry.value
    if meant.read is not str:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        value, is_text = meant.read(text), True
    return meant.setting, _SourcedValue(value, f"{entry.source} ({key})", is_text)


def _without_lone_options(
    pairs: Sequence[tuple[str, _SourcedValue]],
) -> list[tuple[str, _SourcedValue]]:
    """Leave out options of DataFrames from the environment of which nothing else is said.

    A password is there for all commands, and what it belongs to in a file of some of them.
    """
    parts = [split_key(key) for key, _ in pairs]
    lone = [
        part is not None and part[1].startswith(OPTIONS) and entry.source.startswith(_ENVIRONMENT)
        for part, (_, entry) in zip(parts, pairs, strict=True)
    ]
    said = {
        part[0]
        for part, is_lone in zip(parts, lone, strict=True)
        if part is not None and not is_lone and part[1].startswith(f"{FRAME}.")
    }
    return [
        pair
        for part, is_lone, pair in zip(parts, lone, pairs, strict=True)
        if not is_lone or (part is not None and part[0] in said)
    ]


def _refuse_elsewhere(pairs: Sequence[tuple[str, _SourcedValue]]) -> None:
    """Refuse all that is no setting here but has another place, at once."""
    found = [
        f"{key} ({entry.source}): {instead}"
        for key, entry in pairs
        if key not in LEAVES and (instead := samza.replacement_of(key)) is not None
    ]
    if found:
        lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(found, 1))
        raise InvalidInputError(f"found properties of Samza that are no settings here:{lines}")


def _refuse_unknown(key: str, entry: _SourcedValue) -> None:
    if key in SECTIONS:
        value = redaction.shown(key, repr(entry.value))
        found = "" if key in TABLES else f"found {value}, "  # which may hold a password
        raise InvalidInputError(
            f"setting {key} from {entry.source}: {found}expected a table of settings",
            setting=key,
        )
    if (part := split_key(key)) is not None:
        if part[1] not in FIELDS and not part[1].startswith(OPTIONS):
            raise InvalidInputError(
                f"{entry.source}: unknown setting {key}; of an input there are {', '.join(FIELDS)}",
                setting=key,
            )
        if part[1] == OPTIONS.rstrip(".") and not isinstance(entry.value, dict):
            raise InvalidInputError(
                f"setting {key} from {entry.source}: expected a table; give each option by itself: "
                f"{key}.NAME=VALUE",
                setting=key,
            )
    elif (part := split_output_key(key)) is not None:
        if part[1] not in OUTPUT_FIELDS:
            raise InvalidInputError(
                f"{entry.source}: unknown setting {key}; of an output there is "
                f"{', '.join(OUTPUT_FIELDS)}",
                setting=key,
            )
    elif key not in LEAVES and not key.startswith(OPEN_KEY):
        unknown = unknown_setting(key)
        raise InvalidInputError(f"{entry.source}: {unknown.message}", **unknown.fields)


def _checked(key: str, entry: _SourcedValue) -> Any:
    """Return a value as its setting's type; text is read, TOML must have the type already."""
    info = None if key.startswith(OPEN_KEY) else LEAVES[key]
    kind = str if info is None else info.kind
    value = entry.value
    if entry.is_text and value == "none" and type_name(kind).endswith(", or none"):
        return None
    try:
        if info is None:
            return fit(kind, spark_text(value))
        return info.fit(value, is_text=entry.is_text)
    except UnfitError as error:
        # A reason that names the type says it again, and text is already text.
        reason = "" if error.reason.startswith("expected ") else error.reason
        is_text = isinstance(value, str) and type_name(kind).startswith("text")
        wanted = "" if reason and is_text else f", expected {type_name(kind)}"
        raise InvalidInputError(
            f"setting {key} from {entry.source}: found {_short(key, value)}{wanted}"
            + (f": {reason}" if reason else ""),
            setting=key,
        ) from None


def _short(key: str, value: object) -> str:
    text = redaction.shown(key, repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _from_project(file: Path | None) -> Iterator[tuple[str, _SourcedValue]]:
    """A project has the same folders, in whichever of its own folders a command runs."""
    if file is None:
        return
    for key, entry in _from_file(file):
        value = entry.value
        if key in _FOLDERS and isinstance(value, str):
            value = str(file.absolute().parent / Path(value).expanduser())
        yield key, _SourcedValue(value, entry.source, entry.is_text)


def _from_file(file: Path) -> Iterator[tuple[str, _SourcedValue]]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".properties":
            for number, key, value in samza.read_properties(text):
                yield key, _SourcedValue(value, f"{file}:{number}", is_text=True)
            return
        table = tomllib.loads(text)
    except FileNotFoundError as error:
        raise InvalidInputError(
            f"settings file {file} does not exist; name another with --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"settings file {file} is not TOML: {error}") from error
    lines = _line_numbers(text)
    for key, value in _flat(table, ""):
        at = f"{file}:{lines[key]}" if key in lines else str(file)
        yield key, _SourcedValue(value, at, is_text=False)


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and (value or key not in SECTIONS):
            yield from _flat(value, key + ".") if value else [(key, value)]
        elif not isinstance(value, dict):
            yield key, value


def _line_numbers(text: str) -> dict[str, int]:
    """Find the line of each plain ``key = value``; a file in another style goes without."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\-\"]+)\s*\]", line):
            prefix = header[1].replace('"', "") + "."
        elif entry := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            lines.setdefault(prefix + entry[1].replace('"', ""), number)
    return lines


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _SourcedValue]]:
    if home := environ.get("HEADRACE_HOME"):
        yield "home", _SourcedValue(home, f"{_ENVIRONMENT}HEADRACE_HOME", is_text=True)
    for name in sorted(environ):
        if name.startswith("HEADRACE__"):
            key = name.removeprefix("HEADRACE__").replace("__", ".").lower()
            yield key, _SourcedValue(environ[name], f"{_ENVIRONMENT}{name}", is_text=True)
        elif name not in _NO_SETTINGS and (meant := _SINGLE.get(name)) is not None:
            raise InvalidInputError(
                f"environment {name}: the words of a setting have two underscores between them; "
                f"write {meant}"
            )


def _from_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, _SourcedValue]]:
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise InvalidInputError(f"--set {without_secret(override)}: expected section.key=value")
        source = f"{ON_COMMAND}{without_secret(override)}"
        yield key.strip(), _SourcedValue(value.strip(), source, is_text=True)
