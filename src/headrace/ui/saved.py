"""Saved views and dashboards: one small file each, below the home."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from headrace.clock import Clock
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.explore.query import Query, check_query
from headrace.files import Files

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,79}")
MOST_SAVED = 1_000
_Title = Annotated[str, Meta(min_length=1, max_length=200)]
_Text = Annotated[str, Meta(max_length=2_000)]


class SavedView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query that somebody has given a title."""

    title: _Title
    query: Query

    def streams(self) -> set[str]:
        """Return the streams that it shows."""
        return {self.query.stream}

    def check(self) -> None:
        """Refuse a query that cannot be asked."""
        check_query(self.query)


class Chart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One query of a dashboard, on a grid of 12 columns."""

    title: Annotated[str, Meta(max_length=200)]
    query: Query
    width: Annotated[int, Meta(ge=1, le=12)] = 6
    height: Annotated[int, Meta(ge=1, le=24)] = 4


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of which a value can be chosen for all charts of a dashboard that have it."""

    column: Annotated[str, Meta(min_length=1, max_length=200)]
    title: Annotated[str, Meta(max_length=200)] = ""


class Dashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several charts on a page."""

    title: _Title
    description: _Text = ""
    refresh: Annotated[str, Meta(max_length=20)] | None = None
    variables: Annotated[tuple[Variable, ...], Meta(max_length=20)] | None = None
    charts: Annotated[tuple[Chart, ...], Meta(max_length=60)] = ()

    def streams(self) -> set[str]:
        """Return the streams that it shows."""
        return {one.query.stream for one in self.charts}

    def check(self) -> None:
        """Refuse charts that cannot be asked, and a variable that is there twice."""
        for one in self.charts:
            check_query(one.query)
        columns = [one.column for one in self.variables or ()]
        if twice := next((one for one in columns if columns.count(one) > 1), None):
            raise InvalidInputError(f"variable {twice!r} is there twice; leave one out")


Item = TypeVar("Item", SavedView, Dashboard)


class Saved(msgspec.Struct, Generic[Item], frozen=True):
    """What a file has: the item, and who saved it when; ``version`` rises with each time."""

    version: int
    saved_by: str
    saved_ms: int
    item: Item


class ConflictError(NotOwnerError):
    """Another version was saved since; load that one, and change it."""

    code = "HR302"
    move = "load the newest version, and change that"


class SavedItems(Generic[Item]):
    """Items of one kind, by name. Safe for many threads and processes.

    Args:
        folder: of their files.
        kind: of the items.
        files: the file system.
        clock: for when they were saved.
    """

    def __init__(self, folder: Path, kind: type[Item], files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock
        self._kind: type[Item] = kind

    def all(self, sees: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return what somebody may see, in order of names, without the queries of dashboards."""
        found = []
        for file in self._files.names(self._folder):
            name = file.removesuffix(".json")
            saved = self._read(name) if file.endswith(".json") else None
            if saved is not None and _is_seen(saved, sees):
                found.append(_shown(name, saved))
        return found

    def get(self, name: str, sees: Callable[[str], bool]) -> dict[str, Any] | None:
        """Return one; ``None``: there is none that this one may see."""
        saved = self._read(_checked(name))
        return _shown(name, saved) if saved is not None and _is_seen(saved, sees) else None

    def put(self, name: str, given: bytes, by: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Save one.

        Args:
            name: by which it is found.
            given: JSON of the item, with the ``version`` that was loaded; 0 or none for a new one.
            by: who saves it.
            sees: says which streams that one may see.

        Raises:
            InvalidInputError: it is no such item.
            ConflictError: another version was saved since.
        """
        _checked(name)
        item, version = self._item(given)
        if not all(sees(one) for one in item.streams()):
            raise InvalidInputError("it shows a stream that you may not see; leave it out")
        with self._locked():
            before = self._read(name)
            current = 0 if before is None else before.version
            is_seen = before is None or _is_seen(before, sees)
            if version != current or not is_seen:
                raise ConflictError(
                    f"{name!r} was saved by somebody else since it was loaded: found version "
                    f"{current}, expected {version}; load the newest version, and change that"
                )
            if before is None and len(self._files.names(self._folder)) >= MOST_SAVED:
                raise InvalidInputError(f"{MOST_SAVED:,} are saved already; remove some")
            saved = Saved(current + 1, by, self._clock.now_ms(), item)
            self._files.replace(self._path(name), msgspec.json.encode(saved))
        return _shown(name, saved)

    def remove(self, name: str, sees: Callable[[str], bool]) -> bool:
        """Remove one; say whether it was there."""
        with self._locked():
            saved = self._read(_checked(name))
            if saved is None or not _is_seen(saved, sees):
                return False
            self._files.remove(self._path(name))
        return True

    def _item(self, given: bytes) -> tuple[Item, int]:
        try:
            held = msgspec.json.decode(given)
            if not isinstance(held, dict):
                raise InvalidInputError("expected an object with a title")
            version = held.pop("version", 0)
            for name in ("name", "saved_by", "saved_ms"):
                held.pop(name, None)
            item = msgspec.convert(held, self._kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            said = str(error)
            raise InvalidInputError(f"{said[0].lower()}{said[1:]}; see the guide") from error
        if not isinstance(version, int) or version < 0:
            raise InvalidInputError("version is that of the loaded one, or 0")
        item.check()
        return item, version

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> Saved[Item] | None:
        """Return what a file has; ``None``: it is not there, or cannot be read."""
        try:
            data = self._files.read(self._path(name))
            kind: Any = Saved[self._kind]  # type: ignore[name-defined]
            found: Saved[Item] = msgspec.json.decode(data, type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._files.make_folder(self._folder, 0o700)
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _checked(name: str) -> str:
    if NAME.fullmatch(name) is None or name.endswith((" ", ".")):
        raise InvalidInputError(
            f"{name[:100]!r} cannot name what is saved; use up to 80 letters, digits, spaces, '.', "
            "'_' or '-', beginning with a letter or digit"
        )
    return name


def _is_seen(saved: Saved[Any], sees: Callable[[str], bool]) -> bool:
    return all(sees(one) for one in saved.item.streams())


def _shown(name: str, saved: Saved[Any]) -> dict[str, Any]:
    item: dict[str, Any] = msgspec.to_builtins(saved.item)
    facts = {"version": saved.version, "saved_by": saved.saved_by, "saved_ms": saved.saved_ms}
    return {"name": name, **facts, **item}
