"""What all groups of settings have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """What all groups of settings have: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
