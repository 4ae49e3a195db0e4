"""Durations as users of graphs write them; settings have the same, so they are read elsewhere."""

from __future__ import annotations

from headrace.durations import Duration, duration_ms, duration_text

__all__ = ["Duration", "duration_ms", "duration_text"]
