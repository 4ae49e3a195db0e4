"""What groups of settings are made of: frozen dataclasses that check the values they are made with.

``setting`` declares a field: its default, what it is, what it can be beyond its type. ``Section``
checks that. Every command and every process of a job loads this first, so it is plain Python: a
library that builds models would take a third of the time of a short command.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from headrace import redaction
from headrace.errors import InvalidInputError

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "text", Path: "a path"}


class UnfitError(ValueError):
    """A value that a field cannot have; its text never shows the value, which may be a secret.

    Args:
        reason: what is expected, or what is wrong with the section.
        at: the fields from the outermost one to this one, as files name them.
        value: what was found.
        kind: whether the field is unknown, or missing, or its value is unfit.
    """

    def __init__(
        self,
        reason: str,
        at: tuple[str, ...] = (),
        value: object = None,
        kind: Literal["unfit", "unknown", "missing"] = "unfit",
    ) -> None:
        super().__init__(": ".join(filter(None, (".".join(at), reason))))
        self.reason, self.at, self.value, self.kind = reason, at, value, kind

    def below(self, name: str) -> UnfitError:
        """Return it with the field that its section is in."""
        return UnfitError(self.reason, (name, *self.at), self.value, self.kind)


@dataclass(frozen=True)
class Setting:
    """What is known of a field beside its name and its type: see ``setting``."""

    description: str
    alias: str | None
    read: Callable[[Any], Any] | None
    least: float | None
    above: float | None
    most: float | None
    pattern: str | None
    min_length: int


def setting(  # noqa: PLR0913 - each says another thing of a field, by name
    default: Any = MISSING,
    description: str = "",
    *,
    factory: Any = MISSING,
    alias: str | None = None,
    read: Callable[[Any], Any] | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    pattern: str | None = None,
    min_length: int = 0,
    is_shown: bool = True,
) -> Any:
    """Declare a field of a section.

    Args:
        default: its value if none is given; a field without one is required.
        description: what it is, for ``headrace config explain``.
        factory: makes the default, where it can be changed in place.
        alias: its name in files, where that is no name of Python.
        read: called with each value first; returns what it means, or raises ``ValueError``.
        least: the lowest number.
        above: a number that all values are above.
        most: the highest number.
        pattern: what the whole text matches.
        min_length: the least characters of a text.
        is_shown: whether ``repr`` shows it.
    """
    known = Setting(description, alias, read, least, above, most, pattern, min_length)
    metadata = {"setting": known}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata, repr=is_shown)
    return dataclasses.field(default=default, metadata=metadata, repr=is_shown)


@dataclass(frozen=True)
class FieldInfo:
    """A field of a section: its name, its type, what is known of it, and its default."""

    name: str
    kind: Any
    setting: Setting
    default: Any

    @property
    def shown(self) -> str:
        """Its name in files."""
        return self.setting.alias or self.name

    def fit(self, value: object, *, is_text: bool = False) -> Any:
        """Return a value as this field has it.

        Args:
            value: of its type, or what ``read`` takes.
            is_text: it is text that stands for a value, as on the command line.

        Raises:
            UnfitError: it cannot have this value.
        """
        try:
            read = value if self.setting.read is None else self.setting.read(value)
            fitting = fit(self.kind, read, is_text=is_text)
            self._check_bounds(fitting)
        except UnfitError as error:
            raise error.below(self.shown) from None
        except ValueError as error:
            raise UnfitError(str(error), (self.shown,), value) from None
        return fitting

    def _check_bounds(self, value: Any) -> None:
        known = self.setting
        if isinstance(value, int | float) and not isinstance(value, bool):
            # Written so that what is not a number is in no bounds.
            if known.least is not None and not value >= known.least:
                raise UnfitError(f"it must be at least {known.least}", (), value)
            if known.above is not None and not value > known.above:
                raise UnfitError(f"it must be above {known.above}", (), value)
            if known.most is not None and not value <= known.most:
                raise UnfitError(f"it must be at most {known.most}", (), value)
        if isinstance(value, str):
            if len(value) < known.min_length:
                raise UnfitError("it must not be empty", (), value)
            if known.pattern is not None and re.search(known.pattern, value) is None:
                raise UnfitError(f"it must match {known.pattern}", (), value)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of settings: frozen, and checked when it is made.

    Subclasses are frozen dataclasses as well, whose fields are made by ``setting``.

    Raises:
        UnfitError: a field has a value that it cannot have, or ``check`` refuses them together.
    """

    def __post_init__(self) -> None:
        """Bring each value into the form of its field."""
        for info in fields_of(type(self)).values():
            object.__setattr__(self, info.name, info.fit(getattr(self, info.name)))
        try:
            self.check()
        except UnfitError:
            raise
        except ValueError as error:
            raise UnfitError(str(error)) from None

    def check(self) -> None:
        """Refuse values that do not go together, by ``ValueError``."""

    @classmethod
    def read_given(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values by name as ``of`` takes them, of what users may write."""
        return given

    @classmethod
    def of(cls, given: Mapping[str, Any], *, is_text: bool = False) -> Self:
        """Return the section of values by the names that files have.

        Args:
            given: the values.
            is_text: text stands for values of other types.

        Raises:
            UnfitError: an unknown name, a missing or an unfit value.
        """
        known = {info.shown: info for info in fields_of(cls).values()}
        values = {}
        for name, value in cls.read_given(given).items():
            if name not in known:
                raise UnfitError("unknown", (name,), value, "unknown")
            info = known[name]
            values[info.name] = info.fit(value, is_text=is_text)
        for info in known.values():
            if info.name not in values and info.default is MISSING:
                raise UnfitError("it is missing", (info.shown,), kind="missing")
        return cls(**values)

    def given(self) -> dict[str, Any]:
        """Return what differs from the defaults, as ``of`` and files of settings take it."""
        found = {}
        for info in fields_of(type(self)).values():
            value = getattr(self, info.name)
            if value != info.default and (plain := _plain(value)) is not None:
                found[info.shown] = plain
        return found


def fields_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the settings of a section by name, in order."""
    known: Any = section  # which mypy takes for one that has no hash
    return _fields_of(known)


@cache
def _fields_of(section: Any) -> dict[str, FieldInfo]:
    kinds = get_type_hints(section)
    found = {}
    for one in dataclasses.fields(section):
        if (known := one.metadata.get("setting")) is not None:
            made = one.default if one.default_factory is MISSING else one.default_factory()
            found[one.name] = FieldInfo(one.name, kinds[one.name], known, made)
    return found


def fit(kind: Any, value: Any, *, is_text: bool = False) -> Any:
    """Return a value as a type has it.

    Args:
        kind: a plain type, ``Literal``, ``X | None``, ``tuple[X, ...]``, ``dict[str, X]`` or a
            section.
        value: of that type.
        is_text: text stands for values of other types.

    Raises:
        UnfitError: it is something else.
    """
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        if value not in arguments or isinstance(value, bool):
            *most, last = map(repr, arguments)
            raise UnfitError(f"expected {', '.join(most)}{' or ' if most else ''}{last}", (), value)
        return value
    if NoneType in arguments:
        return None if value is None else fit(arguments[0], value, is_text=is_text)
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            raise UnfitError("expected a list", (), value)
        return tuple(fit(arguments[0], one, is_text=is_text) for one in value)
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise UnfitError("expected a table", (), value)
        return {name: _inside(name, arguments[1], one, is_text) for name, one in value.items()}
    if issubclass(kind, Section) and isinstance(value, Mapping):
        return kind.of(value, is_text=is_text)
    return _fit_plain(kind, value, is_text=is_text)


def _inside(name: str, kind: Any, value: Any, is_text: bool) -> Any:
    try:
        return fit(kind, value, is_text=is_text)
    except UnfitError as error:
        raise error.below(name) from None


def _fit_plain(kind: Any, value: Any, *, is_text: bool) -> Any:
    found = _of_text(kind, value.strip()) if is_text and isinstance(value, str) else value
    if kind is Path and isinstance(found, str):
        return Path(found)
    is_number = isinstance(found, int) and not isinstance(found, bool)
    if kind is float and is_number:
        return float(found)
    if isinstance(found, kind) and (kind is not int or is_number):
        return value if kind is str else found
    raise UnfitError(f"expected {_NOUNS.get(kind, 'a table')}", (), value)


def _of_text(kind: Any, text: str) -> Any:
    """Return what a text stands for; the text itself where it stands for nothing of the type."""
    if kind is bool and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Section):
        return value.given() or None
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return str(value) if isinstance(value, Path) else value


_Table = TypeVar("_Table", bound=Section)


def read_tables(
    section: type[_Table], key: str, noun: str, name: Callable[[_Table], str]
) -> Callable[[object], tuple[_Table, ...]]:
    """Return what reads a list of tables, such as ``[[alerts.rules]]``, or the same in JSON.

    It raises ``ValueError``: which table is wrong, and how, or that two have one name.

    Args:
        section: of each table.
        key: of the setting.
        noun: what a table is, for errors.
        name: returns what two tables may not share.
    """

    def read(value: object) -> tuple[_Table, ...]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ValueError(f"it is no JSON: {error}") from error
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"tables [[{key}]] are expected")
        found = tuple(one(f"{noun} {number}", given) for number, given in enumerate(value, 1))
        names = [name(each) for each in found]
        if doubled := sorted({each for each in names if names.count(each) > 1}):
            raise ValueError(f"two {noun}s are called {doubled[0]!r}; each needs a name of its own")
        return found

    def one(which: str, given: object) -> _Table:
        if isinstance(given, section):
            return given
        if not isinstance(given, Mapping):
            raise ValueError(f"{which} is {given!r}; a table is expected")
        try:
            return section.of(given)
        except UnfitError as error:
            which += f" ({given['name']})" if given.get("name") else ""
            raise ValueError(f"{which}: {_mistake(section, error)}") from error

    return read


def _mistake(section: type[Section], error: UnfitError) -> str:
    """Say first which field of a table is wrong."""
    where, reason = ".".join(error.at[:1]), error.reason
    if error.kind == "unknown":
        fields = ", ".join(info.shown for info in fields_of(section).values())
        return f"unknown {where}; expected {fields}"
    if error.kind == "missing":
        return f"{where} is missing"
    found = redaction.shown(where, repr(error.value))
    return f"{where} is {found}: {reason}" if where and "is '" not in reason else reason


def read_named(
    section: type[_Table], table: str, given: Mapping[str, Mapping[str, Any]]
) -> dict[str, _Table]:
    """Return a section for each table by name, such as ``[inputs.NAME]``.

    Args:
        section: of each table.
        table: what all of them are below.
        given: their values by name; text stands for values of other types.

    Raises:
        InvalidInputError: something that cannot be; names the table and the field.
    """
    found = {}
    for name, fields in given.items():
        try:
            found[name] = section.of(fields, is_text=True)
        except UnfitError as error:
            where = ".".join([table, name, *error.at])
            raise InvalidInputError(f"setting {where}: {error.reason}") from None
    return found


def split_named(table: str, key: str) -> tuple[str, str] | None:
    """Return name and field of a key such as ``inputs.NAME.files``; ``None``: it is none.

    The names of streams may have dots.
    """
    name, dot, field = key.removeprefix(f"{table}.").rpartition(".")
    return (name, field) if key.startswith(f"{table}.") and dot and name else None
