"""The word that a driver leaves of where its API is, for its owner alone."""

from __future__ import annotations

import msgspec

PLACE = "control.json"
EVERY_ADDRESS = ("0.0.0.0", "::")
"""What a driver binds to that is to be reached at all addresses of its host."""


class Place(msgspec.Struct, frozen=True):
    """Where a driver's API is, and what it asks for; ``host`` has the process."""

    url: str
    token: str
    process: int
    host: str = ""
