"""Files by paths, patterns, folders and addresses of ``pyarrow.fs``: found, opened, read by line.

A name says the form and the compression; compressed text is read as its plain bytes.
``LineReader`` gives the lines of a file, a pipe or stdin in chunks, each as it comes, and
``inferred`` guesses a stream's columns from the first rows.
"""

from __future__ import annotations

import io
import os
import re
import select
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
from pyarrow import fs

from headrace.closeable import Closeable
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""By the end of a name, as pyarrow takes them."""
_SKIP_BYTES = 1 << 20
_OF_SYSTEMS = (
    *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion"),
    *("allow_delayed_open", "smart_defaults", "tls_ca_file_path", "tls_ca_dir_path"),
    *("tls_verify_certificates", "project_id", "retry_limit_seconds", "enable_tls"),
    *("blob_storage_authority", "dfs_storage_authority", "credential_kind", "tenant_id"),
    *("client_id", "client_secret", "background_writes", "user", "replication", "buffer_size"),
    *("default_block_size", "kerb_ticket"),
)
"""Options that S3, GCS, Azure and HDFS of pyarrow take; ``?`` is a pattern before all else."""
_OPTIONS = re.compile(rf"(\?(?:{'|'.join(_OF_SYSTEMS)})=.*)$")
_MISTAKE = re.compile(r"(?:/|\.\w+)(\?\w+=[^/.]*)$")
"""Behind a whole name, what none of them takes: pyarrow refuses it."""


def split_options(address: str) -> tuple[str, str]:
    """Return an address, and the options of its file system, as in ``s3://b/f?region=x``."""
    found = (_OPTIONS.search(address) or _MISTAKE.search(address)) if "://" in address else None
    return (address, "") if found is None else (address[: found.start(1)], found[1])


def codec_of(address: str) -> str | None:
    """Return how a file is compressed, by its name; ``None``: it is not."""
    return CODECS.get(Path(split_options(address)[0]).suffix.lower())


def plain_name(address: str) -> str:
    """Return a name without the end that says how the file is compressed."""
    name, _ = split_options(address)
    return name[: -len(Path(name).suffix)] if codec_of(address) else name


class DecompressedFile(Closeable):
    """The plain bytes of a compressed file; reading forward is cheap, going back starts over.

    Args:
        address: of the file, for errors, and to know how it is compressed.
        opened: opens the file.
    """

    def __init__(self, address: str, opened: Callable[[], Any]) -> None:
        self._address, self._opened = address, opened
        self._source: Any = None
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self.close()
        raw = self._opened()
        try:
            self._source = pa.CompressedInputStream(raw, codec_of(self._address))
        except BaseException:
            raw.close()
            raise
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer at the end alone.

        Raises:
            CorruptDataError: the file is cut off, or not compressed as its name says.
        """
        parts = []
        while size > 0:
            try:
                data: bytes = self._source.read(size)
            except (OSError, pa.ArrowException) as error:
                raise CorruptDataError(
                    f"{self._address} cannot be unpacked: {str(error).splitlines()[0]}; it is cut "
                    "off, or its name says another compression than it has",
                    file=self._address,
                ) from error
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self._at += len(data)
        return b"".join(parts)

    def seek(self, position: int) -> None:
        """Go to a place among the plain bytes."""
        if position < self._at:
            self._begin()
        while self._at < position:
            if not self.read(min(_SKIP_BYTES, position - self._at)):
                return

    def fileno(self) -> int:
        """Refuse: what is read has no descriptor."""
        raise io.UnsupportedOperation("fileno")

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()
            self._source = None


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
    name, options = split_options(address)
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
    return DecompressedFile(address, lambda: open_address(address))


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


LINGER_S = 0.2
_READ_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 20


class LineReader:
    """Reads lines, and can be looked into before.

    Args:
        stream: of bytes; a pipe is read as things come, so that what a program writes line by
            line can be appended before it ends.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._rest = b""
        self._is_over = False
        self._descriptor: int | None = None
        try:
            descriptor = stream.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._descriptor = descriptor
        except (OSError, ValueError):
            pass

    def sample(self) -> bytes:
        """Return whole lines from the beginning, about a MiB at most; they are read again."""
        while not self._is_over and len(self._rest) < _SAMPLE_BYTES:
            if b"\n" in self._rest and not self._has_more():
                break
            self._read()
        if self._is_over:
            return self._rest
        return self._rest[: self._rest.rfind(b"\n") + 1]

    def chunks(self, most: int) -> Iterator[list[bytes]]:
        """Yield lists of lines without their ends, of ``most`` lines unless the input pauses."""
        lines: list[bytes] = []
        while True:
            *whole, self._rest = self._rest.split(b"\n")
            lines += whole
            while len(lines) >= most:
                yield lines[:most]
                lines = lines[most:]
            if self._is_over:
                break
            if lines and not self._has_more():
                yield lines
                lines = []
            self._read()
        if self._rest:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            yield lines

    def _has_more(self) -> bool:
        """Say whether more is there, or comes in a moment."""
        if self._descriptor is None:
            return True
        asked = select.poll()  # select itself knows no descriptor from 1,024 on
        asked.register(self._descriptor, select.POLLIN)
        return bool(asked.poll(LINGER_S * 1000))

    def _read(self) -> None:
        if self._descriptor is None:
            data = self._stream.read(_READ_BYTES)
        else:
            data = os.read(self._descriptor, _READ_BYTES)
        self._rest += data
        self._is_over = not data


_UTC = pa.timestamp("us", tz="UTC")


def infer_schema(source: LineReader, name: str, *, is_csv: bool) -> pa.Schema:
    """Return the columns of JSON lines or CSV, as their first MiB has them.

    Whole numbers are ``int64``, others ``float64``; text that is a time in every row is a
    timestamp; a column that is always null is text.

    Args:
        source: of the lines; it is only looked into.
        name: of the file, for errors.
        is_csv: CSV with a header; else JSON lines.

    Raises:
        InvalidInputError: there is nothing to guess from, or the first rows cannot be read.
    """
    data = source.sample()
    if not data.strip():
        raise InvalidInputError(
            f"{name} is empty, so its columns cannot be guessed; create the stream first, with "
            'headrace bus create NAME --schema "column:type,..."'
        )
    try:
        if is_csv:
            table = arrow_csv.read_csv(io.BytesIO(data))
        else:
            options = arrow_json.ReadOptions(block_size=len(data) + 1)
            table = arrow_json.read_json(io.BytesIO(data), read_options=options)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"{name}: its columns cannot be guessed: {reason}; create the stream first, with "
            'headrace bus create NAME --schema "column:type,..."'
        ) from error
    return pa.schema([(field.name, _stored(field)) for field in table.schema])


def _stored(field: pa.Field) -> pa.DataType:
    kind, types = field.type, pa.types
    if types.is_timestamp(kind):
        return _UTC
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind):
        return pa.int64() if types.is_integer(kind) else kind
    if types.is_floating(kind):
        return pa.float64()
    if types.is_list(kind):
        return pa.list_(_stored(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([(inner.name, _stored(inner)) for inner in kind])
    return pa.string()
