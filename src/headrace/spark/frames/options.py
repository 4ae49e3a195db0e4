"""The options of the data source, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus, Stream
from headrace.bus.starts import start_offsets
from headrace.config import load_settings
from headrace.config.starts import EARLIEST, LATEST, Start, read_start
from headrace.errors import InvalidInputError

Begin = Start | dict[int, int]
"""Where reading begins or ends: a word, an event time in ms, or an offset by partition."""

READ = ("stream", "path", "home", "start", "end", "columns", "where", "maxrows", "splitrows")
WRITE = ("stream", "path", "home", "create", "partitions", "key", "time", "writeid")
SPARKS = ("checkpointlocation", "queryname", "outputmode")
OURS = ("follows",)
"""Given by ``stateful`` alone: a folder, see ``following``."""

SPLIT_ROWS = 4_000_000


@dataclass(frozen=True)
class Place:
    """A stream of a home."""

    home: str
    stream: str

    @property
    def bus_dir(self) -> Path:
        """Folder of the bus."""
        return Path(self.home) / "bus"

    def open(self) -> Bus:
        """Open the bus."""
        return open_bus(self.bus_dir)


def place_of(options: Mapping[str, str], folder: str = "") -> Place:
    """Return the stream that options name.

    Args:
        options: of a reader or a writer.
        folder: what a relative home begins at; by default the working folder.

    Raises:
        InvalidInputError: none, or an option that is not known.
    """
    stream = options.get("stream") or options.get("path")
    if not stream:
        raise InvalidInputError(
            'no stream is named; give .option("stream", NAME), or load(NAME) and save(NAME)'
        )
    home = options.get("home") or load_settings(None, (), dict(os.environ)).home
    return Place(str((Path(folder) / Path(home).expanduser()).absolute()), stream)


def check_known(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse options that are not known, which would be passed over.

    Raises:
        InvalidInputError: names it, and those that there are.
    """
    names = {name.lower() for name in options}
    unknown = sorted(names - {*READ, *WRITE, *SPARKS, *OURS})
    if unknown:
        raise InvalidInputError(
            f"unknown option {unknown[0]!r} of format headrace; expected one of {sorted(known)}"
        )


def begin_of(options: Mapping[str, str], name: str, default: Begin) -> Begin:
    """Return where reading begins or ends.

    Raises:
        InvalidInputError: neither a word, nor a time, nor offsets as JSON.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.lstrip().startswith("{"):
        try:
            found = {int(p): int(offset) for p, offset in json.loads(text).items()}
        except (ValueError, TypeError):
            found = None
        if found is None:
            raise InvalidInputError(
                f'option {name} is {text!r}; expected offsets by partition, such as {{"0": 120}}'
            )
        return found
    return read_start(text, f"option {name}")


def first_offsets(stream: Stream, begin: Begin) -> list[int]:
    """Return where to begin reading in each partition; retained rows only.

    Raises:
        InvalidInputError: a partition that there is not, or a time where there is none.
    """
    if not isinstance(begin, dict):
        return start_offsets(stream, begin)
    begins, ends = stream.begins(), stream.ends()
    _check_partitions(begin, len(begins), stream)
    return [
        min(max(begin.get(p, first), first), end)
        for p, (first, end) in enumerate(zip(begins, ends, strict=True))
    ]


def last_offsets(stream: Stream, end: Begin) -> list[int]:
    """Return the offset behind the last one to read in each partition.

    An event time bounds rows, not offsets: what is behind it is left out when it is read.
    """
    ends = stream.ends()
    if end == EARLIEST:
        return stream.begins()
    if end == LATEST or not isinstance(end, dict):
        return ends
    _check_partitions(end, len(ends), stream)
    return [min(end.get(p, last), last) for p, last in enumerate(ends)]


def _check_partitions(given: Mapping[int, int], count: int, stream: Stream) -> None:
    wrong = sorted(p for p in given if not 0 <= p < count)
    if wrong:
        raise InvalidInputError(
            f"offsets are given for partition {wrong[0]}; expected 0 to {count - 1}",
            stream=stream.spec.name,
        )


def number_of(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return a number above 0.

    Raises:
        InvalidInputError: another text.
    """
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < 1:
        raise InvalidInputError(f"option {name} is {text!r}; expected a whole number above 0")
    return int(text)


def names_of(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return names that are given with commas between them."""
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())
