"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_FIRST_MS, _END_MS = 0, 253_402_300_800_000


def time_text(ms: int | None, *, with_ms: bool = True) -> str:
    """Return an event time as UTC; ``-`` when there is none or it is no time of the calendar."""
    if ms is None or not _FIRST_MS <= ms < _END_MS:
        return "-"
    stamp = datetime.fromtimestamp(ms // 1000, UTC)
    part = f".{ms % 1000:03d}" if with_ms and ms % 1000 else ""
    return f"{stamp:%Y-%m-%d %H:%M:%S}{part}"


def size_text(size: float) -> str:
    """Return a number of bytes with three digits or fewer."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def rate_text(rows: float, seconds: float) -> str:
    """Return rows per second; ``-`` when no time has passed."""
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"


def seconds_text(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``10 min``, ``2 h 4 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small = ("min", "s") if whole < 3600 else ("h", "min")
    count, rest = divmod(whole if whole < 3600 else whole // 60, 60)
    return f"{count} {large} {rest} {small}" if rest else f"{count} {large}"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
