"""A stream's settings in words."""

from __future__ import annotations

import json
from typing import Any


def settings_text(found: dict[str, Any]) -> str:
    """Return those settings of a stream that are not as they were when it was created."""
    from headrace.bus.settings import StreamSettings

    first = StreamSettings().plain()
    changed = {key: value for key, value in found.items() if value and value != first[key]}
    told = [f"{key} {value}" for key, value in changed.items() if key != "columns"]
    for change in found["columns"]:
        default = "" if change["default"] is None else f"={json.dumps(change['default'])}"
        told.append(f"column {change['column']}:{change['type']}{default}")
    return ", ".join(told)
