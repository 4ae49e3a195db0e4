"""What stands for a stream that a job reads: tables ``[inputs.NAME]`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.config.frames import FRAME, FRAME_FIELDS, FrameSettings, nested, split_frame_key
from headrace.config.starts import read_start
from headrace.errors import InvalidInputError

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


class InputSettings(BaseModel):
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
        dataframe: of Spark.
        begin: ``from`` which event time on, inclusive.
        end: ``to`` which event time, exclusive.
        from_offset: of each partition of a stream; one number for all, or one for each.
        to_offset: the same, exclusive.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
    )

    files: tuple[str, ...] = ()
    format: Literal["parquet", "csv", "jsonl"] | None = None
    partitions: int | None = Field(None, ge=1)
    time: str | None = None
    table: str | None = None
    days: str | None = None
    stream: str | None = None
    dataframe: FrameSettings | None = None
    begin: str | None = Field(None, alias="from")
    end: str | None = Field(None, alias="to")
    from_offset: tuple[int, ...] = ()
    to_offset: tuple[int, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        """One path, or offset, need not be in a list; in text several are apart by commas."""
        if not isinstance(given, dict):
            return given
        read = dict(given)
        for name in ("files", "from_offset", "to_offset"):
            value = read.get(name)
            if isinstance(value, str):
                read[name] = tuple(part.strip() for part in value.split(","))
            elif isinstance(value, int):
                read[name] = (value,)
            elif isinstance(value, list):
                read[name] = tuple(value)
        for name in ("from", "to"):
            if isinstance(read.get(name), date):  # as TOML has them
                read[name] = read[name].isoformat()
        return read

    @model_validator(mode="after")
    def _one_kind(self) -> InputSettings:
        kinds = [name for name in ("files", "table", "stream", FRAME) if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} are given; expected one of them")
        kind = kinds[0] if kinds else "stream"
        for name, wanted in _GOES_WITH.items():
            if getattr(self, name) and kind not in wanted:
                raise ValueError(f"{name} goes with {' or '.join(wanted)}, found {kind}")
        bounds = (self.begin, self.end, self.from_offset, self.to_offset)
        if kind == "stream" and self.stream is None and not any(bounds):
            raise ValueError(
                "nothing is said; expected files, table, stream, dataframe, or a range: from, to, "
                "from_offset, to_offset"
            )
        for name, text in (("from", self.begin), ("to", self.end)):
            if text is not None and not isinstance(read_start(text, name), int):
                raise ValueError(f"{name} is {text!r}; expected an event time")
        if self.begin_ms is not None and self.end_ms is not None and self.end_ms <= self.begin_ms:
            raise ValueError(f"to is {self.end!r}; expected a time after from, {self.begin!r}")
        if not all(self.files):
            raise ValueError("files has an empty path; expected paths, patterns or addresses")
        if any(offset < 0 for offset in (*self.from_offset, *self.to_offset)):
            raise ValueError("offsets begin at 0, found one below it")
        return self

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


_PLAIN = [info.alias or name for name, info in InputSettings.model_fields.items() if name != FRAME]
FIELDS = (*_PLAIN, *FRAME_FIELDS)
"""What may be said of an input; below ``dataframe.options`` all that Spark takes."""


def split_key(key: str) -> tuple[str, str] | None:
    """Return input and field that a key of settings names; ``None``: it names none.

    The names of streams may have dots.
    """
    if not key.startswith(INPUT_KEY):
        return None
    rest = key.removeprefix(INPUT_KEY)
    name, dot, field = rest.rpartition(".")
    return split_frame_key(rest) or ((name, field) if dot and name else None)


def read_inputs(given: Mapping[str, Mapping[str, Any]]) -> dict[str, InputSettings]:
    """Return what is said of each input.

    Raises:
        InvalidInputError: something that cannot be; names the input.
    """
    found = {}
    for name, fields in given.items():
        try:
            found[name] = InputSettings.model_validate(nested(dict(fields)))
        except ValidationError as error:
            first = error.errors()[0]
            parts = (part for part in first["loc"] if isinstance(part, str))
            where = ".".join([INPUT_KEY + name, *parts])
            reason = str(first["msg"]).removeprefix("Value error, ")
            raise InvalidInputError(f"setting {where}: {reason}") from error
    return found
