"""Streams that can be read and nothing else: bounded ones, and logs that are not of the bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headrace.bus.bus import Stream, UncompactedStream
from headrace.bus.readable import DelegatedLog, ExternalLog, Taker
from headrace.bus.spec import StreamSpec
from headrace.bus.stream_stores import StreamSettings
from headrace.errors import InvalidInputError


class BoundedStreamSettings(StreamSettings):
    """Settings of what gets no new rows in any partition, and so holds no watermark back."""

    def counts(self, created: int) -> list[int]:
        """Return that rows go to none of its partitions any more."""
        return [0, created]


class ReadOnlyStream(UncompactedStream):
    """What readers of a bounded input need; the rest is refused.

    It has no identity: what a run reads is held in its listing.

    Args:
        spec: of the stream that it stands for.
        said: what it is, in words.
    """

    identity = ""

    def __init__(self, spec: StreamSpec, said: str) -> None:
        self.spec = self.created = spec
        self.said = said

    @property
    def settings(self) -> StreamSettings:
        """Settings that say that no rows come."""
        return BoundedStreamSettings()

    def refusing(self, take: Taker) -> ReadOnlyStream:
        """Return the same stream, whose rows that cannot be read go to a function.

        Args:
            take: is given the offset, the bytes of the row, and why.
        """
        del take
        return self

    def begins(self) -> list[int]:
        """Return the first offset of each partition."""
        return [0] * self.spec.partitions

    def offset_at(self, partition: int, time_ms: int) -> int:
        """Return the first offset: ``from`` and ``to`` of the settings choose by time."""
        del time_ms
        return self.begins()[partition]

    def time_range(self, partition: int) -> tuple[int, int] | None:
        """Return that it is not known."""
        del partition
        return None

    def wait(self, ends: Sequence[int], timeout_s: float) -> list[int]:
        """Return the ends, which never change."""
        del ends, timeout_s
        return self.ends()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInputError(
            f"stream {self.spec.name!r} is {self.said} here, by the settings, and can only be read"
        )

    append = append_file = configure = evolve = trim = compact = _refuse
    _targets = _next_turn = _refuse


class ExternalStream(DelegatedLog, ReadOnlyStream):
    """A log that is not of the bus, as the stream that it stands for; others append to it.

    Args:
        log: with the stream's specification.
        said: what it is, in words.
    """

    _log: ExternalLog

    def __init__(self, log: ExternalLog, said: str) -> None:
        self._log = log
        ReadOnlyStream.__init__(self, log.spec, said)
        self.expired = log.expired

    @property
    def identity(self) -> str:  # type: ignore[override]
        """What no other log has; asked for each time, because another log can have its name."""
        return self._log.identity

    @property
    def settings(self) -> StreamSettings:
        """Settings that say that rows come in all partitions."""
        return StreamSettings()

    def refusing(self, take: Taker) -> ExternalStream:
        """Return the same stream, whose rows that cannot be read go to a function."""
        return ExternalStream(self._log.refusing(take), self.said)

    def note(self, reader: str, offsets: Sequence[int]) -> None:
        """Show how far a reader is, where the log's own tools look."""
        self._log.note(reader, offsets)


def external_streams(streams: Mapping[str, Stream]) -> dict[str, ExternalStream]:
    """Return those of some streams that are logs elsewhere."""
    return {name: one for name, one in streams.items() if isinstance(one, ExternalStream)}


def skipping_bad_rows(stream: Stream, take: Taker) -> Stream:
    """Return a stream whose rows that cannot be read, if it may have any, go to a function.

    Args:
        stream: any.
        take: is given the offset, the bytes of the row, and why.
    """
    return stream.refusing(take) if isinstance(stream, ReadOnlyStream) else stream
