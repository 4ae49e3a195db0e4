"""Whether a stream that is there is the one that somebody wants to create."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError

ADD_COLUMN = 'headrace bus configure {} --add-column "NAME:TYPE"'


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
