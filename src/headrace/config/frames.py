"""What makes a Spark DataFrame that stands for a stream: ``dataframe.*`` of ``[inputs.NAME]``."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.config.section import SPARK_TEXT

FRAME = "dataframe"
OPTIONS = f"{FRAME}.options."
_WHICH = ("dbtable", "query", "path", "subscribe", "subscribepattern", "assign")
"""Options of Spark's sources that say which rows; the values of all others are never shown."""
_LONG = 8


class FrameSettings(BaseModel):
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

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
    )

    format: str | None = None
    load: str | None = None
    table: str | None = None
    columns: str | None = Field(None, alias="schema")
    options: dict[str, SPARK_TEXT] = Field(default_factory=dict, repr=False)
    where: str | None = None
    select: str | None = None
    streaming: bool = False

    @model_validator(mode="before")
    @classmethod
    def _list_of_columns(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("select"), list | tuple):
            return {**given, "select": ", ".join(map(str, given["select"]))}
        return given

    @model_validator(mode="after")
    def _one_place(self) -> FrameSettings:
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
                shown = FrameSettings.model_fields[name].alias or name
                raise ValueError(f"{shown} is empty; leave it out, or say what it is")
        return self

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
        return ", ".join(said)

    def told(self, error: Exception) -> Exception:
        """Return what Spark says, with ``...`` for values of options that may be secrets."""
        text = str(error)
        hidden = (v for k, v in self.options.items() if k.lower() not in _WHICH and v.strip())
        for value in sorted(hidden, key=len, reverse=True):
            # In any text there are letters such as those of a separator: of one word, only words.
            edge = r"\b" if len(value) < _LONG and value.isalnum() else ""
            text = re.sub(f"{edge}{re.escape(value)}{edge}", "...", text)
        return RuntimeError(text)


FRAME_FIELDS = tuple(
    f"{FRAME}.{info.alias or name}" for name, info in FrameSettings.model_fields.items()
)
_SHOWN = tuple(field for field in FRAME_FIELDS if field != OPTIONS.rstrip("."))
_KEY = re.compile(
    rf"(?P<input>.+?)\.(?P<field>{'|'.join(map(re.escape, FRAME_FIELDS))})(?P<option>\..+)?"
)


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
    key, _, value = word.removeprefix("--set=").partition("=")
    name = key.strip()
    is_table = name.startswith("inputs") and value.lstrip().startswith("{")
    is_secret = (is_table or f".{FRAME}." in f"{name}.") and not name.endswith(_SHOWN)
    return f"{word[: word.index(key) + len(key)]}=..." if is_secret and word != key else word


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an input with those of its DataFrame, if it has any, in one table."""
    plain = {name: value for name, value in fields.items() if not name.startswith(f"{FRAME}.")}
    frame: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(OPTIONS):
            frame.setdefault("options", {})[name.removeprefix(OPTIONS)] = value
        elif name.startswith(f"{FRAME}."):
            frame[name.removeprefix(f"{FRAME}.")] = value
    return plain | ({FRAME: frame} if frame else {})
