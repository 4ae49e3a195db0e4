"""What a job reads in place of a stream: tables ``[inputs.NAME]``, also Spark DataFrames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from headrace import redaction
from headrace.config.fields import Section, fields_of, read_named, setting, split_named
from headrace.config.sections import read_start, spark_texts

FRAME = "dataframe"
FILE = "file:"
"""What the address of a stream of the bus begins with."""
OPTIONS = f"{FRAME}.options."
_WHICH = ("dbtable", "query", "path", "subscribe", "subscribepattern", "assign")
"""Options of Spark's sources that say which rows; the values of all others are never shown."""
_LONG = 8


@dataclass(frozen=True, kw_only=True)
class FrameSettings(Section):
    """A DataFrame as Spark's readers make it, and what Spark SQL does to it.

    Args:
        format: of Spark: ``csv``, ``jdbc``, ``delta``, ``kafka``, any that it has.
        load: a path, where the format has one.
        table: of a catalog of Spark, instead of a format.
        columns: ``schema`` of the reader, as Spark SQL writes columns.
        options: of the reader.
        where: a condition of Spark SQL on the columns that are read.
        select: what Spark SQL makes of them; all columns as they are, when left out.
        streaming: follow it by ``readStream``.
    """

    format: str | None = setting(None)
    load: str | None = setting(None)
    table: str | None = setting(None)
    columns: str | None = setting(None, alias="schema")
    options: dict[str, str] = setting(factory=dict, read=spark_texts, is_shown=False)
    where: str | None = setting(None)
    select: str | None = setting(None)
    streaming: bool = setting(False)

    @classmethod
    def read_given(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take a list of columns for ``select``, too."""
        if isinstance(given.get("select"), list | tuple):
            return {**given, "select": ", ".join(map(str, given["select"]))}
        return given

    def check(self) -> None:
        """Refuse a frame that is in no place, or in two."""
        if self.table is not None:
            for name, value in (("format", self.format), ("load", self.load)):
                if value is not None:
                    raise ValueError(f"{name} and table are given; expected one of them")
        elif self.format is None:
            raise ValueError(
                "there is no format; expected one of Spark's, such as csv, jdbc or delta, or table"
            )
        for name in ("format", "load", "table", "columns", "where", "select"):
            if getattr(self, name) == "":
                shown = fields_of(FrameSettings)[name].shown
                raise ValueError(f"{shown} is empty; leave it out, or say what it is")

    @property
    def text(self) -> str:
        """What it is, in words, without what may be a secret."""
        kind = f"table {self.table}" if self.table is not None else str(self.format)
        said = [f"{'streaming ' if self.streaming else ''}Spark DataFrame of {kind}"]
        if self.load is not None:
            said[0] += f" {self.load}"
        said += [f"{k} {v}" for k, v in sorted(self.options.items()) if k.lower() in _WHICH]
        said += [f"where {self.where}"] if self.where is not None else []
        said += [f"select {self.select}"] if self.select is not None else []
        return redaction.redacted(", ".join(said))

    def redacted(self, error: Exception) -> Exception:
        """Return what Spark says, with ``...`` for values of options that may be secrets."""
        text = str(error)
        hidden = (v for k, v in self.options.items() if k.lower() not in _WHICH and v.strip())
        for value in sorted(hidden, key=len, reverse=True):
            # In any text there are letters such as those of a separator: of one word, only words.
            edge = r"\b" if len(value) < _LONG and value.isalnum() else ""
            text = re.sub(f"{edge}{re.escape(value)}{edge}", "...", text)
        return RuntimeError(text)


FRAME_FIELDS = tuple(f"{FRAME}.{info.shown}" for info in fields_of(FrameSettings).values())
_SHOWN = tuple(field for field in FRAME_FIELDS if field != OPTIONS.rstrip("."))
_KEY = re.compile(
    rf"(?P<input>.+?)\.(?P<field>{'|'.join(map(re.escape, FRAME_FIELDS))})(?P<option>\..+)?"
)


_WORD = re.compile(r"(--[\w-]+=(?=[^=]*=))?([^=]*)(?:=(.*))?", re.DOTALL)


def split_frame_key(key: str) -> tuple[str, str] | None:
    """Return input and field of a key after ``inputs.``; ``None``: it is of no DataFrame.

    The names of options may have dots, as those of streams.
    """
    found = _KEY.fullmatch(key)
    if found is None or (found["option"] and found["field"] != OPTIONS.rstrip(".")):
        return None
    return found["input"], found["field"] + (found["option"] or "")


def without_secret(word: str) -> str:
    """Return a word of a command, such as ``inputs.NAME.dataframe.options.KEY=VALUE``, to show."""
    parts = _WORD.fullmatch(word)
    if parts is None or parts[3] is None:
        return redaction.redacted(word)
    option, key, value = parts.groups()
    name = key.strip()
    is_table = name.startswith("inputs") and value.lstrip().startswith("{")
    if (is_table or f".{FRAME}." in f"{name}.") and not name.endswith(_SHOWN):
        return f"{option or ''}{key}=..."
    field = name.rpartition(".")[2] if name.startswith("inputs.") else name
    return f"{option or ''}{key}={redaction.shown(field, value)}"


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an input with those of its DataFrame, if it has any, in one table."""
    plain = {name: value for name, value in fields.items() if not name.startswith(f"{FRAME}.")}
    frame: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(OPTIONS):
            frame.setdefault("options", {})[name.removeprefix(OPTIONS)] = value
        elif name.startswith(f"{FRAME}."):
            frame[name.removeprefix(f"{FRAME}.")] = value
    return plain | ({FRAME: frame} if frame else {})


INPUTS = "inputs"
INPUT_KEY = f"{INPUTS}."


_GOES_WITH = {
    "format": ("files",),
    "time": ("files", FRAME),
    "days": ("table",),
    "from_offset": ("stream",),
    "to_offset": ("stream",),
    "partitions": ("files", "table", FRAME),
}


@dataclass(frozen=True, kw_only=True)
class InputSettings(Section):
    """Where an input comes from, instead of all of the stream of its name.

    Args:
        files: paths, patterns, folders, or addresses such as ``s3://bucket/folder``.
        format: ``parquet``, ``csv`` or ``jsonl``; by default what names end with.
        partitions: of files; by default as many as there are files, at most ``job.tasks``. Of a
            DataFrame ``job.tasks``.
        time: the event-time column of files, or a DataFrame, that no stream has the name of.
        table: of the warehouse.
        days: of the table: ``2013-01-31``, or ``2013-01-01..2013-01-31``.
        stream: another one, instead of that with the input's name.
        address: of a log that is not on the bus, such as ``kafka://host:9092/topic``; or
            ``file:NAME``, which is ``stream``.
        dataframe: of Spark.
        begin: ``from`` which event time on, inclusive.
        end: ``to`` which event time, exclusive.
        from_offset: of each partition of a stream; one number for all, or one for each.
        to_offset: the same, exclusive.
    """

    files: tuple[str, ...] = setting(())
    format: Literal["parquet", "csv", "jsonl"] | None = setting(None)
    partitions: int | None = setting(None, least=1)
    time: str | None = setting(None)
    table: str | None = setting(None)
    days: str | None = setting(None)
    stream: str | None = setting(None)
    address: str | None = setting(None)
    dataframe: FrameSettings | None = setting(None)
    begin: str | None = setting(None, alias="from")
    end: str | None = setting(None, alias="to")
    from_offset: tuple[int, ...] = setting(())
    to_offset: tuple[int, ...] = setting(())

    @classmethod
    def read_given(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take one path, or offset, without a list; in text several are separated by commas."""
        read = _nested(given)
        for name in ("files", "from_offset", "to_offset"):
            value = read.get(name)
            if isinstance(value, str):
                read[name] = tuple(part.strip() for part in value.split(","))
            elif isinstance(value, int):
                read[name] = (value,)
            elif isinstance(value, list):
                read[name] = tuple(value)
        address = read.get("address")
        if isinstance(address, str) and address.startswith(FILE) and "://" not in address:
            read["stream"] = read.pop("address").removeprefix(FILE)
        for name in ("from", "to"):
            if isinstance(read.get(name), date):  # as TOML has them
                read[name] = read[name].isoformat()
        return read

    def check(self) -> None:
        """Refuse what says nothing, or says it of two kinds, or of another kind."""
        all_kinds = ("files", "table", "stream", "address", FRAME)
        kinds = [name for name in all_kinds if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} are given; expected one of them")
        kind = kinds[0] if kinds else "stream"
        if self.address is not None and "://" not in self.address:
            raise ValueError("address is no address; expected one such as kafka://host:9092/topic")
        for name, wanted in _GOES_WITH.items():
            if getattr(self, name) and kind not in wanted:
                raise ValueError(f"{name} goes with {' or '.join(wanted)}, found {kind}")
        bounds = (self.begin, self.end, self.from_offset, self.to_offset)
        if kind == "stream" and self.stream is None and not any(bounds):
            raise ValueError(
                "nothing is said; expected files, table, stream, address, dataframe, or a range: "
                "from, to, from_offset, to_offset"
            )
        if kind == "address" and any(bounds):
            raise ValueError("a range goes with files, table or stream, found address")
        for name, text in (("from", self.begin), ("to", self.end)):
            if text is not None and not isinstance(read_start(text, name), int):
                raise ValueError(f"{name} is {text!r}; expected an event time")
        if self.begin_ms is not None and self.end_ms is not None and self.end_ms <= self.begin_ms:
            raise ValueError(f"to is {self.end!r}; expected a time after from, {self.begin!r}")
        if not all(self.files):
            raise ValueError("files has an empty path; expected paths, patterns or addresses")
        if any(offset < 0 for offset in (*self.from_offset, *self.to_offset)):
            raise ValueError("offsets begin at 0, found one below it")

    @property
    def begin_ms(self) -> int | None:
        """The first event time that counts."""
        return None if self.begin is None else int(read_start(self.begin, "from"))

    @property
    def end_ms(self) -> int | None:
        """The first event time that no longer counts."""
        return None if self.end is None else int(read_start(self.end, "to"))

    @property
    def text(self) -> str:
        """What it is, in words."""
        said = []
        if self.files:
            said.append(f"files {', '.join(self.files)}")
        elif self.table:
            said.append(f"table {self.table}" + (f", days {self.days}" if self.days else ""))
        elif self.address:
            said.append(redaction.without_login(self.address))
        elif self.stream:
            said.append(f"stream {self.stream}")
        elif self.dataframe is not None:
            said.append(self.dataframe.text)
        said += [f"from {self.begin}"] if self.begin else []
        said += [f"to {self.end}"] if self.end else []
        for name, offsets in (("from", self.from_offset), ("to", self.to_offset)):
            if offsets:
                said.append(f"{name} offset {', '.join(map(str, offsets))}")
        return ", ".join(said)


_PLAIN = [info.shown for info in fields_of(InputSettings).values() if info.name != FRAME]
FIELDS = (*_PLAIN, *FRAME_FIELDS)
"""What may be said of an input; below ``dataframe.options`` all that Spark takes."""


def split_key(key: str) -> tuple[str, str] | None:
    """Return input and field that a key of settings names; ``None``: it names none."""
    named = split_named(INPUTS, key)
    return named and (split_frame_key(key.removeprefix(INPUT_KEY)) or named)


def read_inputs(given: Mapping[str, Mapping[str, Any]]) -> dict[str, InputSettings]:
    """Return what is said of each input.

    Raises:
        InvalidInputError: something that cannot be; names the input.
    """
    return read_named(InputSettings, INPUTS, given)
