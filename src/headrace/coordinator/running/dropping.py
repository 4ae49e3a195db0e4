"""What a run ends with when its epoch was dropped, for the job was told to stop."""

from __future__ import annotations

from headrace.errors import UnavailableError


class DroppedError(UnavailableError):
    """The epoch under way was dropped because the job was told to stop."""

    code = "HR204"
    move = "run the job again; nothing is lost"
