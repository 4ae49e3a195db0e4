"""What a bus says of names that it does not have, or that are taken: one wording for all."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    from headrace.bus.bus import Stream
    from headrace.bus.spec import StreamSpec

ADD_COLUMN = 'headrace bus configure {} --add-column "NAME:TYPE"'


def unknown_stream(name: str, names: Sequence[str]) -> InvalidInputError:
    """Return the error for a stream that is not there, with those that may be meant."""
    near = difflib.get_close_matches(name, names, 3)
    found = f"found {list(names)[:10]};" if names else "there are none yet;"
    there = f"did you mean {' or '.join(map(repr, near))}?" if near else found
    how = f'headrace bus create {name} --schema "column:type,..."'
    return InvalidInputError(f"no stream {name!r}; {there} to create it: {how}", stream=name)


def alias_taken(name: str, stream: str) -> InvalidInputError:
    """Return the error for a new stream with the name of an alias."""
    return InvalidInputError(
        f"{name!r} is an alias of stream {stream!r} and cannot name a new stream; use another "
        "name, or remove the alias",
        stream=name,
    )


def stream_taken(name: str) -> InvalidInputError:
    """Return the error for an alias with the name of a stream."""
    return InvalidInputError(
        f"{name!r} is a stream and cannot be an alias too; use another name", stream=name
    )


def check_same(
    stream: Stream, expected: StreamSpec, schemas: Sequence[pa.Schema], exist_ok: bool
) -> None:
    """Raise unless ``create`` may answer a stream that is there already.

    As many partitions are right as it has, or was created with, or gives new rows to; and each
    schema that it has had.
    """
    found = stream.spec
    if not exist_ok:
        raise InvalidInputError(
            f"stream {found.name!r} exists; open it, or create it with exist_ok (--exist-ok)",
            stream=found.name,
        )
    counts = {found.partitions, *stream.settings.counts(stream.created.partitions)}
    if expected.partitions not in counts:
        raise InvalidInputError(
            f"stream {found.name!r} exists with another partitions: found {found.partitions}, "
            f"expected {expected.partitions}; use its partitions, or another name",
            stream=found.name,
        )
    if expected.compact and not found.compact:
        raise InvalidInputError(
            f"stream {found.name!r} exists and is not compacted, which it stays; use another name",
            stream=found.name,
        )
    for what in ("schema", "time", "key"):
        there, wanted = getattr(found, what), getattr(expected, what)
        if there != wanted and not (what == "schema" and wanted in schemas):
            more = "" if what != "schema" else f", add columns: {ADD_COLUMN.format(found.name)}"
            raise InvalidInputError(
                f"stream {found.name!r} exists with another {what}: found {_plain(there)}, "
                f"expected {_plain(wanted)}; use its {what}{more}, or another name",
                stream=found.name,
            )


def _plain(value: object) -> str:
    if isinstance(value, pa.Schema):
        return ", ".join(f"{field.name} {field.type}" for field in value)
    return repr(value)
