"""What may be changed of a stream while it is in use: how long rows are kept, and its columns.

``StreamSettings`` is plain frozen data. ``SettingsFiles`` keeps it in numbered files of the
stream's folder, ``MemorySettings`` in memory; in both, of two who change it at once one wins.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest

from headrace.bus.schemas import ColumnChange
from headrace.bus.spec import MAX_PARTITIONS
from headrace.clock import Clock
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files

FORMAT = 1
_BY_OTHERS = ("partitions_before", "columns")
_OF_COMPACTION = ("compact_after_ms", "keep_deletes_ms", "hold_ms")
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class StreamSettings:
    """What may be changed of a stream while it is in use.

    Args:
        retain_ms: rows appended longer ago may go, a segment at a time; ``None``: never.
        retain_bytes: the oldest segments may go as long as so many bytes of a partition are
            left; ``None``: never.
        partitions: how many of them new rows go to, the first ones; ``None``: all that the
            stream was created with. Others stay, and are read to their end.
        partitions_before: what ``partitions`` was before; not to be set.
        columns: how the schema was changed since the stream was created; by ``evolve``.
        compact_after_ms: of a compacted stream: rows appended later are left; ``None``: none.
        keep_deletes_ms: of a compacted stream: how long deletes are kept since a compaction
            first met them, so that slow readers see them.
        hold_ms: of a compacted stream: how long a reader that says nothing holds it back.
    """

    retain_ms: int | None = None
    retain_bytes: int | None = None
    partitions: int | None = None
    partitions_before: tuple[int, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    compact_after_ms: int | None = None
    keep_deletes_ms: int = _DAY_MS
    hold_ms: int = 7 * _DAY_MS

    def __post_init__(self) -> None:
        """Refuse numbers that cannot work."""
        for name in ("retain_ms", "retain_bytes", *_OF_COMPACTION):
            value = getattr(self, name)
            may_be_none = StreamSettings.__dict__[name] is None
            if not (value is None and may_be_none) and not (isinstance(value, int) and value > 0):
                raise InvalidInputError(
                    f"stream setting {name} is {value!r}; expected a whole number from 1 on"
                    + (", or none to keep everything" if may_be_none else "")
                )
        if self.partitions is not None and not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidInputError(
                f"found {self.partitions} partitions, expected 1 to {MAX_PARTITIONS}"
            )
        object.__setattr__(self, "partitions_before", tuple(self.partitions_before))

    def counts(self, created: int) -> list[int]:
        """Return every number of partitions that rows went to, now first.

        Args:
            created: how many the stream was created with.
        """
        now = () if self.partitions is None else (self.partitions,)
        return list(dict.fromkeys((*now, *reversed(self.partitions_before), created)))

    @property
    def drops(self) -> bool:
        """Say whether any row may ever go."""
        return self.retain_ms is not None or self.retain_bytes is not None

    def changed(self, changes: Mapping[str, Any]) -> StreamSettings:
        """Return the settings with some of them changed.

        Raises:
            InvalidInputError: a name or a value that cannot be.
        """
        known = [field.name for field in fields(StreamSettings) if field.name not in _BY_OTHERS]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise InvalidInputError(f"unknown stream settings {unknown}; expected some of {known}")
        before = self.partitions_before
        if self.partitions is not None and changes.get("partitions", 0) != self.partitions:
            before += (self.partitions,) if "partitions" in changes else ()
        return replace(self, **changes, partitions_before=before)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"columns": [change.to_plain() for change in self.columns]}


class SettingsStore(ABC):
    """Where the settings of a stream are kept. Safe for many threads."""

    @abstractmethod
    def current(self) -> StreamSettings:
        """Return the newest settings; cheap enough for every append."""

    @abstractmethod
    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more; says whether it did."""


class MemorySettings(SettingsStore):
    """The settings of a stream in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings = StreamSettings()

    def current(self) -> StreamSettings:
        """Return the newest settings."""
        return self._settings

    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more."""
        with self._lock:
            if self._settings is not before:
                return False
            self._settings = after
            return True


class SettingsFiles(SettingsStore):
    """The files ``settings-000001.json``, ``-000002`` and so on; the last one counts.

    None is ever removed, so whoever has read one finds the next by its name alone.
    """

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock
        self._lock = threading.Lock()
        self._number = -1
        self._settings = StreamSettings()

    def current(self) -> StreamSettings:
        """Return the newest settings.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        with self._lock:
            if self._number < 0:
                self._number = self._last()
                if self._number:
                    self._settings = self._read(self._number)
            while os.path.exists(self._name(self._number + 1)):
                self._settings = self._read(self._number + 1)
                self._number += 1
            return self._settings

    def publish(self, before: StreamSettings, after: StreamSettings) -> bool:
        """Change the settings, unless they are not ``before`` any more."""
        self.current()
        with self._lock:  # of threads, too, one wins: the number has to be that behind ``before``
            if self._settings is not before:
                return False
            number = self._number + 1
        data = _to_json(number, after)
        return self._files.publish(self._path(number), data, self._clock.new_id())

    def _name(self, number: int) -> str:
        return f"{self._folder}/settings-{number:06d}.json"

    def _path(self, number: int) -> Path:
        return Path(self._name(number))

    def _last(self) -> int:
        names = [n for n in self._files.names(self._folder) if n.startswith("settings-")]
        if names != [self._path(number + 1).name for number in range(len(names))]:
            raise CorruptDataError(
                f"{self._folder} has lost settings: found {names}, expected all numbers from 1 on",
                file=str(self._folder),
            )
        return len(names)

    def _read(self, number: int) -> StreamSettings:
        path = self._path(number)
        return _from_json(self._files.read(path), number, str(path))


def _to_json(number: int, settings: StreamSettings) -> bytes:
    plain = settings.plain()
    for name in ("columns", *_OF_COMPACTION):
        if getattr(settings, name) == StreamSettings.__dict__[name]:
            del plain[name]  # versions that do not know of it may read the others
    return signed_json({"format": FORMAT, "number": number, "settings": plain})


def _from_json(data: bytes, number: int, origin: str) -> StreamSettings:
    content = verified_json(data, origin, FORMAT)
    if content["number"] != number:
        raise CorruptDataError(
            f"{origin} is damaged: it is file {content['number']}, expected {number}", file=origin
        )
    given = content["settings"]
    unknown = set(given) - {field.name for field in fields(StreamSettings)}
    if unknown:
        raise InvalidInputError(
            f"{origin} has settings {sorted(unknown)} that this version does not know; upgrade "
            "headrace",
            file=origin,
        )
    columns = tuple(map(ColumnChange.from_plain, given.pop("columns", ())))
    return StreamSettings(**given, columns=columns)


def signed_json(content: Mapping[str, Any]) -> bytes:
    """Return a small JSON file with a checksum of its content."""
    checksum = xxh3_64_hexdigest(msgspec.json.encode(content))
    return msgspec.json.format(msgspec.json.encode({**content, "checksum": checksum}))


def verified_json(data: bytes, origin: str, *expected: int) -> dict[str, Any]:
    """Read what ``signed_json`` wrote.

    Raises:
        CorruptDataError: it is damaged.
        InvalidInputError: its format is of another version.
    """
    try:
        content: dict[str, Any] = msgspec.json.decode(data)
        checksum = content.pop("checksum")
        is_good = checksum == xxh3_64_hexdigest(msgspec.json.encode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{origin} is damaged: it cannot be read", file=origin) from error
    if not is_good:
        raise CorruptDataError(f"{origin} is damaged: its checksum does not match", file=origin)
    if content.get("format") not in expected:
        known = " or ".join(map(str, expected))
        raise InvalidInputError(
            f"{origin} has format {content.get('format')}, expected {known}; upgrade headrace",
            file=origin,
        )
    return content
