"""Settings of slice and dice: which streams are kept as columns, and who may look at them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.config.fields import Section, read_tables, setting
from headrace.config.sections import MIB, absolute, milliseconds
from headrace.durations import duration_ms, duration_text


def _patterns(value: object) -> object:
    """Return patterns of names from text with commas, or from a list."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise ValueError('names or patterns such as "orders,web.*" are expected')
    return ",".join(value)


def _optional_patterns(value: object) -> object:
    return None if value is None else _patterns(value)


def _lasting(what: str) -> Callable[[object], object]:
    """Return what checks a duration that stays text, as it is shown."""

    def read(value: object) -> object:
        duration_ms(value, what, least=1000)
        return value

    return read


def matches(patterns: str, name: str) -> bool:
    """Say whether one of some patterns, separated by commas, matches a name."""
    return any(fnmatch.fnmatchcase(name, one) for one in patterns.split(",") if one)


@dataclass(frozen=True, kw_only=True)
class ExploreRule(Section):
    """What is different for some streams; the first rule that matches a stream is its own.

    Args:
        streams: names or patterns, separated by commas.
        keep_ms: how long rows are kept; ``None``: as ``explore.keep`` says.
        keep_bytes: most bytes of a stream; ``None``: as ``explore.keep_bytes`` says.
        sample: one of so many rows is kept.
        time: column with the time of a row; ``None``: the stream's event time.
    """

    streams: str = setting(read=_patterns, min_length=1)
    keep_ms: int | None = setting(None, alias="keep", least=1000, read=milliseconds("keep", 1000))
    keep_bytes: int | None = setting(None, least=MIB)
    sample: int = setting(1, least=1, most=1_000_000)
    time: str | None = setting(None, min_length=1)

    @property
    def name(self) -> str:
        """Its streams, for messages."""
        return self.streams

    @property
    def text(self) -> str:
        """What it says, in words."""
        said = [f"one row of {self.sample:,}"] if self.sample > 1 else []
        said += [] if self.keep_ms is None else [f"kept {duration_text(self.keep_ms)}"]
        said += [] if self.keep_bytes is None else [f"up to {self.keep_bytes:,} bytes"]
        said += [] if self.time is None else [f"by {self.time}"]
        return ", ".join(said) or "as all others"


@dataclass(frozen=True, kw_only=True)
class Viewer(Section):
    """Who may look at which streams.

    Args:
        name: of the person or group, which saved views show.
        token_file: has the token that signs in.
        streams: names or patterns, separated by commas.
        may_save: whether views and dashboards can be saved.
    """

    name: str = setting(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,63}$")
    token_file: Path = setting(read=absolute)
    streams: str = setting("*", read=_patterns)
    may_save: bool = setting(True)

    @property
    def text(self) -> str:
        """What it says, in words."""
        return f"streams {self.streams}{'' if self.may_save else ', saves nothing'}"


@dataclass(frozen=True, kw_only=True)
class ExploreSettings(Section):
    """Rows of streams that are kept as columns, to slice and dice."""

    streams: str = setting(
        "*",
        read=_patterns,
        description="streams that are kept as columns to explore: names or patterns, separated by "
        "commas",
    )
    dir: Path | None = setting(
        None, read=absolute, description="folder of the columns; none: explore, below home"
    )
    keep: str = setting(
        "7d",
        read=_lasting("keep"),
        description="how long rows are kept, such as 7d: by their own time, and by when they came",
    )
    keep_bytes: int = setting(1024 * MIB, least=MIB, description="most bytes of a stream on disk")
    flush_ms: int = setting(
        10_000,
        least=50,
        description="how long new rows are in memory before they are written to a file; queries "
        "see them at once",
    )
    flush_rows: int = setting(
        1_000_000, least=1, description="new rows of a stream that are written to a file at once"
    )
    threads: int | None = setting(
        None, least=1, description="threads of queries; none: one for each core"
    )
    memory: str = setting(
        "1GB",
        pattern=r"^[1-9][0-9]*(MB|GB)$",
        description="memory of all queries together, such as 1GB",
    )
    query_s: float = setting(10.0, above=0, description="time limit of a query")
    query_rows: int = setting(10_000, least=1, description="most rows of an answer")
    rules: tuple[ExploreRule, ...] = setting(
        (),
        "tables `[[explore.rules]]`, or the same in JSON: what is different for some streams",
        read=read_tables(ExploreRule, "explore.rules", "rule", lambda one: one.streams),
    )

    def rule_of(self, stream: str) -> ExploreRule | None:
        """Return what is said of a stream, with the general values filled in.

        ``None``: it is not kept.
        """
        if not matches(self.streams, stream):
            return None
        own = self._own_rule(stream)
        return ExploreRule(
            streams=stream,
            keep_ms=self.keep_ms_of(stream),
            keep_bytes=(own and own.keep_bytes) or self.keep_bytes,
            sample=own.sample if own else 1,
            time=own.time if own else None,
        )

    def keep_ms_of(self, stream: str) -> int:
        """Return how long rows of a stream are kept, also of one that is not chosen any more."""
        own = self._own_rule(stream)
        return (own and own.keep_ms) or duration_ms(self.keep, "explore.keep")

    def _own_rule(self, stream: str) -> ExploreRule | None:
        return next((one for one in self.rules if matches(one.streams, stream)), None)


@dataclass(frozen=True, kw_only=True)
class UiSettings(Section):
    """The web application of a home."""

    host: str = setting("127.0.0.1", min_length=1, description="address to listen on")
    port: int = setting(8517, least=0, most=65535, description="port to listen on; 0: any free one")
    names: str | None = setting(
        None,
        read=_optional_patterns,
        description="further names by which browsers reach it, such as that of a proxy, separated "
        "by commas",
    )
    token_file: Path | None = setting(
        None,
        read=absolute,
        description="file with the token of who may see all streams; none: a new one at each start",
    )
    session: str = setting(
        "12h",
        read=_lasting("session"),
        description="how long a browser stays signed in, such as 12h",
    )
    viewers: tuple[Viewer, ...] = setting(
        (),
        "tables `[[ui.viewers]]`, or the same in JSON: who may see which streams",
        read=read_tables(Viewer, "ui.viewers", "viewer", lambda one: one.name),
    )
