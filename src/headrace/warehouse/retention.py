"""Which days of a table are older than it is to go back."""

from __future__ import annotations

from collections.abc import Collection

from headrace.graph.daily import DailyTable
from headrace.graph.durations import duration_ms
from headrace.warehouse.days import DAY_MS, day_name, day_number


def old_days(days: Collection[str], table: DailyTable, now_ms: int) -> list[str]:
    """Return the days to drop, sorted; a row of a day to come, by the clock, empties no table.

    Args:
        days: that the table has.
        table: with its retention.
        now_ms: by the wall clock.
    """
    if table.retention is None:
        return []
    kept_days = duration_ms(table.retention, "retention") // DAY_MS
    today = day_name(now_ms // DAY_MS)
    newest = max((name for name in days if name <= today), default=None)
    if newest is None:
        return []
    last = day_number(newest) - kept_days
    return sorted(name for name in days if day_number(name) <= last)
