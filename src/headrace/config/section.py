"""What all groups of settings have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

MIB = 1 << 20


class Section(BaseModel):
    """What all groups of settings have: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def _absolute(path: object) -> object:
    return Path(path).expanduser().absolute() if isinstance(path, str | Path) else path


Folder = Annotated[Path, BeforeValidator(_absolute)]


def _spark_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


SPARK_TEXT = Annotated[str, BeforeValidator(_spark_text)]
"""What Spark takes for its settings and options: text, numbers, true and false."""
