"""``headrace run`` and ``headrace backfill``, and how a run is shown."""

from __future__ import annotations
