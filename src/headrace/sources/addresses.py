"""Files by paths, patterns, folders and addresses of ``pyarrow.fs``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from headrace.errors import InvalidInputError, UnavailableError
from headrace.sources.compressed import PlainBytes, apart, codec_of, plain_name

Form = Literal["parquet", "csv", "jsonl"]
SUFFIXES: dict[str, Form] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class _Place:
    """An address, taken apart.

    Attributes:
        system: the file system.
        path: of the file there.
        start: what addresses begin with, in front of the path but for ``begin``.
        begin: how paths of ``start`` begin, such as with the bucket.
        options: of the file system, behind the path.
    """

    system: Any
    path: str
    start: str = ""
    begin: str = ""
    options: str = ""

    def address_of(self, path: str) -> str:
        """Return the address of another path of the same file system."""
        return f"{self.start}{path.removeprefix(self.begin)}{self.options}"


@cache
def _system(start: str) -> tuple[Any, str]:
    """Return the file system of an address, and how paths of it begin."""
    try:
        found, path = fs.FileSystem.from_uri(start)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidInputError(
            f"address {start!r} cannot be used: {str(error).splitlines()[0]}"
        ) from error
    return found, path.rstrip("/")


def _place_of(address: str) -> _Place:
    """Take an address apart.

    Raises:
        InvalidInputError: pyarrow knows no such file system.
    """
    if "://" not in address:
        return _Place(_local(), str(Path(address).expanduser().absolute()))
    name, options = apart(address)
    scheme, _, rest = name.partition("://")
    place, _, path = rest.partition("/")
    start = f"{scheme}://{place}"
    system, begin = _system(f"{start}/{options}")
    return _Place(system, f"{begin}/{path}", start, begin, options)


@cache
def _local() -> Any:
    return fs.LocalFileSystem()


def open_address(address: str) -> Any:
    """Open a file for reading anywhere in it.

    Raises:
        UnavailableError: it cannot be read.
    """
    place = _place_of(address)
    try:
        return place.system.open_input_file(place.path)
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(
            f"file {address} cannot be read: {str(error).splitlines()[0]}; the run began with it, "
            "so put it back"
        ) from error


def open_text(address: str) -> Any:
    """Open a file for its plain bytes, wherever they are and however it is compressed.

    Raises:
        UnavailableError: it cannot be read.
    """
    if codec_of(address) is None:
        return open_address(address)
    return PlainBytes(address, lambda: open_address(address))


def found_files(address: str, form: Form | None) -> list[tuple[str, int]]:
    """Return the files of a path, a pattern or a folder, sorted, each with its bytes.

    Of a folder only those whose names end as the format says; names that begin with ``.`` or ``_``
    are passed over.

    Raises:
        InvalidInputError: there is none.
        UnavailableError: the file system does not answer.
    """
    place = _place_of(address)
    try:
        found = sorted(_listed(place.system, place.path, form))
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(f"{address} cannot be listed: {error}") from error
    if not found:
        raise InvalidInputError(f"no files at {address}; check the path, the pattern, and format=")
    return [(place.address_of(path), size) for path, size in found]


def _listed(system: Any, path: str, form: Form | None) -> Iterator[tuple[str, int]]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        yield info.path, info.size
        return
    is_folder = info.type == fs.FileType.Directory  # whose name may have brackets
    pattern = None if is_folder else _PATTERN.search(path)
    if pattern is None and not is_folder:
        return
    base = path if pattern is None else path[: path.rfind("/", 0, pattern.start())] or "/"
    selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
    depth = path.count("/")
    for info in system.get_file_info(selector):
        below = info.path[len(base) :].lstrip("/").split("/")
        if info.type != fs.FileType.File or any(part[0] in "._" for part in below):
            continue
        if pattern is None:
            named = named_form(info.path)
            if named is not None and form in {None, named}:
                yield info.path, info.size
        elif info.path.count("/") == depth and _fits(info.path, path):
            yield info.path, info.size


def _fits(path: str, pattern: str) -> bool:
    """Match part by part, for ``*`` stays within a folder."""
    parts = zip(path.split("/"), pattern.split("/"), strict=True)
    return all(fnmatch(part, wanted) for part, wanted in parts)


def named_form(name: str) -> Form | None:
    """Return the format of a file by its name, ``.csv`` or ``.csv.gz``; ``None``: it says none."""
    form = SUFFIXES.get(Path(plain_name(name)).suffix.lower())
    return None if form == "parquet" and codec_of(name) else form


def form_of(address: str, given: Form | None) -> Form:
    """Return the format of a file, as given or else by its name.

    Raises:
        InvalidInputError: its name says nothing.
    """
    found = given or named_form(address)
    if found is None:
        raise InvalidInputError(
            f"the format of {address} is unknown; give format = parquet, csv or jsonl"
        )
    return found
